/** One job in the gallery: its progress with the unfinished picture, then what it made, or why it failed. */

import { Refusal, ask, events, refusalOf } from "./api.js";
import { duration, make, show } from "./dom.js";

const MEDIA = [
  ["img", /\.(png|jpe?g|webp|avif|gif|svg)$/i],
  ["video", /\.(mp4|webm|mov|mkv)$/i],
  ["audio", /\.(mp3|wav|flac|ogg|opus|m4a)$/i],
];
const PAUSE_MS = 1000;
const MAX_RETURNS = 30;

/** Return an element that shows an output, or null for a file that a page cannot show. */
export function shown(output, isLarge = false) {
  if (!output.url) return null;
  const tag = MEDIA.find(([, pattern]) => pattern.test(output.filename))?.[0];
  if (!tag) return null;
  if (tag === "img") return make("img", { src: output.url, alt: output.filename, loading: "lazy" });
  return make(tag, { src: output.url, controls: isLarge || tag === "audio", muted: !isLarge, preload: "metadata" });
}

export class JobCard {
  /** `entry` is `{id, title, modifier, modifications, at}`; `onOpen(card)` is called for a card with results. */
  constructor(entry, { onOpen, onEnd }) {
    this.entry = entry;
    this.result = null;
    this.onEnd = onEnd;
    this.picture = make("div", { className: "picture" });
    this.bar = make("progress", { max: 100, value: 0, hidden: true, ariaLabel: "Progress" });
    this.status = make("p", { className: "status" });
    this.problem = make("p", { className: "problem", hidden: true });
    this.cancelButton = make("button", { type: "button", hidden: true, onclick: () => this.cancel() }, "Cancel");
    this.openButton = make("button", {
      type: "button", className: "open", onclick: () => onOpen(this), ariaLabel: `Open: ${entry.title}`,
    }, this.picture);
    const title = make("p", { className: "title", title: entry.title }, entry.title);
    this.element = make("article", { className: "card" }, this.openButton, this.bar, title, this.status,
      this.problem, this.cancelButton);
  }

  get id() {
    return this.entry.id;
  }

  get outputs() {
    return this.result?.output ?? [];
  }

  /** Send the request and follow it to its end. Throws Refusal where it does not become a job. */
  async run(body) {
    this.#working("Sending");
    await this.#follow(events("generate/stream", { method: "POST", body }));
  }

  /** Show a job of before: its result, or its stream while it runs. Throws Refusal for one that is gone. */
  async recall() {
    const result = await ask(`result/${encodeURIComponent(this.id)}`).catch((refusal) => {
      if (refusal.status === 404 || refusal.status === 0 || refusal.needsKey) throw refusal;
      return null; // a result with another status has its words in the stream's last event
    });
    if (result?.status === "completed") this.#finish(result);
    else await this.#follow(events(`stream/${encodeURIComponent(this.id)}`));
  }

  async cancel() {
    this.cancelButton.disabled = true;
    show(this.status, "Cancelling");
    await ask(`cancel/${encodeURIComponent(this.id)}`, { method: "POST" }).catch((refusal) => this.fail(refusal.message));
  }

  fail(words) {
    this.#over();
    show(this.status, "");
    show(this.problem, words);
    this.element.classList.add("failed");
    if (!this.picture.querySelector("img")) this.openButton.hidden = true;
  }

  async #follow(stream) {
    for (let returns = 0; ; returns += 1) {
      for await (const event of stream) {
        returns = 0;
        if (event.result) return this.#finish(event.result);
        this.#take(event);
      }
      if (returns >= MAX_RETURNS) throw new Refusal("The connection was lost. The job goes on; load the page again.");
      show(this.status, "The connection was lost; trying again");
      await new Promise((wake) => setTimeout(wake, PAUSE_MS));
      stream = events(`stream/${encodeURIComponent(this.id)}`);
    }
  }

  #take(event) {
    const place = event.queue_position?.position ?? 0;
    const wait = event.queue_position?.estimated_wait_time ?? 0;
    const percent = event.progress?.percent ?? 0;
    let words = event.message ?? event.status;
    if (event.status === "generating" && percent > 0) {
      const { value, max, node_class: node } = event.progress;
      words = max > 1 ? `Step ${value} of ${max}` : (node ?? words);
    } else if (place > 1) {
      words = `Waiting: number ${place}${wait >= 1 ? `, about ${duration(wait)}` : ""}`;
    } else if (event.status === "queued" || event.status === "pending") {
      words = "Waiting";
    }
    this.#working(words, percent);
    if (event.preview) this.#preview(event.preview);
  }

  #working(words, percent = 0) {
    this.element.setAttribute("aria-busy", "true");
    this.bar.hidden = false;
    if (percent) this.bar.value = percent;
    else this.bar.removeAttribute("value");
    this.cancelButton.hidden = false;
    show(this.status, words);
  }

  #preview({ mimetype, data }) {
    let image = this.picture.querySelector("img");
    if (!image) {
      image = make("img", { alt: "Unfinished picture", className: "preview" });
      this.picture.replaceChildren(image);
    }
    image.src = `data:${mimetype};base64,${data}`;
  }

  #over() {
    this.element.removeAttribute("aria-busy");
    this.bar.hidden = this.cancelButton.hidden = true;
  }

  #finish(result) {
    this.result = result;
    this.#over();
    if (result.status !== "completed") {
      this.picture.replaceChildren();
      this.fail(result.status === "cancelled" ? "Cancelled" : refusalOf(result, result.error?.status ?? 0).message);
    } else {
      const shownOutputs = this.outputs.map((output) => shown(output)).filter(Boolean);
      const files = make("p", { className: "note" }, this.outputs.map((output) => output.filename).join(", "));
      this.picture.replaceChildren(shownOutputs[0] ?? files);
      if (this.outputs.length > 1) this.picture.append(make("span", { className: "count" }, `${this.outputs.length}`));
      const seconds = (result.timings?.total_ms ?? 0) / 1000;
      show(this.status, `${this.entry.modifier}${seconds ? ` · ${duration(seconds)}` : ""}`);
      this.element.classList.add("done");
    }
    this.onEnd(this);
  }
}
