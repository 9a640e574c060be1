/** Model files that an operator fetches beside what a workflow lacks: a button, then how far they are. */

import { ask } from "./api.js";
import { bytes, make, plural, show } from "./dom.js";

const LOOK_MS = 1500;
const MAX_QUIET = 4; // looks in turn at which nothing is on its way, before it is given up

export class Fetching {
  /** `onHere()` is called when all files that were asked for are on disk. */
  constructor(onHere) {
    this.onHere = onHere;
    this.models = [];
    this.isBusy = false;
    this.button = make("button", { type: "button", onclick: () => this.#fetch() });
    this.bar = make("progress", { max: 100, value: 0, hidden: true, ariaLabel: "Files fetched" });
    this.words = make("p", { className: "note", role: "status", hidden: true });
    this.element = make("div", {}, this.button, this.bar, this.words);
  }

  /** Offer the files of a plan that the worker knows a source of; returns the element, null where there is none. */
  offer(models) {
    if (this.isBusy) return this.element;
    this.models = models.filter((model) => model.known_by === "manifest");
    if (!this.models.length) return null;
    const size = this.models.reduce((sum, { size_bytes: count }) => sum + (count ?? 0), 0);
    this.button.textContent = `Fetch ${plural(this.models.length, "file")}${size ? `, ${bytes(size)}` : ""}`;
    this.button.hidden = false;
    return this.element;
  }

  async #fetch() {
    this.isBusy = true;
    this.button.hidden = true;
    this.bar.hidden = false;
    this.bar.value = 0;
    show(this.words, "Asking for the files");
    let problem = "";
    try {
      for (const { name } of this.models) await ask("models/fetch", { method: "POST", body: { name } });
      problem = await this.#watch();
    } catch (refusal) {
      problem = refusal.message;
    }
    this.isBusy = false;
    this.bar.hidden = true;
    show(this.words, problem);
    if (problem) this.button.hidden = false;
    else this.onHere();
  }

  /** Look until all files are on disk; returns why they are not, where they do not come. */
  async #watch() {
    const query = new URLSearchParams(this.models.map(({ name }) => ["name", name]));
    for (let quiet = 0; quiet < MAX_QUIET; ) {
      await new Promise((wake) => setTimeout(wake, LOOK_MS));
      const { fetching, asked } = await ask(`models/hint?${query}`);
      const parts = this.models.map((model) => ({ weight: model.size_bytes ?? 1, percent: percentOf(model, fetching, asked) }));
      const whole = parts.reduce((sum, { weight }) => sum + weight, 0);
      this.bar.value = parts.reduce((sum, { weight, percent }) => sum + weight * percent, 0) / whole;
      show(this.words, `${Math.round(this.bar.value)} % of ${plural(this.models.length, "file")}`);
      if (this.models.every(({ name }) => isHere(asked[name]))) return "";
      quiet = fetching.length ? 0 : quiet + 1;
    }
    return "The files did not come; the Admin page says why.";
  }
}

const isHere = (level) => ["disk", "ram", "vram"].includes(level);

function percentOf({ name }, fetching, asked) {
  const isNamed = (item) => item.name === name || name.endsWith(`/${item.name}`) || item.name.endsWith(`/${name}`);
  return isHere(asked[name]) ? 100 : (fetching.find(isNamed)?.percent ?? 0);
}
