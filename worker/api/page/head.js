/** The head of the page: what the worker has, what it is doing, and whether it answers. */

import { ask, key } from "./api.js";
import { at, bytes, duration, make, plural } from "./dom.js";
import { price } from "./price.js";

const QUEUE_MS = 5000;

export class Head {
  /** `onBack()` is called when the worker answers again, `onQueue(jobs)` with the queue, `keyField` asks for a key. */
  constructor(keyField, { onBack, onQueue }) {
    Object.assign(this, { keyField, onBack, onQueue });
    this.isDown = false;
    this.isReady = false;
    this.isOperator = false;
  }

  /** Look at the queue for ever, and at the worker until it is ready. */
  async watch() {
    for (;;) {
      await new Promise((wake) => setTimeout(wake, QUEUE_MS));
      if (!document.hidden) await (this.isReady || this.isDown ? this.showQueue() : this.readAgain());
    }
  }

  /** Read what the head shows anew; a failure shows at the next look. */
  async readAgain() {
    await this.read().catch((refusal) => refusal.isUnreachable && this.showDown());
  }

  showDown() {
    this.isDown = true;
    at("worker").replaceChildren(make("span", { className: "down" }, "The worker does not answer: it is restarting, or not running"));
  }

  /** Show the worker. Throws Refusal. */
  async read() {
    const worker = await ask("worker");
    const { benchmark, caller, jobs } = worker;
    price.perHour = worker.price_per_hour;
    const facts = [worker.devices.map(nameOf).join(", ") || "no engine yet"];
    if (jobs.seconds_per_file) facts.push(`${duration(jobs.seconds_per_file)} an image, of the last ${plural(jobs.num_jobs, "job")}`);
    facts.push(plural(worker.checkpoints.length, "checkpoint"));
    this.isReady = worker.is_ready;
    if (!this.isReady) facts.push("not ready yet");
    at("worker").replaceChildren(...facts.map((fact) => make("span", {}, fact)), make("span", { id: "queue" }));
    at("banner").hidden = !worker.is_demo_only;
    const measured = benchmark.its_per_second
      ? [`benchmark: ${benchmark.its_per_second.toFixed(1)} steps/s of ${benchmark.model} at ${benchmark.width_px}x${benchmark.height_px}`] : [];
    const checkpoints = worker.checkpoints.map((item) => `${item.name}${item.family ? ` (${item.family})` : ""}`);
    at("worker").title = [...checkpoints, ...measured].join("\n");
    this.isOperator = caller.scopes.includes("admin");
    if (caller.scopes.includes("submit")) this.keyField.hide();
    else this.keyField.ask(key.get() ? "The worker does not accept this key for drawing." : "");
    await this.showQueue();
  }

  async showQueue() {
    const info = await ask("queue-info").catch((refusal) => {
      if (refusal.isUnreachable) this.showDown();
      return null;
    });
    if (this.isDown && info) {
      this.isDown = false;
      return this.onBack();
    }
    if (info?.jobs) this.onQueue(info.jobs);
    if (!info || !at("queue")) return;
    const count = info.preprocess_queue_size + info.generation_queue_size + info.postprocess_queue_size;
    const wait = info.estimated_wait_seconds;
    at("queue").textContent = count ? `${plural(count, "job")}${wait >= 1 ? `, ${duration(wait)} to wait` : ""}` : "idle";
  }
}

function nameOf(device) {
  const name = device.name.replace(/^cuda:\d+ /, "").replace(/ : .*$/, "");
  return device.memory_bytes ? `${name} (${bytes(device.memory_bytes)})` : name;
}
