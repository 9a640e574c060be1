/** Tables of the operator's page: queue, last jobs, engines, webhooks. On a narrow screen each row is a card. */

import { bytes, duration, make, plural } from "./dom.js";

/** Draw a part of the page anew where it differs, in the same place; not while the keyboard is within it. */
export function put(part, ...children) {
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const isScroller = Boolean(focused?.matches(".scroll"));
  const drawn = part.cloneNode(false);
  drawn.append(...children);
  if ((focused && !isScroller) || part.isEqualNode(drawn)) return;
  const tops = [...part.querySelectorAll(".scroll")].map(({ scrollTop }) => scrollTop);
  part.replaceChildren(...drawn.childNodes);
  part.querySelectorAll(".scroll").forEach((scroller, index) => { scroller.scrollTop = tops[index] ?? 0; });
  if (isScroller) part.querySelector(".scroll")?.focus({ preventScroll: true });
}

/** Return a table, or a note where it is empty. Roles are given, since a card's layout would hide them. */
export function table(title, names, rows, empty) {
  if (!rows.length) return make("p", { className: "note" }, empty);
  const head = make("tr", { role: "row" }, names.map((name) => make("th", { scope: "col", role: "columnheader" }, name)));
  const body = rows.map((cells) => make("tr", { role: "row" },
    cells.map((cell, index) => make("td", { role: "cell", "data-label": names[index] }, cell ?? "–"))));
  return make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: title }, make("table", { role: "table" }, make("thead", { role: "rowgroup" }, head),
    make("tbody", { role: "rowgroup" }, body)));
}

/** Return names and values as a description list; an absent value leaves its name out. */
export function facts(entries) {
  const known = entries.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return make("dl", {}, known.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

const long = (words) => make("span", { className: "long", title: words ?? "" }, words ?? "–");
const when = (ms) => new Date(ms).toLocaleString([], { dateStyle: "short", timeStyle: "medium" });

export function workerFacts(about, health) {
  const floors = Object.entries(health).filter(([, state]) => state?.floor_bytes !== undefined);
  const { verdict, its_per_second: speed, width_px: width, height_px: height } = about.benchmark;
  const measured = verdict && `${verdict}${speed ? `, ${speed.toPrecision(3)} steps/s at ${width}x${height}` : ""}`;
  return facts([
    ["State", `${health.status}${health.ready ? ", takes jobs" : ", takes no jobs now"}`],
    ["Problems", (health.problems ?? []).join("\n")],
    ["Version", about.version],
    ["Devices", about.devices.map(({ name, memory_bytes: size }) => `${name}${size ? `, ${bytes(size)}` : ""}`).join("\n")],
    ["Checkpoints", `${about.checkpoints.length}`],
    ["An image of the last jobs", about.jobs.seconds_per_file && duration(about.jobs.seconds_per_file)],
    ["Benchmark", measured],
    ...floors.map(([name, state]) => [`Free ${name.replace(/^free_|_bytes$/g, "")}`,
      state.free_bytes === null ? null : `${bytes(state.free_bytes)}${state.low ? `, below its floor of ${bytes(state.floor_bytes)}` : ""}`]),
  ]);
}

export function queueTable({ jobs = [], seconds_per_job: pace, estimated_wait_seconds: wait }, cancel) {
  const rows = jobs.map((job) => [
    job.id,
    job.owner || "–",
    job.status,
    `${job.priority}`,
    make("progress", { max: 100, value: job.percent, ariaLabel: `${job.percent} per cent` }),
    job.estimated_wait_time ? duration(job.estimated_wait_time) : "–",
    cancel(job.id),
  ]);
  const about = `${plural(jobs.length, "job")}, ${pace ? duration(pace) : "–"} a job, a new one would ${wait ? `wait ${duration(wait)}` : "start at once"}`;
  return make("div", {}, make("p", { className: "note" }, about),
    table("Queue", ["Id", "Owner", "Status", "Priority", "Progress", "Wait", ""], rows, "No job waits or runs."));
}

export function jobsTable({ jobs }) {
  const rows = jobs.map((job) => [
    job.id,
    job.owner || "–",
    job.status,
    long([job.modifier, job.title].filter(Boolean).join(": ") || "–"),
    when(job.timings.queued_at_ms),
    job.timings.total_ms ? duration(job.timings.total_ms / 1000) : "–",
    long(job.error ? job.error.message : job.message),
  ]);
  return table("Last jobs", ["Id", "Owner", "Status", "Asked for", "Arrived", "Time", "Message"], rows, "There is none.");
}

export function engineCard(engine) {
  const memory = engine.memory ?? {};
  const device = memory.device ?? {};
  const models = (memory.models ?? []).map((model) => [
    `${model.name} (${model.role})`, bytes(model.loaded_bytes), bytes(model.size_bytes), bytes(model.ram_bytes),
  ]);
  const restarts = Object.entries(engine.restarts).map(([reason, count]) => `${reason} ${count}`).join(", ");
  return make("article", { className: "engine" },
    make("h3", {}, engine.url),
    facts([
      ["State", engine.state],
      ["Running", engine.running ?? "nothing"],
      ["Device", device.name],
      ["Device memory", device.total_bytes ? `${bytes(device.free_bytes)} free of ${bytes(device.total_bytes)}` : null],
      ["Process", engine.memory_bytes ? bytes(engine.memory_bytes) : null],
      ["RAM of models", memory.ram ? bytes(memory.ram.models_bytes) : null],
      ["Restarts", restarts || "none"],
      ["Last loss", engine.last_loss?.message ?? "none"],
    ]),
    table(`Models of ${engine.url}`, ["Model", "Loaded", "Whole", "In RAM"], models, "No model is loaded."));
}

export function deadTable({ counts, webhooks }, redeliver) {
  const rows = webhooks.map((webhook) => [
    webhook.request_id, webhook.url, `${webhook.attempts}`, long(webhook.last_error), redeliver(webhook.id),
  ]);
  const about = Object.entries(counts).map(([state, count]) => `${count} ${state}`).join(", ") || "none yet";
  return make("div", {}, make("p", { className: "note" }, `Webhooks: ${about}`),
    table("Undelivered webhooks", ["Job", "To", "Tries", "Last error", ""], rows, "All webhooks were delivered or are still being tried."));
}
