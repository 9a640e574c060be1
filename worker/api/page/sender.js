/** Requests on their way: made of a recipe and its values, sent with their files, and followed in the gallery. */

import { inputOfRecipe, titleOf } from "./recipes.js";

const THUMBNAIL_PX = 512;

export class Sender {
  /** `onEnd()` is called when a job is over, `onRefusal(refusal)` with a request that did not become one. */
  constructor(gallery, { onRefusal, onEnd }) {
    Object.assign(this, { gallery, onRefusal, onEnd });
    this.sent = new Map(); // by job: the files of this tab's requests, which nothing else keeps
  }

  /** Send a request and follow it in the gallery. */
  submit(recipe, values, files = {}) {
    const labels = Object.fromEntries(recipe.fields.map((field) => [field.name, field.label]));
    const modifications = recipe.prompt ? { ...valuesOf(recipe), ...values } : values;
    const entry = { id: freshId(), at: Date.now(), title: titleOf(recipe, values), modifier: recipe.label, modifications, labels };
    this.sent.set(entry.id, { recipe, values, files });
    const card = this.gallery.add(entry);
    card.element.scrollIntoView({ block: "nearest" });
    return this.send(card);
  }

  /** Send the request of a card; sent twice it is still one job, by its id. */
  async send(card) {
    const { recipe, values, files } = this.sent.get(card.id);
    const parts = Object.fromEntries(Object.keys(files).map((name) => [name, partOf(name)]));
    const request = { input: { request_id: card.id, previews: true, output: { thumbnail_size: THUMBNAIL_PX }, ...inputOfRecipe(recipe, values, parts) } };
    try {
      await card.run(Object.keys(files).length ? multipart(request, files) : request);
    } catch (refusal) {
      if (refusal.isUnreachable) card.failUnsent(`Not sent: ${refusal.message}`);
      else if (card.isTaken && refusal.status === 404) card.failUnsent("The worker no longer has this job.");
      else {
        if (card.isTaken) card.fail(refusal.message);
        else this.gallery.remove(card);
        this.onRefusal(refusal);
      }
    }
    this.onEnd();
  }
}

/** Return the values of a workflow's main fields as they stand in it, for those who look at the result. */
const valuesOf = (recipe) =>
  Object.fromEntries(recipe.fields.filter((field) => field.isMain && !field.media).map((field) => [field.name, field.initial]));

function multipart(request, files) {
  const body = new FormData();
  body.append("input", JSON.stringify(request));
  for (const [name, file] of Object.entries(files)) body.append(partOf(name), file, file.name);
  return body;
}

const partOf = (field) => `page-${field}`; // no name of a file that the worker has

function freshId() {
  const random = crypto.getRandomValues(new Uint8Array(12)); // randomUUID needs HTTPS
  return `page-${[...random].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
