/** What a workflow lacks here, and what it will cost, before it is sent: the answer of `/plan`. */

import { ask } from "./api.js";
import { bytes, duration, make, plural } from "./dom.js";
import { Fetching } from "./fetching.js";
import { inputOfRecipe, promptWith } from "./recipes.js";

const PAUSE_MS = 500;
const MAX_LISTED = 30;

export class PlanNote {
  /** `cost` is a line beside the button, `lacks` a list above it; `isOperator()` says whether the visitor may fetch
   * models, `onHere()` is called when they are here. */
  constructor(cost, lacks, isOperator, onHere) {
    this.isOperator = isOperator;
    this.fetching = new Fetching(onHere);
    this.cost = cost;
    this.lacks = lacks;
    this.number = 0;
    this.timer = null;
    this.estimate = null;
  }

  clear() {
    clearTimeout(this.timer);
    this.number += 1;
    this.estimate = null;
    this.cost.textContent = "";
    this.lacks.replaceChildren();
  }

  /** Ask anew after a pause; `files` are the names of fields whose files come with the request. */
  look(recipe, values, files) {
    clearTimeout(this.timer);
    const isModifier = recipe.valuesIn === "modifications";
    if (!recipe.prompt && !isModifier) return this.clear();
    const given = Object.fromEntries(files.map((name) => [name, name]));
    const body = isModifier ? { input: inputOfRecipe(recipe, values, given) } : { workflow_json: promptWith(recipe, values) };
    this.timer = setTimeout(() => this.#ask(body, isModifier ? null : files), this.estimate ? PAUSE_MS : 0);
  }

  /** Show what a workflow lacks that could not be made a form of. */
  async lookAtDocument(workflow) {
    this.clear();
    await this.#ask({ workflow_json: workflow }, []);
  }

  /** Ask for a plan; `files` as for `look`, null where all files come with the request. */
  async #ask(body, files) {
    this.number += 1;
    const number = this.number;
    const plan = await ask("plan", { method: "POST", body }).catch(() => null);
    if (number !== this.number) return;
    if (!plan) return this.clear();
    this.estimate = plan.estimate;
    this.cost.textContent = costOf(plan.estimate);
    this.cost.title = plan.estimate.source ?? "";
    const offer = this.isOperator() ? this.fetching.offer(plan.models) : null;
    this.lacks.replaceChildren(...listOf(plan, files), ...(offer ? [offer] : []));
  }
}

function costOf({ run_seconds: seconds, wait_seconds: wait, price }) {
  const words = seconds ? [`about ${duration(seconds)}`] : ["time unknown"];
  if (wait >= 1) words.push(`after ${duration(wait)}`);
  if (price) words.push(`costs ${price}`);
  return words.join(", ");
}

function listOf(plan, files) {
  const inputs = files ? plan.inputs.filter((item) => !files.includes(`${item.node_id}.${item.field}`)) : [];
  const lines = [
    ...plan.missing_nodes.map(nodeLine),
    ...plan.models.map(modelLine),
    ...inputs.map((item) => `${item.media === "image" ? "Image" : "File"} ${item.name} is not here: choose one`),
    ...[...plan.limits, ...plan.problems].map((problem) => problem.message),
  ];
  if (!lines.length) return [];
  const size = plan.fetch.bytes ? `, ${bytes(plan.fetch.bytes)}` : "";
  const counts = [
    plan.missing_nodes.length && plural(plan.missing_nodes.length, "kind") + " of nodes",
    plan.models.length && `${plural(plan.models.length, "model file")}${size}`,
  ].filter(Boolean);
  const shown = lines.slice(0, MAX_LISTED).map((line) => make("li", {}, line));
  if (lines.length > MAX_LISTED) shown.push(make("li", {}, `… and ${lines.length - MAX_LISTED} more`));
  return [
    make("p", {}, counts.length ? `Missing here: ${counts.join(" and ")}` : "Before it can run:"),
    make("ul", {}, shown),
    plan.summary ? make("p", { className: "command" }, make("code", {}, plan.summary)) : "",
    plan.engine ? make("p", {}, `It would run on the ${plan.engine.name} engine: ${plan.engine.reason}`) : "",
  ].filter(Boolean);
}

function nodeLine({ class_type: name, pack, comfyui }) {
  if (comfyui) return `${name}: ${comfyui.message}`;
  if (!pack) return `${name}: in no pack that is known here`;
  return make("span", {}, `${name}: `, linkTo(pack.url, pack.name));
}

function modelLine({ name, kind, kinds, size_bytes: size, sources, is_fetched: isFetched, licence }) {
  const facts = [kind ?? kinds.join(" or "), size ? bytes(size) : "size unknown", licence].filter(Boolean).join(", ");
  const [source] = sources;
  return make("span", {}, `${name} (${facts}) `, source ? "from " : "no known source", source && linkTo(source, source), isFetched ? "; Draw fetches it" : "");
}

/** Return a link to a web address, and the words alone of any other one: both may come from a workflow. */
const linkTo = (address, words) =>
  /^https?:/.test(address) ? make("a", { href: address, target: "_blank", rel: "noopener" }, words) : words;
