/** What a workflow lacks here, and what it will cost, before it is sent: the answer of `/plan`. */

import { ask } from "./api.js";
import { bytes, duration, make, plural } from "./dom.js";
import { promptWith } from "./recipes.js";

const PAUSE_MS = 500;
const MAX_LISTED = 30;

export class PlanNote {
  /** `cost` is a line beside the button, `lacks` a list above it. */
  constructor(cost, lacks) {
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
    if (!recipe.prompt) return this.clear();
    this.timer = setTimeout(() => this.#ask(promptWith(recipe, values), files), this.estimate ? PAUSE_MS : 0);
  }

  /** Show what a workflow lacks that could not be made a form of. */
  async lookAtDocument(workflow) {
    this.clear();
    await this.#ask(workflow, []);
  }

  async #ask(workflow, files) {
    this.number += 1;
    const number = this.number;
    const plan = await ask("plan", { method: "POST", body: { workflow_json: workflow } }).catch(() => null);
    if (!plan || number !== this.number) return;
    this.estimate = plan.estimate;
    this.cost.textContent = costOf(plan.estimate);
    this.cost.title = plan.estimate.source ?? "";
    this.lacks.replaceChildren(...listOf(plan, new Set(files)));
  }
}

function costOf({ run_seconds: seconds, wait_seconds: wait, price }) {
  const words = seconds ? [`about ${duration(seconds)}`] : ["time unknown"];
  if (wait >= 1) words.push(`after ${duration(wait)}`);
  if (price) words.push(`costs ${price}`);
  return words.join(", ");
}

function listOf(plan, files) {
  const inputs = plan.inputs.filter((item) => !files.has(`${item.node_id}.${item.field}`));
  const lines = [
    ...plan.missing_nodes.map(nodeLine),
    ...plan.models.map(modelLine),
    ...inputs.map((item) => `${item.media === "image" ? "Image" : "File"} ${item.name} is not here: choose one`),
    ...[...plan.limits, ...plan.problems].map((problem) => problem.message),
  ];
  if (!lines.length) return [];
  const size = plan.fetch.bytes ? `, ${bytes(plan.fetch.bytes)}` : "";
  const counts = [
    plan.missing_nodes.length && plural(plan.missing_nodes.length, "node class").replace(/ss(s)$/, "sses"),
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
  return make("span", {}, `${name}: `, make("a", { href: pack.url, target: "_blank", rel: "noopener" }, pack.name));
}

function modelLine({ name, kind, kinds, size_bytes: size, sources, is_fetched: isFetched, licence }) {
  const facts = [kind ?? kinds.join(" or "), size ? bytes(size) : "size unknown", licence].filter(Boolean).join(", ");
  const source = sources[0];
  const link = /^https?:/.test(source ?? "") ? make("a", { href: source, target: "_blank", rel: "noopener" }, source) : (source ?? "");
  return make("span", {}, `${name} (${facts}) `, source ? "from " : "no known source", link, isFetched ? "; Draw fetches it" : "");
}
