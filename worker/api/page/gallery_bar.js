/** The bar above the gallery: search, filter, and what can be done with the selected cards. */

import { ask } from "./api.js";
import { compare } from "./compare.js";
import { at, plural } from "./dom.js";
import { save } from "./downloads.js";
import { isImage } from "./job_card.js";

const PAUSE_MS = 300;
const STATES = {
  "": [],
  running: ["pending", "processing", "generating", "generated"],
  done: ["completed"],
  failed: ["failed", "cancelled", "timeout"],
};

export class GalleryBar {
  /** `onRefusal(refusal)` is called with what went wrong. */
  constructor(gallery, onRefusal) {
    Object.assign(this, { gallery, onRefusal });
    let timer = null;
    const search = () => this.#guard(() => gallery.show({ search: at("search").value.trim(), states: STATES[at("state").value] }));
    at("search").addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(search, PAUSE_MS);
    });
    at("state").addEventListener("change", search);
    at("older").addEventListener("click", () => this.#guard(() => gallery.more()));
    at("download").addEventListener("click", () => this.#guard(() => save(this.selected.flatMap((card) => card.outputs))));
    at("compare").addEventListener("click", () => compare(at("comparison"), this.#pair()));
    at("delete").addEventListener("click", () => this.#guard(() => this.#delete()));
    at("unselect").addEventListener("click", () => {
      for (const card of this.selected) card.box.checked = false;
      this.refresh();
    });
  }

  get selected() {
    return this.gallery.cards.filter((card) => card.box.checked);
  }

  /** Show what can be done now. */
  refresh() {
    const cards = this.selected;
    at("empty").hidden = this.gallery.cards.length > 0;
    at("older").hidden = !this.gallery.cursor;
    at("selection").hidden = !cards.length;
    at("selected").textContent = `${plural(cards.length, "job")} selected`;
    at("compare").hidden = !this.#pair();
    at("download").hidden = !cards.some((card) => card.outputs.length);
  }

  /** Return the two images to compare: of two jobs, or the first two of one; null for anything else. */
  #pair() {
    const cards = this.selected;
    const images = (card) => card.outputs.filter(isImage).map((output) => ({ output, title: card.entry.title }));
    const found = cards.length === 1 ? images(cards[0]).slice(0, 2) : cards.length === 2 ? cards.map((card) => images(card)[0]) : [];
    return found.length === 2 && found.every(Boolean) ? found.reverse() : null;
  }

  async #delete() {
    for (const card of this.selected) await this.remove(card);
  }

  /** Delete a job at the worker, with its files. */
  async remove(card) {
    await ask(`jobs/${encodeURIComponent(card.id)}`, { method: "DELETE" }).catch((refusal) => {
      if (refusal.status !== 404) throw refusal;
    });
    this.gallery.remove(card);
  }

  #guard(action) {
    return action().catch(this.onRefusal);
  }
}
