/** The operator's page: asks the operator's routes again and again, and draws each section from its answer. */

import { Models } from "./admin_models.js";
import { Plots } from "./admin_plots.js";
import { keysTable, packsTable } from "./admin_setup.js";
import { deadTable, engineCard, jobsTable, put, queueTable, workerFacts } from "./admin_tables.js";
import { ask, key } from "./api.js";
import { at, make, plural, show } from "./dom.js";
import { KeyField } from "./key_field.js";

const REFRESH_MS = 3000;
const SLOW_MS = 30_000; // what changes seldom, and costs the engine or the disk a look
const DEAD_SHOWN = 50;
const JOBS_SHOWN = 30;

const keyField = new KeyField(() => refresh());
const plots = new Plots();
const models = new Models(run);
let isAsking = false;
let slowAt = 0;

async function refresh() {
  if (isAsking) return;
  isAsking = true;
  try {
    await refreshFast();
    keyField.hide();
    show(at("problem"), "");
    await plots.refresh();
    if (Date.now() - slowAt >= SLOW_MS) await refreshSlow();
    else if (models.isBusy) await models.refresh();
  } catch (refusal) {
    if (!refusal.needsKey) show(at("problem"), refusal.message);
    else if (keyField.form.hidden) keyField.ask(key.get() ? refusal.message : "");
    if (refusal.needsKey) at("worker").textContent = "";
  } finally {
    isAsking = false;
  }
}

async function refreshFast() {
  const [engines, queue, dead, jobs] = await Promise.all([
    ask("engines"), ask("queue-info"), ask(`webhooks?state=dead&limit=${DEAD_SHOWN}`), lastJobs(),
  ]);
  put(at("queue"), queueTable(queue, (id) => button("Cancel", `Cancel ${id}`, `cancel/${encodeURIComponent(id)}`)));
  put(at("engines"), ...engines.map(engineCard));
  put(at("dead"), deadTable(dead, (id) => button("Deliver now", `Deliver ${id} now`, `webhooks/${encodeURIComponent(id)}/redeliver`)));
  at("jobs-section").hidden = jobs === null;
  if (jobs) put(at("jobs"), jobsTable(jobs));
  const numHealthy = engines.filter((engine) => engine.healthy).length;
  const waiting = (queue.jobs ?? []).length;
  at("worker").replaceChildren(...[`${numHealthy} of ${plural(engines.length, "engine")} up`, plural(waiting, "job")]
    .map((fact) => make("span", {}, fact)));
}

async function refreshSlow() {
  slowAt = Date.now();
  const health = ask("health").catch((refusal) => ({ status: refusal.message }));
  const [about, packs, keys] = await Promise.all([ask("worker"), ask("packs"), ask("keys"), models.refresh()]);
  put(at("about"), workerFacts(about, await health));
  put(at("packs"), packsTable(packs));
  put(at("keys"), keysTable(keys));
}

/** Return the newest jobs on disk; null from a worker that does not list them. */
async function lastJobs() {
  const state = at("jobs-state").value;
  const query = new URLSearchParams({ limit: JOBS_SHOWN, details: true, ...(state ? { state } : {}) });
  return ask(`jobs?${query}`).catch((refusal) => {
    if (refusal.status === 404) return null;
    throw refusal;
  });
}

/** Do something for the operator, and show the page anew; what is refused is said at its top. */
async function run(act) {
  await act().catch((refusal) => {
    show(at("problem"), refusal.message);
    at("problem").scrollIntoView({ block: "nearest" });
  });
  refresh();
}

function button(words, ariaLabel, path) {
  const element = make("button", { type: "button", ariaLabel }, words);
  element.addEventListener("click", () => {
    element.disabled = true;
    element.blur();
    run(() => ask(path, { method: "POST" }));
  });
  return element;
}

at("jobs-state").addEventListener("change", refresh);
setInterval(() => document.hidden || refresh(), REFRESH_MS);
refresh();
