/** The dialog "As code": a language, webhook and S3 or not, the program to copy, and the files that it reads. */

import { codeOf, workflowText } from "./code.js";
import { make } from "./dom.js";
import { keep } from "./downloads.js";

const LANGUAGES = { curl: "curl", python: "Python", javascript: "JavaScript" };

/** Show the programs of a form's request. */
export function showCode(dialog, recipe, values, files) {
  const language = make("select", { id: "code-language", onchange: show },
    Object.entries(LANGUAGES).map(([value, words]) => make("option", { value }, words)));
  const webhook = make("input", { type: "checkbox", onchange: show });
  const s3 = make("input", { type: "checkbox", onchange: show });
  const text = make("pre", { id: "code-text", tabIndex: 0, ariaLabel: "Program" });
  const note = make("span", { className: "note", role: "status" });
  const workflow = workflowText(recipe);

  function show() {
    text.textContent = codeOf(language.value, recipe, values, files, { hasWebhook: webhook.checked, hasS3: s3.checked });
    note.textContent = "";
  }

  async function copy() {
    try {
      await navigator.clipboard.writeText(text.textContent);
      note.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text); // without HTTPS a page may not write to the clipboard
      note.textContent = "Selected: copy it with Ctrl+C";
    }
  }

  const names = Object.values(files).map((file) => file.name);
  dialog.className = "code";
  dialog.ariaLabel = "The request as code";
  dialog.replaceChildren(make("div", { className: "side" },
    make("div", { className: "actions" },
      make("label", { htmlFor: "code-language" }, "As"), language,
      make("label", {}, webhook, " with a webhook"),
      make("label", {}, s3, " into S3")),
    text,
    names.length ? make("p", { className: "note" }, `Put beside it: ${names.join(", ")}`) : null,
    make("div", { className: "actions" },
      make("button", { type: "button", className: "primary", onclick: copy }, "Copy"),
      workflow === null ? null : make("button", {
        type: "button", onclick: () => keep(new Blob([workflow], { type: "application/json" }), "workflow.json"),
      }, "Save workflow.json"),
      make("button", { type: "button", onclick: () => dialog.close() }, "Close"),
      note)));
  show();
  dialog.showModal();
}
