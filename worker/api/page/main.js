/** The page that draws: a form for whatever the worker runs, and a gallery of what came of it. */

import { at, show } from "./dom.js";
import { Gallery } from "./gallery.js";
import { Head } from "./head.js";
import { KeyField } from "./key_field.js";
import { Panel } from "./panel.js";
import { recipeOfModifier } from "./recipes.js";
import { Sender } from "./sender.js";
import { Viewer } from "./viewer.js";

const gallery = new Gallery(at("gallery"), {
  onOpen: (card) => viewer.open(card),
  onChange: () => (at("empty").hidden = gallery.cards.length > 0),
  onSend: (card) => sender.send(card),
});
const viewer = new Viewer(at("viewer"), {
  onAgain: (entry) => again(entry),
  onUse: (entry) => use(entry),
  onForget: (_entry, card) => gallery.remove(card),
  beside: (card, step) => gallery.beside(card, step),
});
const head = new Head(new KeyField(() => start()), () => readWorker());
const panel = new Panel({
  onSubmit: (recipe, values, files) => sender.submit(recipe, values, files),
  onRefusal: complain,
  onRecipe: () => {},
});
const sender = new Sender(gallery, { onRefusal: complain, onEnd: () => head.readAgain() });

async function start() {
  show(at("problem"), "");
  await readWorker();
  await gallery.recall();
}

/** Read what the worker has. Where it does not answer, the head says so until it does. */
async function readWorker() {
  await Promise.all([head.read(), panel.read()]).catch((refusal) => {
    if (refusal.isUnreachable) head.showDown();
    else complain(refusal);
  });
}

function complain(refusal) {
  if (refusal.needsKey) head.keyField.ask(refusal.message);
  panel.complain(refusal);
}

/** Return what a card ran: as it was sent in this tab, else by its modifier. */
function sentOf(entry) {
  const sent = sender.sent.get(entry.id);
  const modifier = panel.modifiers.get(entry.modifier);
  if (!sent && !modifier) throw new Error(`${entry.modifier}: choose the workflow once more.`);
  return sent ?? { recipe: recipeOfModifier(modifier), values: entry.modifications, files: {} };
}

/** Draw once more with other seeds. */
async function again(entry) {
  const { recipe, values, files } = sentOf(entry);
  const seeds = new Set(recipe.fields.filter((field) => field.isSeed).map((field) => field.name));
  const lacks = recipe.fields.some((field) => field.isRequired && !(field.name in values) && !(field.name in files));
  await panel.open(recipe, Object.fromEntries(Object.entries(values).filter(([name]) => !seeds.has(name))));
  for (const name of seeds) panel.form.fill({ [name]: "" });
  panel.form.choose(files);
  if (lacks) return show(at("problem"), "Choose the image once more: the browser keeps none.");
  return panel.submit();
}

function use(entry) {
  const { recipe, values, files } = sentOf(entry);
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
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !at("viewer").open) at("form").requestSubmit();
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
