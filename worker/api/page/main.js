/** The page that draws: a form for each modifier, and a gallery of what came of it. */

import { ask, key } from "./api.js";
import { at, bytes, duration, make, plural, show } from "./dom.js";
import { Gallery } from "./gallery.js";
import { KeyField } from "./key_field.js";
import { SchemaForm } from "./schema_form.js";
import { Viewer } from "./viewer.js";
import { WORKFLOW, WorkflowForm } from "./workflow_form.js";

const QUEUE_MS = 5000;
const SENT = new Map(); // the files of the jobs of this tab, which the storage does not keep

const modifiers = new Map();
let form = null;

const gallery = new Gallery(at("gallery"), {
  onOpen: (card) => viewer.open(card),
  onChange: () => (at("empty").hidden = gallery.cards.length > 0),
  onSend: (card) => send(card),
});
const viewer = new Viewer(at("viewer"), {
  onAgain: (entry) => again(entry),
  onUse: (entry) => use(entry),
  onForget: (_entry, card) => gallery.remove(card),
  beside: (card, step) => gallery.beside(card, step),
});
const keyField = new KeyField(() => start());

let isDown = false;
let isReady = false;

async function start() {
  show(at("problem"), "");
  await readWorker();
  await gallery.recall();
}

/** Read what the worker has. Where it does not answer, the head says so until it does. */
async function readWorker() {
  await Promise.all([showWorker(), readModifiers()]).catch((refusal) => {
    if (refusal.isUnreachable) showDown();
    else complain(refusal);
  });
}

/** Read what the head shows anew; a failure shows at the next look. */
async function readFacts() {
  await showWorker().catch((refusal) => refusal.isUnreachable && showDown());
}

function showDown() {
  isDown = true;
  at("worker").replaceChildren(make("span", { className: "down" }, "The worker does not answer: it is restarting, or not running"));
}

async function showWorker() {
  const worker = await ask("worker");
  const { benchmark, caller, jobs } = worker;
  const card = worker.devices.map(nameOf).join(", ") || "no engine yet";
  const facts = [card];
  if (jobs.seconds_per_file) facts.push(`${duration(jobs.seconds_per_file)} an image, of the last ${plural(jobs.num_jobs, "job")}`);
  facts.push(plural(worker.checkpoints.length, "checkpoint"));
  isReady = worker.is_ready;
  if (!isReady) facts.push("not ready yet");
  at("worker").replaceChildren(...facts.map((fact) => make("span", {}, fact)), make("span", { id: "queue" }));
  at("banner").hidden = !worker.is_demo_only;
  const measured = benchmark.its_per_second
    ? [`benchmark: ${benchmark.its_per_second.toFixed(1)} steps/s of ${benchmark.model} at ${benchmark.width_px}x${benchmark.height_px}`] : [];
  const checkpoints = worker.checkpoints.map((item) => `${item.name}${item.family ? ` (${item.family})` : ""}`);
  at("worker").title = [...checkpoints, ...measured].join("\n");
  if (caller.scopes.includes("submit")) keyField.hide();
  else keyField.ask(key.get() ? "The worker does not accept this key for drawing." : "");
  await showQueue();
}

function nameOf(device) {
  const name = device.name.replace(/^cuda:\d+ /, "").replace(/ : .*$/, "");
  return device.memory_bytes ? `${name} (${bytes(device.memory_bytes)})` : name;
}

/** Show the queue; look what the worker has where it is back after it did not answer. */
async function showQueue() {
  const info = await ask("queue-info").catch((refusal) => {
    if (refusal.isUnreachable) showDown();
    return null;
  });
  if (isDown && info) {
    isDown = false;
    return readWorker();
  }
  if (!info || !at("queue")) return;
  const count = info.preprocess_queue_size + info.generation_queue_size + info.postprocess_queue_size;
  const wait = info.estimated_wait_seconds;
  at("queue").textContent = count ? `${plural(count, "job")}${wait >= 1 ? `, ${duration(wait)} to wait` : ""}` : "idle";
}

async function readModifiers() {
  const found = await ask("modifiers");
  modifiers.clear();
  for (const modifier of found) if (modifier.schema) modifiers.set(modifier.name, modifier);
  const names = [...modifiers.keys(), WORKFLOW];
  at("modifier").replaceChildren(...names.map((value) => make("option", { value }, value)));
  const shown = form?.modifier.name;
  if (shown && (modifiers.has(shown) || shown === WORKFLOW)) at("modifier").value = shown; // what was typed stays
  else choose(new URLSearchParams(location.hash.slice(1)).get("modifier") ?? names[0]);
}

/** Show the form of a modifier, with what both forms have in common taken over. */
function choose(name, values = null) {
  const modifier = modifiers.get(name);
  const before = form instanceof SchemaForm ? form.values() : null;
  form = modifier ? new SchemaForm(modifier) : new WorkflowForm();
  at("modifier").value = form.modifier.name;
  show(at("about"), modifier?.description ?? "Its parameters are those in the file.");
  show(at("problem"), "");
  at("fields").replaceChildren(form.element);
  if (values) form.fill(values);
  else {
    form.fill({ prompt: modifier?.example?.prompt ?? "" });
    const { prompt, negative_prompt } = before ?? {};
    form.fill(prompt ? { prompt, negative_prompt: negative_prompt ?? "" } : {});
  }
  history.replaceState(null, "", `#${new URLSearchParams({ modifier: form.modifier.name })}`);
}

async function draw() {
  form.clearProblems();
  show(at("problem"), "");
  const missing = form.missing();
  if (missing.length) {
    const others = form.mark(missing);
    return show(at("problem"), others.map((problem) => problem.message).join("\n"));
  }
  if (form instanceof WorkflowForm) {
    const workflow = await form.workflow().catch(() => null);
    if (!workflow) return show(at("problem"), "The file is no JSON.");
    return submit({ modifier: WORKFLOW, title: form.name, modifications: {} }, { workflow_json: workflow });
  }
  const modifications = form.values();
  return submit(entryOf(form.modifier.name, modifications), {}, form.files());
}

const entryOf = (modifier, modifications) => ({
  modifier,
  modifications,
  title: modifications.prompt || modifications.subject || modifier,
});

/** Send a request and follow it in the gallery. */
function submit(entry, input, files = {}) {
  entry = { ...entry, id: freshId(), at: Date.now() };
  SENT.set(entry.id, { input, files });
  const card = gallery.add(entry);
  card.element.scrollIntoView({ block: "nearest" });
  return send(card);
}

/** Send the request of a card; sent twice it is still one job, by its id. */
async function send(card) {
  const { entry } = card;
  const { input = {}, files = {} } = SENT.get(entry.id) ?? {};
  const parts = Object.fromEntries(Object.keys(files).map((name) => [name, partOf(name)]));
  const asked = entry.modifier === WORKFLOW ? {} : { modifier: entry.modifier, modifications: { ...entry.modifications, ...parts } };
  const request = { input: { request_id: entry.id, previews: true, ...input, ...asked } };
  try {
    await card.run(Object.keys(files).length ? multipart(request, files) : request);
  } catch (refusal) {
    if (refusal.isUnreachable) card.failUnsent(`Not sent: ${refusal.message}`);
    else if (card.isTaken && refusal.status === 404) card.failUnsent("The worker no longer has this job.");
    else {
      if (card.isTaken) card.fail(refusal.message);
      else gallery.remove(card);
      complain(refusal);
    }
  }
  readFacts();
}

function multipart(request, files) {
  const body = new FormData();
  body.append("input", JSON.stringify(request));
  for (const [name, file] of Object.entries(files)) body.append(partOf(name), file, file.name);
  return body;
}

const partOf = (field) => `page-${field}`; // no name of a file that the worker has

function complain(refusal) {
  if (refusal.needsKey) keyField.ask(refusal.message);
  const others = refusal.problems?.length && form ? form.mark(refusal.problems) : null;
  show(at("problem"), others && !others.length ? "Something in the form is wrong; see the marked fields." : refusal.message);
}

/** Draw once more with another seed; a workflow draws its random values anew by itself. */
function again(entry) {
  const { input = {}, files = {} } = SENT.get(entry.id) ?? {};
  const modifier = modifiers.get(entry.modifier);
  if (!modifier && entry.modifier !== WORKFLOW) return complain(new Error(`The worker has no ${entry.modifier} now.`));
  const form = modifier ? new SchemaForm(modifier) : null;
  const seeds = form ? Object.fromEntries([...form.controls.values()].filter(({ field }) => field.isSeed).map(({ field }) => [field.name, form.values()[field.name]])) : {};
  const { id, ...rest } = entry;
  if (entry.modifier === WORKFLOW && !input.workflow_json) return complain(new Error("Choose the workflow file once more."));
  const lacks = form?.modifier.schema.required?.filter((name) => !(name in entry.modifications) && !(name in files));
  if (lacks?.length) {
    use(entry);
    return show(at("problem"), "Choose the image once more: the browser keeps none.");
  }
  return submit({ ...rest, modifications: { ...entry.modifications, ...seeds } }, input, files);
}

function use(entry) {
  choose(entry.modifier, entry.modifications);
  const { files = {} } = SENT.get(entry.id) ?? {};
  for (const [name, file] of Object.entries(files)) form.controls?.get(name)?.control.choose(file);
  at("form").scrollIntoView({ block: "start" });
}

function freshId() {
  const random = crypto.getRandomValues(new Uint8Array(12)); // randomUUID needs HTTPS
  return `page-${[...random].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  draw().catch(complain);
});
at("modifier").addEventListener("change", () => choose(at("modifier").value));
at("reset").addEventListener("click", () => choose(form.modifier.name, modifiers.get(form.modifier.name)?.example ?? {}));
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !at("viewer").open) at("form").requestSubmit();
});
document.addEventListener("paste", (event) => {
  const [file] = event.clipboardData?.files ?? [];
  const field = [...(form?.controls?.values() ?? [])].find(({ field }) => field.media);
  if (file && field && !event.defaultPrevented) field.control.choose(file);
});
document.addEventListener("dragover", (event) => event.preventDefault()); // a file beside the field opens no other page
document.addEventListener("drop", (event) => event.preventDefault());
async function watch() {
  for (;;) {
    await new Promise((wake) => setTimeout(wake, QUEUE_MS));
    if (!document.hidden) await (isReady || isDown ? showQueue() : readFacts());
  }
}

watch();

start();
