/** One job in the gallery: its progress with the unfinished image, then what it made, or why it failed. */

import { Refusal, ask, events, pauseBefore, refusalOf } from "./api.js";
import { duration, make, show } from "./dom.js";
import { costOfRun } from "./price.js";
import { Turntable } from "./turntable.js";

const MEDIA = [
  ["img", /\.(png|jpe?g|webp|avif|gif|svg)$/i],
  ["video", /\.(mp4|webm|mov|mkv)$/i],
  ["audio", /\.(mp3|wav|flac|ogg|opus|m4a)$/i],
  ["model", /\.glb$/i],
];
const USUAL_MESSAGE = "Processing complete.";

/** Return what a result has to say besides its files: its message beyond the usual one, and its warnings. */
export function remarksOf(result) {
  const message = (result?.message ?? "").replace(USUAL_MESSAGE, "").trim();
  return [message, ...(result?.warnings ?? []).map((warning) => warning.message)].filter(Boolean);
}

/** Return an element that shows an output, or null for a file that a page cannot show. */
export function shown(output, isLarge = false) {
  if (!output.url) return null;
  const tag = MEDIA.find(([, pattern]) => pattern.test(output.filename))?.[0];
  if (!tag) return null;
  if (tag === "model") return new Turntable(output.url, output.filename, isLarge).element;
  const source = isLarge ? output.url : (output.thumbnail?.url ?? output.url);
  if (tag === "img") return make("img", { src: source, alt: output.filename, loading: "lazy" });
  const player = make(tag, { src: output.url, controls: true, muted: !isLarge && tag === "video", preload: "metadata" });
  if (tag === "video" || !output.thumbnail?.url) return player;
  const wave = make("img", { src: output.thumbnail.url, alt: `Waveform of ${output.filename}`, loading: "lazy" });
  return make("div", { className: "sound" }, wave, player);
}

/** Return true for an output that a page shows as an image. */
export const isImage = (output) => MEDIA[0][1].test(output.filename);

export class JobCard {
  /** `entry` is `{id, title, modifier, modifications, at}`; `onOpen(card)` is called for a card with results,
   * `onSend(card)` to send a request again that no worker has taken, `onSelect(card)` when it is ticked or not.
   * `turn(follow)` calls `follow` when a stream may be opened: browsers open few at once. */
  constructor(entry, { onOpen, onEnd, onSend, onSelect, turn }) {
    this.entry = entry;
    this.turn = turn;
    this.began = null; // when the first progress was seen, and its per cent
    this.expected = null; // seconds of its run, by the pace of the worker's last jobs
    this.result = null;
    this.isTaken = false;
    this.needsKey = false;
    this.onEnd = onEnd;
    this.image = make("div", { className: "image" });
    this.bar = make("progress", { max: 100, value: 0, hidden: true, ariaLabel: "Progress" });
    this.status = make("p", { className: "status" });
    this.problem = make("p", { className: "problem", hidden: true });
    this.cancelButton = make("button", { type: "button", hidden: true, onclick: () => this.cancel() }, "Cancel");
    this.sendButton = make("button", { type: "button", hidden: true, onclick: () => onSend?.(this) }, "Send again");
    this.remarks = make("p", { className: "note remarks", hidden: true });
    this.openButton = make("button", {
      type: "button", className: "open", onclick: () => onOpen(this), ariaLabel: `Open: ${entry.title}`,
    }, this.image);
    this.box = make("input", { type: "checkbox", hidden: true, ariaLabel: `Select: ${entry.title}`, onchange: () => onSelect?.(this) });
    const title = make("p", { className: "title", title: entry.title }, entry.title);
    this.element = make("article", { className: "card" }, this.box, this.openButton, this.bar, title, this.status,
      this.problem, this.remarks, this.cancelButton, this.sendButton);
  }

  get id() {
    return this.entry.id;
  }

  get outputs() {
    return this.result?.output ?? [];
  }

  /** Send the request and follow it to its end. Throws Refusal where it does not become a job. */
  async run(body) {
    this.#waiting();
    this.#working("Sending");
    for (let tries = 1; ; tries += 1) {
      try {
        await ask("generate", { method: "POST", body });
        break;
      } catch (refusal) {
        if (!this.isTaken || !refusal.isPassing) throw refusal;
        await pauseBefore(tries, refusal.retryAfter);
      }
    }
    await this.follow();
  }

  /** Follow a job that the worker has, to its end. Throws Refusal for one that is gone. */
  async follow() {
    this.isTaken = true;
    this.needsKey = false;
    this.#waiting();
    this.#working("Waiting");
    await this.turn(() => (this.result ? null : this.#follow()));
  }

  /** Show the end of a job as the list has it. */
  showEnded(result) {
    this.isTaken = true;
    this.#finish(result);
  }

  /** Show what the queue has of a job that no stream is open for. */
  showQueued({ position, percent, estimated_wait_time: wait }) {
    if (this.isFollowed || this.result) return;
    this.#take({ status: "queued", queue_position: { position, estimated_wait_time: wait }, progress: { percent, value: 0, max: 0 } });
  }

  #waiting() {
    this.element.classList.remove("failed");
    this.openButton.hidden = false;
    this.problem.hidden = this.sendButton.hidden = true;
  }

  #stream() {
    return events(`stream/${encodeURIComponent(this.id)}`);
  }

  async cancel() {
    this.cancelButton.disabled = true;
    show(this.status, "Cancelling");
    await ask(`cancel/${encodeURIComponent(this.id)}`, { method: "POST" }).catch((refusal) => {
      this.cancelButton.disabled = false;
      if (refusal.isPassing) show(this.status, `Not cancelled: ${refusal.message}`);
      else this.fail(refusal.message);
    });
  }

  fail(words) {
    this.#over();
    show(this.status, "");
    show(this.problem, words);
    this.element.classList.add("failed");
    if (!this.image.querySelector("img")) this.openButton.hidden = true;
  }

  /** Say that no worker has the request, and offer to send it again. */
  failUnsent(words) {
    this.fail(words);
    this.sendButton.hidden = false;
  }

  /** Follow the job's stream to its end, over restarts of the worker, which keeps what it has taken. Throws Refusal. */
  async #follow() {
    this.isFollowed = true;
    for (let tries = 1; ; tries += 1) {
      let retryAfter = null;
      let words = "The connection was lost; trying again";
      try {
        for await (const event of this.#stream()) {
          tries = 0;
          if (event.result) return this.#finish(event.result);
          this.#take(event);
        }
      } catch (error) {
        if (!(error instanceof Refusal) || !error.isPassing) throw error;
        retryAfter = error.retryAfter;
        words = "The worker is restarting; the job goes on then";
      }
      this.#working(words, this.bar.value);
      await pauseBefore(tries, retryAfter);
    }
  }

  #take(event) {
    const place = event.queue_position?.position ?? 0;
    const wait = event.queue_position?.estimated_wait_time ?? 0;
    const percent = event.progress?.percent ?? 0;
    let words = event.message ?? event.status;
    this.expected = event.expected_run_seconds ?? this.expected;
    if (event.status === "generating" && percent > 0) {
      const { value, max, node_class: node } = event.progress;
      const step = max > 1 ? `Step ${value} of ${max}` : "";
      words = [step, node, this.#left(percent)].filter(Boolean).join(" · ") || words;
    } else if (place > 1) {
      words = `Waiting: number ${place}${wait >= 1 ? `, about ${duration(wait)}` : ""}`;
    } else if (event.status === "generating" && this.expected >= 1) {
      words = `${words} · about ${duration(this.expected)}`;
    } else if (event.status === "queued" || event.status === "pending") {
      words = "Waiting";
    }
    this.#working(words, percent);
    if (event.preview) this.#preview(event.preview);
  }

  /** Return the time that is left in words: by the pace of this run since it was first seen, else by earlier jobs. */
  #left(percent) {
    const now = performance.now();
    if (!this.began || percent < this.began.percent) this.began = { at: now, percent };
    const done = percent - this.began.percent;
    const perCent = done < 5 ? (this.expected ?? 0) / 100 : (now - this.began.at) / 1000 / done;
    const seconds = perCent * (100 - percent);
    return seconds >= 1 ? `${duration(seconds)} left` : "";
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
    let image = this.image.querySelector("img");
    if (!image) {
      image = make("img", { alt: "Unfinished image", className: "preview" });
      this.image.replaceChildren(image);
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
      this.image.replaceChildren();
      this.fail(result.status === "cancelled" ? "Cancelled" : refusalOf(result, result.error?.status ?? 0).message);
    } else {
      const shownOutputs = this.outputs.map((output) => shown(output)).filter(Boolean);
      const files = make("p", { className: "note" }, this.outputs.map((output) => output.filename).join(", "));
      const first = shownOutputs[0] ?? files;
      this.image.replaceChildren(first);
      if (first.controls || first.matches(".sound")) { // what has controls of its own is not within the button
        this.openButton.before(this.image);
        this.openButton.textContent = "Open";
      }
      if (this.outputs.length > 1) this.image.append(make("span", { className: "count" }, `${this.outputs.length}`));
      const { total_ms: total, generation_ms: drawing } = result.timings ?? {};
      const facts = [this.entry.modifier, total && duration((drawing || total) / 1000), costOfRun(result.timings)];
      show(this.status, facts.filter(Boolean).join(" · "));
      show(this.remarks, remarksOf(result).join("\n"));
      this.remarks.title = this.remarks.textContent;
      this.element.classList.add("done");
    }
    this.box.hidden = false;
    this.onEnd(this);
  }
}
