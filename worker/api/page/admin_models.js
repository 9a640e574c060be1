/** Known models on the operator's page: what they need, whether they fit and are here, and a button that installs. */

import { ask } from "./api.js";
import { at, bytes, make, plural } from "./dom.js";
import { put, table } from "./admin_tables.js";

const FITS = {
  yes: "fits", streamed: "streamed from RAM", no: "too large", "?": "not known", "as its model": "as its model",
};
const DAY_MS = 86_400_000;

/** The table of models; `run(act)` does something and draws the page anew. */
export class Models {
  constructor(run) {
    this.run = run;
    this.found = null;
    for (const id of ["models-words", "models-group", "models-here"]) at(id).addEventListener("input", () => this.draw());
  }

  /** True while files are on their way. */
  get isBusy() {
    return (this.found?.models ?? []).some(({ percent }) => percent !== null);
  }

  /** Ask for the models and draw them. Throws Refusal. */
  async refresh() {
    this.found = await ask("models/known");
    this.draw();
  }

  draw() {
    if (!this.found) return;
    const { models, device_bytes: device, is_processor: isProcessor } = this.found;
    const words = at("models-words").value.toLowerCase().split(/\s+/);
    const group = at("models-group").value;
    const shown = models.filter((model) => {
      const text = [model.name, model.label, ...model.families].join(" ").toLowerCase();
      const isIn = at("models-here").checked ? model.num_here > 0 : group === "all" || model.group === group;
      return isIn && words.every((word) => text.includes(word));
    });
    const card = device ? `${isProcessor ? "the processor's RAM" : "the smallest device"}, ${bytes(device)}` : "no device is known";
    put(at("models"),
      make("p", { className: "note" }, `${plural(shown.length, "model")}; compared with ${card}. Adapters need what their model needs.`),
      table("Models", ["Model", "Size", "On this card", "Licence", "Last use", ""], shown.map((model) => this.#row(model)), "None is named so."));
  }

  #row(model) {
    const name = make("span", {}, make("b", {}, model.name), make("span", { className: "note block" }, model.label));
    const size = model.size_bytes === null ? "not known" : `${model.is_size_exact ? "" : "about "}${bytes(model.size_bytes)}`;
    const licence = model.licences.join("; ") || "not known";
    return [name, size, FITS[model.fits] ?? model.fits, licence, lastUse(model.used_at), this.#state(model)];
  }

  #state(model) {
    const { num_files: count, num_here: here, percent } = model;
    if (percent !== null) {
      return make("span", {}, make("progress", { max: 100, value: percent, ariaLabel: `${model.name}, ${Math.round(percent)} per cent` }),
        ` ${Math.round(percent)} %`);
    }
    if (here === count) return "here";
    const install = make("button", { type: "button", ariaLabel: `Install ${model.name}` }, here ? `Install the rest (${here} of ${count} here)` : "Install");
    install.addEventListener("click", () => {
      install.disabled = true;
      install.blur();
      this.run(async () => {
        await ask("models/fetch", { method: "POST", body: { name: model.name } });
        await this.refresh();
      });
    });
    const problem = model.problem && make("span", { className: "field-problem block" }, model.problem);
    return make("span", {}, install, problem);
  }
}

function lastUse(seconds) {
  if (seconds === null) return "–";
  const days = Math.floor((Date.now() - seconds * 1000) / DAY_MS);
  return days < 1 ? "today" : `${plural(days, "day")} ago`;
}
