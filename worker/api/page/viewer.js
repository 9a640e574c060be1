/** A result in full: its images, the parameters that made them, and what can be done with them. */

import { duration, make } from "./dom.js";
import { save } from "./downloads.js";
import { remarksOf, shown } from "./job_card.js";
import { costOfRun } from "./price.js";

export class Viewer {
  /** `onAgain(card)` draws once more with another seed, `onUse(card)` fills the form, `onInput(output)` puts an output
   * into it, `onDelete(card)` removes the job, `beside(card, step)` finds another card. */
  constructor(dialog, { beside, onRefusal, ...actions }) {
    Object.assign(this, { dialog, beside, onRefusal, actions });
    this.card = null;
    this.place = 0;
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    dialog.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") this.#move(-1);
      if (event.key === "ArrowRight") this.#move(1);
    });
  }

  open(card) {
    if (!card.outputs.length) return;
    this.card = card;
    this.place = 0;
    this.#show();
    if (!this.dialog.open) this.dialog.showModal();
  }

  #move(step) {
    const place = this.place + step;
    if (place >= 0 && place < this.card.outputs.length) this.place = place;
    else {
      const other = this.beside(this.card, step);
      if (!other) return;
      this.card = other;
      this.place = step > 0 ? 0 : other.outputs.length - 1;
    }
    this.#show();
  }

  #show() {
    const { entry, outputs, result } = this.card;
    const output = outputs[this.place];
    const act = (words, action, isPrimary = false) =>
      make("button", {
        type: "button",
        className: isPrimary ? "primary" : "",
        onclick: () => {
          this.dialog.close();
          Promise.resolve().then(() => action(this.card, output)).catch(this.onRefusal);
        },
      }, words);
    const facts = [
      ["Made by", entry.modifier],
      ...(Object.keys(entry.modifications ?? {}).length ? [] : [["prompt", entry.title]]),
      ...Object.entries(entry.modifications ?? {}).map(([name, value]) => [entry.labels?.[name]?.toLowerCase() ?? name.replaceAll("_", " "), wordsOf(value)]),
      ["Time", timesOf(result.timings ?? {})],
      ...(costOfRun(result.timings) ? [["Cost", costOfRun(result.timings)]] : []),
      ["Made at", new Date(entry.at).toLocaleString()],
      ["File", output.filename],
      ["Id", entry.id],
    ];
    const files = make("p", { className: "note" }, output.filename);
    const notes = remarksOf(result).map((remark) => make("p", { className: "note" }, remark));
    this.dialog.replaceChildren(
      make("div", { className: "stage" }, shown(output, true) ?? files),
      make("div", { className: "side" },
        make("div", { className: "actions" },
          act("Again with another seed", this.actions.onAgain, true),
          act("Use these parameters", this.actions.onUse),
          act("Use as input", (_card, output) => this.actions.onInput(output)),
          act("Download", (_card, output) => save([output])),
          make("a", { href: output.url, target: "_blank", rel: "noopener" }, "Open the file"),
        ),
        output.upload_error ? make("p", { className: "problem" }, `Not uploaded: ${output.upload_error}`) : null,
        notes,
        make("dl", {}, facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
        make("div", { className: "actions" },
          make("button", { type: "button", onclick: () => this.#move(-1), ariaLabel: "Previous" }, "←"),
          make("button", { type: "button", onclick: () => this.#move(1), ariaLabel: "Next" }, "→"),
          act("Delete", this.actions.onDelete),
          make("button", { type: "button", onclick: () => this.dialog.close() }, "Close"),
        ),
      ),
    );
  }
}

function timesOf({ total_ms: total, generation_ms: drawing }) {
  const all = duration((total ?? 0) / 1000);
  return drawing && total - drawing > 1000 ? `${all}, ${duration(drawing / 1000)} of them on the engine` : all;
}

function wordsOf(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > 400 ? `${text.slice(0, 400)}…` : text;
}
