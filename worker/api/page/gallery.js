/** The last jobs of this browser, the newest first. Their ids and parameters are kept in its local storage. */

import { JobCard } from "./job_card.js";

const STORED = "darkroom.jobs";
const MAX_STORED = 60;
const MAX_RECALLED = 24;
const AT_ONCE = 4;
const MAX_VALUE_LENGTH = 20_000; // of one parameter: an image within it would fill the storage

export class Gallery {
  constructor(element, { onOpen, onChange, onSend }) {
    this.element = element;
    this.onOpen = onOpen;
    this.onChange = onChange;
    this.onSend = onSend;
    this.cards = [];
  }

  /** Add a job that is to be sent, and remember it. */
  add(entry) {
    const card = this.#card(entry);
    this.cards.unshift(card);
    this.element.prepend(card.element);
    this.#store();
    return card;
  }

  remove(card) {
    this.cards = this.cards.filter((other) => other !== card);
    card.element.remove();
    this.#store();
  }

  /** Show the jobs of before. Those that the worker no longer has are forgotten. */
  async recall() {
    const shown = new Set(this.cards.map((card) => card.id));
    const missing = stored().filter((entry) => !shown.has(entry.id));
    const fresh = missing.slice(0, MAX_RECALLED).map((entry) => this.#card(entry));
    const waiting = [...this.cards.filter((card) => card.needsKey), ...fresh];
    this.cards.push(...fresh);
    this.element.append(...fresh.map((card) => card.element));
    this.onChange();
    const next = async () => {
      for (let card = waiting.shift(); card; card = waiting.shift()) {
        await card.recall().catch((refusal) => {
          if (refusal.status === 404) this.remove(card);
          else card.fail(refusal.message);
          card.needsKey = Boolean(refusal.needsKey);
        });
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, next));
  }

  /** Return the card beside another that has results; undefined at the ends. */
  beside(card, step) {
    const done = this.cards.filter((other) => other.outputs.length);
    return done[done.indexOf(card) + step];
  }

  #card(entry) {
    return new JobCard(entry, { onOpen: this.onOpen, onEnd: this.onChange, onSend: this.onSend });
  }

  #store() {
    const entries = this.cards.map((card) => ({ ...card.entry, modifications: short(card.entry.modifications) }));
    try {
      localStorage.setItem(STORED, JSON.stringify(entries.slice(0, MAX_STORED)));
    } catch {
      // private windows and full storages keep nothing; the page works without
    }
    this.onChange();
  }
}

function stored() {
  try {
    const found = JSON.parse(localStorage.getItem(STORED) ?? "[]");
    return Array.isArray(found) ? found.filter((entry) => typeof entry?.id === "string") : [];
  } catch {
    return [];
  }
}

function short(values) {
  return Object.fromEntries(
    Object.entries(values ?? {}).filter(([, value]) => JSON.stringify(value).length <= MAX_VALUE_LENGTH),
  );
}
