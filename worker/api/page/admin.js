/** The operator's page: queue, engines with their memory, and webhooks that could not be delivered. */

import { Plots } from "./admin_plots.js";
import { ask, key } from "./api.js";
import { at, bytes, duration, make, plural, show } from "./dom.js";
import { KeyField } from "./key_field.js";

const REFRESH_MS = 3000;
const DEAD_SHOWN = 50;
const JOBS_SHOWN = 30;

const keyField = new KeyField(() => refresh());
const plots = new Plots();
let isAsking = false;
let about = null;

async function refresh() {
  if (isAsking) return;
  isAsking = true;
  try {
    const [engines, queue, dead, jobs] = await Promise.all([
      ask("engines"), ask("queue-info"), ask(`webhooks?state=dead&limit=${DEAD_SHOWN}`), lastJobs(),
    ]);
    about ??= await ask("worker"); // its list of checkpoints costs the engine a look at its folders
    keyField.hide();
    show(at("problem"), "");
    const numHealthy = engines.filter((engine) => engine.healthy).length;
    const facts = [
      `version ${about.version}`,
      `${numHealthy} of ${plural(engines.length, "engine")} up`,
      plural(about.checkpoints.length, "checkpoint"),
    ];
    at("worker").replaceChildren(...facts.map((fact) => make("span", {}, fact)));
    at("queue").replaceChildren(queueTable(queue));
    at("engines").replaceChildren(...engines.map(engineCard));
    at("dead").replaceChildren(deadTable(dead));
    at("jobs-section").hidden = jobs === null;
    if (jobs) at("jobs").replaceChildren(jobsTable(jobs));
    await plots.refresh();
  } catch (refusal) {
    if (!refusal.needsKey) show(at("problem"), refusal.message);
    else if (keyField.form.hidden) keyField.ask(key.get() ? refusal.message : "");
    if (refusal.needsKey) at("worker").textContent = "";
  } finally {
    isAsking = false;
  }
}

function table(names, rows, empty) {
  if (!rows.length) return make("p", { className: "note" }, empty);
  const head = make("thead", {}, make("tr", {}, names.map((name) => make("th", { scope: "col" }, name))));
  const body = make("tbody", {}, rows.map((cells) => make("tr", {}, cells.map((cell) => make("td", {}, cell ?? "–")))));
  return make("div", { className: "scroll" }, make("table", {}, head, body));
}

function queueTable({ jobs = [], seconds_per_job: pace, estimated_wait_seconds: wait }) {
  const rows = jobs.map((job) => [
    job.id,
    job.owner || "–",
    job.status,
    `${job.priority}`,
    make("progress", { max: 100, value: job.percent, ariaLabel: `${job.percent} per cent` }),
    job.estimated_wait_time ? duration(job.estimated_wait_time) : "–",
    button("Cancel", () => ask(`cancel/${encodeURIComponent(job.id)}`, { method: "POST" })),
  ]);
  const about = `${plural(jobs.length, "job")}, ${pace ? duration(pace) : "–"} a job, a new one would ${wait ? `wait ${duration(wait)}` : "start at once"}`;
  return make("div", {}, make("p", { className: "note" }, about),
    table(["Id", "Owner", "Status", "Priority", "Progress", "Wait", ""], rows, "No job waits or runs."));
}

/** Return the newest jobs on disk; null from a worker that does not list them. */
async function lastJobs() {
  const state = at("jobs-state").value;
  const query = new URLSearchParams({ limit: JOBS_SHOWN, ...(state ? { state } : {}) });
  return ask(`jobs?${query}`).catch((refusal) => {
    if (refusal.status === 404) return null;
    throw refusal;
  });
}

function jobsTable({ jobs }) {
  const rows = jobs.map((job) => [
    job.id,
    job.owner || "–",
    job.status,
    new Date(job.timings.queued_at_ms).toLocaleString(),
    job.timings.total_ms ? duration(job.timings.total_ms / 1000) : "–",
    job.error ? job.error.message : job.message,
  ]);
  return table(["Id", "Owner", "Status", "Arrived", "Time", "Message"], rows, "There is none.");
}

function engineCard(engine) {
  const memory = engine.memory ?? {};
  const device = memory.device ?? {};
  const models = (memory.models ?? []).map((model) => [
    `${model.name} (${model.role})`, bytes(model.loaded_bytes), bytes(model.size_bytes), bytes(model.ram_bytes),
  ]);
  const restarts = Object.entries(engine.restarts).map(([reason, count]) => `${reason} ${count}`).join(", ");
  const facts = [
    ["State", engine.state],
    ["Running", engine.running ?? "nothing"],
    ["Device", device.name ?? "–"],
    ["Device memory", device.total_bytes ? `${bytes(device.free_bytes)} free of ${bytes(device.total_bytes)}` : "–"],
    ["Process", engine.memory_bytes ? bytes(engine.memory_bytes) : "–"],
    ["RAM of models", memory.ram ? bytes(memory.ram.models_bytes) : "–"],
    ["Restarts", restarts || "none"],
    ["Last loss", engine.last_loss?.message ?? "none"],
  ];
  return make("article", { className: "engine" },
    make("h3", {}, engine.url),
    make("dl", {}, facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
    table(["Model", "Loaded", "Whole", "In RAM"], models, "No model is loaded."));
}

function deadTable({ counts, webhooks }) {
  const rows = webhooks.map((webhook) => [
    webhook.request_id,
    webhook.url,
    `${webhook.attempts}`,
    webhook.last_error,
    button("Deliver now", () => ask(`webhooks/${encodeURIComponent(webhook.id)}/redeliver`, { method: "POST" })),
  ]);
  const about = Object.entries(counts).map(([state, count]) => `${count} ${state}`).join(", ") || "none yet";
  return make("div", {}, make("p", { className: "note" }, `Webhooks: ${about}`),
    table(["Job", "To", "Tries", "Last error", ""], rows, "All webhooks were delivered or are still being tried."));
}

function button(words, act) {
  const element = make("button", { type: "button" }, words);
  element.addEventListener("click", async () => {
    element.disabled = true;
    await act().catch((refusal) => show(at("problem"), refusal.message));
    refresh();
  });
  return element;
}

at("jobs-state").addEventListener("change", refresh);
setInterval(() => document.hidden || refresh(), REFRESH_MS);
refresh();
