/** The jobs of the visitor's key, the newest first: this browser's, those of other devices and of programs.
 *
 * The worker has the list. What only this browser knows of its own jobs, the form that they came from and the names of
 * its fields, is kept in its local storage.
 */

import { ask } from "./api.js";
import { JobCard } from "./job_card.js";

const STORED = "darkroom.jobs";
const MAX_STORED = 200;
const PAGE = 24;
const LOOKS_A_READ = 6;
const STREAMS = 3; // a browser opens six connections at once, and others are needed
const MAX_VALUE_LENGTH = 20_000; // of one parameter: an image within it would fill the storage

export class Gallery {
  constructor(element, { onOpen, onChange, onSend, onSelect }) {
    Object.assign(this, { element, onOpen, onChange, onSend, onSelect });
    this.cards = [];
    this.filter = {};
    this.cursor = null; // of the older jobs; null at the end
    this.hasRead = false;
    this.number = 0; // of the last filter: a slow answer for an older one is dropped
    this.sought = new Set(); // jobs of the queue that were looked for: some may be on older pages
    this.notes = new Map(stored().map((entry) => [entry.id, entry]));
    this.looks = 0;
    this.running = 0;
    this.waiting = [];
  }

  /** Add a job that is to be sent, and remember its form. */
  add(entry) {
    const card = this.#card(entry);
    this.#insert(card);
    this.#note(entry);
    return card;
  }

  remove(card) {
    this.cards = this.cards.filter((other) => other !== card);
    card.element.remove();
    this.notes.delete(card.id);
    this.#store();
    this.onChange();
  }

  /** Show the newest jobs, or those that pass a filter: `{search, state}`. Cards of unsent requests stay. */
  async show(filter) {
    this.filter = filter;
    await this.#read(null, true);
  }

  /** Show jobs that are not here yet. A card that waited for a key is followed again. */
  async recall() {
    for (const card of this.cards.filter((card) => card.needsKey)) this.#follow(card);
    await this.#read(null);
  }

  more() {
    return this.#read(this.cursor);
  }

  async #read(cursor, isFresh = false) {
    if (isFresh) this.number += 1;
    const number = this.number;
    const { search, states = [] } = this.filter;
    const query = new URLSearchParams({ details: true, limit: PAGE, ...(search && { search }), ...(cursor && { cursor }) });
    for (const state of states) query.append("state", state);
    const page = await ask(`jobs?${query}`);
    if (number !== this.number) return;
    if (isFresh) {
      for (const card of this.cards.filter((card) => card.isTaken)) card.element.remove();
      this.cards = this.cards.filter((card) => !card.isTaken);
    }
    if (cursor || isFresh || !this.hasRead) this.cursor = page.next_cursor;
    this.hasRead = true;
    const shown = new Set(this.cards.map((card) => card.id));
    for (const job of page.jobs.filter((job) => !shown.has(job.id))) this.#meet(job);
    this.onChange();
  }

  /** Show a job of the list. */
  #meet(job) {
    const card = this.#card(this.notes.get(job.id) ?? entryOf(job));
    card.isTaken = true;
    this.#insert(card);
    if (["completed", "failed", "cancelled", "timeout"].includes(job.status)) card.showEnded(job);
    else this.#follow(card);
  }

  #follow(card) {
    card.follow().catch((refusal) => {
      if (refusal.status === 404) this.remove(card);
      else card.fail(refusal.message);
      card.needsKey = Boolean(refusal.needsKey);
    });
  }

  /** Take the queue's jobs: those without a stream show their place, unknown ones are looked for. */
  takeQueue(jobs) {
    const byId = new Map(this.cards.map((card) => [card.id, card]));
    for (const job of jobs) byId.get(job.id)?.showQueued(job);
    const isFiltered = this.filter.search || this.filter.states?.length;
    const isNew = jobs.some((job) => !byId.has(job.id) && !this.sought.has(job.id));
    this.looks += 1; // jobs of others may begin and end between two looks at the queue
    if (isFiltered || (!isNew && this.looks % LOOKS_A_READ)) return;
    this.recall().then(() => {
      this.sought = new Set(jobs.map((job) => job.id));
    }, () => {});
  }

  /** Return the card beside another that has results; undefined at the ends. */
  beside(card, step) {
    const done = this.cards.filter((other) => other.outputs.length);
    return done[done.indexOf(card) + step];
  }

  /** Keep cards in the order of their jobs, the newest first. */
  #insert(card) {
    const index = this.cards.findIndex((other) => other.entry.at < card.entry.at);
    if (index < 0) {
      this.cards.push(card);
      this.element.append(card.element);
    } else {
      this.cards[index].element.before(card.element);
      this.cards.splice(index, 0, card);
    }
  }

  #card(entry) {
    const turn = (follow) => this.#turn(follow);
    return new JobCard(entry, { onOpen: this.onOpen, onEnd: this.onChange, onSend: this.onSend, onSelect: this.onSelect, turn });
  }

  /** Call a function when one of the streams is free. */
  async #turn(follow) {
    if (this.running >= STREAMS) await new Promise((wake) => this.waiting.push(wake));
    else this.running += 1;
    try {
      await follow();
    } finally {
      if (this.waiting.length) this.waiting.shift()();
      else this.running -= 1;
    }
  }

  #note(entry) {
    this.notes = new Map([[entry.id, entry], ...this.notes]);
    this.#store();
    this.onChange();
  }

  #store() {
    const entries = [...this.notes.values()].slice(0, MAX_STORED);
    const kept = entries.map((entry) => ({ ...entry, modifications: short(entry.modifications) }));
    try {
      localStorage.setItem(STORED, JSON.stringify(kept));
    } catch {
      // private windows and full storages keep nothing; the page works without
    }
  }
}

/** Return the card's entry of a job that this browser knows nothing more of. */
function entryOf({ id, title, modifier, parameters, timings }) {
  const label = modifier || parameters?.workflow || "Workflow";
  return { id, at: timings.queued_at_ms, title: title || label, modifier: label, modifications: parameters?.overrides ?? {} };
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
