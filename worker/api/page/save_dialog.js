/** The dialog that keeps a workflow under a name: which fields its form has, in which order, and how they are called. */

import { ask } from "./api.js";
import { make, show } from "./dom.js";
import { promptWith } from "./recipes.js";

/** Show the dialog for a recipe with the form's values, which become the workflow's; `onSaved(name)` is called when the
 * worker has it. For operators. */
export function showSave(dialog, recipe, values, onSaved) {
  const name = make("input", { id: "save-name", value: nameOf(recipe.label), required: true, maxLength: 128, pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]*" });
  const about = make("input", { id: "save-about", value: "", maxLength: 2000 });
  const problem = make("p", { className: "problem", role: "alert", hidden: true });
  const rows = recipe.fields.map((field) => new Row(field));
  const list = make("ol", { className: "rows" }, rows.map((row) => row.element));

  async function save(event) {
    event.preventDefault();
    show(problem, "");
    const ordered = [...list.children].map((element) => rows.find((row) => row.element === element));
    const chosen = ordered.filter((row) => row.isChosen);
    const inputs = Object.fromEntries(chosen.map((row) => [row.label, { into: [row.field.name, ...(row.field.also ?? [])] }]));
    if (Object.keys(inputs).length < chosen.length) return show(problem, "Two fields have the same name.");
    const workflow = Object.keys(values).length ? promptWith(recipe, values) : recipe.document;
    const body = { workflow_json: workflow, inputs, description: about.value };
    try {
      const stored = await ask(`workflows/${encodeURIComponent(name.value)}`, { method: "PUT", body });
      dialog.close();
      onSaved(stored.name);
    } catch (refusal) {
      show(problem, refusal.message);
    }
  }

  dialog.className = "code";
  dialog.ariaLabel = "Keep the workflow";
  dialog.replaceChildren(make("form", { className: "side", onsubmit: save },
    make("p", { className: "note" }, "The worker keeps it under this name. Each change of it is a version of its own, and others see the ticked fields."),
    make("label", { htmlFor: "save-name" }, "Name *"), name,
    make("label", { htmlFor: "save-about" }, "Description"), about,
    list, problem,
    make("div", { className: "actions" },
      make("button", { className: "primary" }, "Save"),
      make("button", { type: "button", onclick: () => dialog.close() }, "Cancel"))));
  dialog.showModal();
}

/** One field: in the form or not, its name, and buttons that move it. */
class Row {
  constructor(field) {
    this.field = field;
    const about = `${field.group}: ${field.label}`;
    this.box = make("input", { type: "checkbox", checked: field.isMain, ariaLabel: `In the form: ${about}` });
    this.text = make("input", { value: field.label, required: true, maxLength: 100, ariaLabel: `Name of ${about}`, title: about });
    const button = (words, label, move) => make("button", { type: "button", ariaLabel: `${label}: ${about}`, onclick: move }, words);
    this.element = make("li", {}, this.box, this.text,
      button("↑", "Up", () => this.element.previousElementSibling?.before(this.element)),
      button("↓", "Down", () => this.element.nextElementSibling?.after(this.element)));
  }

  get isChosen() {
    return this.box.checked;
  }

  get label() {
    return this.text.value.trim();
  }
}

const nameOf = (label) => label.replace(/\.\w+$/, "").replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[^A-Za-z0-9]+/, "").slice(0, 128) || "workflow";
