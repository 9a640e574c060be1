/** The page that draws: a form for whatever the worker runs, and a gallery of what came of it. */

import { at, show } from "./dom.js";
import { fileOf } from "./downloads.js";
import { Gallery } from "./gallery.js";
import { GalleryBar } from "./gallery_bar.js";
import { Head } from "./head.js";
import { KeyField } from "./key_field.js";
import { Panel, WORKFLOW } from "./panel.js";
import { recipeOfJob, recipeOfModifier } from "./recipes.js";
import { Sender } from "./sender.js";
import { Viewer } from "./viewer.js";

const gallery = new Gallery(at("gallery"), {
  onOpen: (card) => viewer.open(card),
  onChange: () => bar.refresh(),
  onSend: (card) => sender.send(card),
  onSelect: () => bar.refresh(),
});
const bar = new GalleryBar(gallery, complain);
const viewer = new Viewer(at("viewer"), {
  onAgain: again,
  onUse: use,
  onInput: async (output) => panel.take(await fileOf(output), true),
  onDelete: (card) => bar.remove(card),
  onRefusal: complain,
  beside: (card, step) => gallery.beside(card, step),
});
const head = new Head(new KeyField(() => start()), {
  onBack: () => readWorker(),
  onQueue: (jobs) => gallery.takeQueue(jobs),
});
const panel = new Panel({
  onSubmit: (recipe, values, files) => sender.submit(recipe, values, files),
  onRefusal: complain,
  isOperator: () => head.isOperator,
});
const sender = new Sender(gallery, { onRefusal: complain, onEnd: () => head.readAgain() });

async function start() {
  show(at("problem"), "");
  await readWorker();
  await gallery.recall().catch((refusal) => refusal.isUnreachable || complain(refusal));
}

/** Read what the worker has. Where it does not answer, the head says so until it does. */
async function readWorker() {
  try {
    await head.read();
    await panel.read();
  } catch (refusal) {
    if (refusal.isUnreachable) head.showDown();
    else complain(refusal);
  }
}

function complain(refusal) {
  if (refusal.needsKey) head.keyField.ask(refusal.message);
  panel.complain(refusal);
}

/** Return what a card ran: as it was sent in this tab, by its modifier, else by the workflow that the worker keeps. */
async function sentOf({ entry, id }) {
  const modifier = gallery.notes.has(id) ? panel.modifiers.get(entry.modifier) : null;
  if (sender.sent.has(id)) return sender.sent.get(id);
  if (modifier) return { recipe: recipeOfModifier(modifier), values: entry.modifications, files: {} };
  return { recipe: await recipeOfJob(WORKFLOW, id), values: {}, files: {} };
}

/** Draw once more with other seeds. */
async function again(card) {
  const { recipe, values, files } = await sentOf(card);
  const seeds = recipe.fields.filter((field) => field.isSeed).map((field) => [field.name, ""]);
  panel.open(recipe, { ...values, ...Object.fromEntries(seeds) });
  panel.form.choose(files);
  if (panel.form.missing().length) return show(at("problem"), "Choose the image once more: it is no longer here.");
  return panel.submit();
}

async function use(card) {
  const { recipe, values, files } = await sentOf(card);
  panel.open(recipe, values);
  panel.form.choose(files);
  at("form").scrollIntoView({ block: "start" });
}

const guarded = (action) => (...given) => Promise.resolve().then(() => action(...given)).catch(complain);

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  guarded(() => panel.submit())();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !document.querySelector("dialog[open]")) at("form").requestSubmit();
});
document.addEventListener("paste", (event) => {
  const [file] = event.clipboardData?.files ?? [];
  if (file && !event.defaultPrevented) guarded(() => panel.take(file))();
});
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  const [file] = event.dataTransfer?.files ?? [];
  if (file && !event.defaultPrevented) guarded(() => panel.take(file))();
  event.preventDefault(); // a file beside the field opens no other page
});

head.watch();
start();
