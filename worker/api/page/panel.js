/** The panel with the form: what is to be made is chosen, filled in, and sent. */

import { ask } from "./api.js";
import { showCode } from "./code_dialog.js";
import { at, make, show } from "./dom.js";
import { RANDOM } from "./fields.js";
import { ImageField } from "./image_field.js";
import { PlanNote } from "./plan_note.js";
import { recipeOfModifier, recipeOfStored, recipeOfWorkflow } from "./recipes.js";
import { showSave } from "./save_dialog.js";
import { SchemaForm } from "./schema_form.js";

export const WORKFLOW = "A workflow file";
const STORED = "stored:";
const EXAMPLE = "example:";
const FILES = "application/json,image/*,video/mp4,.json,.flac,.glb";
const LARGEST_BYTES = 32 * 2 ** 20;

export class Panel {
  /** `onSubmit(recipe, values, files)` is called with what is to be run, `onRefusal(refusal)` with what went wrong;
   * `isOperator()` says whether the visitor may store workflows. */
  constructor({ onSubmit, onRefusal, isOperator }) {
    Object.assign(this, { onSubmit, onRefusal, isOperator });
    this.key = null; // of what was chosen last, with a recipe once it is there
    this.wanted = new URLSearchParams(location.hash.slice(1)).get("modifier"); // what the address names, until it is there
    this.recipe = null;
    this.form = null;
    this.modifiers = new Map();
    this.examples = new Map();
    this.number = 0; // of the last choice: a slow answer to an older one is dropped
    this.plan = new PlanNote(at("cost"), at("lacks"), isOperator, () => this.#again().catch(onRefusal));
    this.picker = new ImageField({ media: FILES }, "field-workflow");
    this.picker.input.addEventListener("input", (event) => {
      event.stopPropagation();
      this.#openFile().catch(onRefusal);
    });
    at("modifier").addEventListener("change", () => this.choose(at("modifier").value).catch(onRefusal));
    at("reset").addEventListener("click", () => this.recipe && this.open(this.recipe, this.recipe.example));
    at("code").addEventListener("click", () => {
      if (this.form) showCode(at("program"), this.recipe, this.form.values(() => RANDOM), this.form.files());
    });
    at("save").addEventListener("click", () => {
      const values = this.form.values(() => undefined);
      showSave(at("program"), this.recipe, definite(values), (name) => this.#saved(name).catch(onRefusal));
    });
    at("fields").addEventListener("input", () => this.#look());
  }

  /** Read what can be chosen. What was typed stays. */
  async read() {
    const [modifiers, stored, examples] = await Promise.all([
      ask("modifiers"),
      ask("workflows").then((found) => found.workflows, () => []),
      this.examples.size ? [] : ask("page/examples.json").catch(() => []),
    ]);
    this.modifiers = new Map(modifiers.filter((item) => item.schema).map((item) => [item.name, item]));
    for (const example of examples) this.examples.set(example.name, example);
    this.stored = stored.map((item) => item.name);
    const option = (value, words = value) => make("option", { value }, words);
    const group = (label, options) => (options.length ? make("optgroup", { label }, options) : null);
    at("modifier").replaceChildren(...[
      group("Ready-made", [...this.modifiers.keys()].map((name) => option(name))),
      group("Yours", [option(WORKFLOW), ...this.stored.map((name) => option(STORED + name, name))]),
      group("Examples", [...this.examples.keys()].map((name) => option(EXAMPLE + name, name))),
    ].filter(Boolean));
    const { wanted } = this;
    if (this.#has(wanted)) await this.choose(wanted);
    else if (this.recipe || this.key === WORKFLOW) at("modifier").value = this.key;
    else await this.choose(this.modifiers.keys().next().value ?? WORKFLOW, null, wanted);
  }

  #has(key) {
    return key && [...at("modifier").options].some((option) => option.value === key);
  }

  /** Show the form of a choice; `values` fill it. `wanted` is what takes its place once the worker shows it. */
  async choose(key, values = null, wanted = null) {
    this.wanted = wanted;
    this.number += 1;
    const number = this.number;
    this.key = at("modifier").value = key;
    if (key === WORKFLOW) {
      this.#begin("Drop a workflow here: a file of ComfyUI's page or its API format, or an image that carries one.");
      at("fields").replaceChildren(this.#fileRow());
      return this.picker.fill("");
    }
    const recipe = await this.#recipe(key);
    if (number === this.number) this.open(recipe, values ?? recipe.values ?? this.#carried(recipe));
  }

  #recipe(key) {
    if (key.startsWith(STORED)) return recipeOfStored(key, key.slice(STORED.length));
    const example = this.examples.get(key.slice(EXAMPLE.length));
    if (key.startsWith(EXAMPLE)) return recipeOfWorkflow(key, example.name, JSON.stringify(example.workflow), example.about);
    return recipeOfModifier(this.modifiers.get(key));
  }

  /** Return the values that a modifier's form begins with: its example's prompt, or what was typed in the last one. */
  #carried(recipe) {
    if (recipe.prompt || recipe.valuesIn !== "modifications") return {};
    const { prompt, negative_prompt } = this.recipe?.valuesIn === "modifications" ? this.form.values() : {};
    return prompt ? { prompt, negative_prompt: negative_prompt ?? "" } : { prompt: recipe.example.prompt ?? "" };
  }

  #begin(about) {
    this.recipe = this.form = null;
    at("save").hidden = true;
    this.plan.clear();
    show(at("about"), about);
    show(at("problem"), "");
  }

  /** Show a recipe's form with values in it. */
  open(recipe, values = {}) {
    const hasFile = recipe.key === WORKFLOW;
    this.#begin(recipe.about);
    this.recipe = recipe;
    this.form = new SchemaForm(recipe.label, recipe.fields);
    this.key = at("modifier").value = recipe.key;
    at("fields").replaceChildren(...(hasFile ? [this.#fileRow()] : []), this.form.element);
    this.form.fill(values);
    at("save").hidden = !(this.isOperator() && recipe.document);
    history.replaceState(null, "", `#${new URLSearchParams({ modifier: recipe.key })}`);
    this.#look();
  }

  /** Show a workflow that was just stored, by its new form. */
  async #saved(name) {
    await this.read();
    await this.choose(STORED + name);
  }

  #fileRow() {
    const label = make("label", { htmlFor: "field-workflow" }, "File *");
    return make("div", { className: "field wide" }, label, this.picker.element);
  }

  /** Take a file that was dropped or pasted beside the fields: an image for the form, else a workflow. */
  async take(file, isInput = false) {
    const isJson = /json/.test(file.type) || /\.json$/i.test(file.name);
    const field = isJson ? null : [...(this.form?.controls.values() ?? [])].find((entry) => entry.field.media);
    at("form").scrollIntoView({ block: "nearest" });
    if (field) return field.control.choose(file);
    if (isInput) throw new Error("Choose something that takes a file first, such as Image2Image; then use it as input.");
    await this.choose(WORKFLOW);
    return this.picker.choose(file);
  }

  async #openFile() {
    const { file } = this.picker;
    this.number += 1;
    const number = this.number;
    if (!file) return;
    this.#begin("");
    at("fields").replaceChildren(this.#fileRow());
    if (file.size > LARGEST_BYTES) return show(at("problem"), `${file.name} is larger than 32 MiB.`);
    const workflow = await textOf(file);
    if (number !== this.number) return;
    try {
      const recipe = await recipeOfWorkflow(WORKFLOW, file.name, workflow);
      if (number === this.number) this.open(recipe);
    } catch (refusal) {
      if (number !== this.number) return;
      this.onRefusal(refusal);
      await this.plan.lookAtDocument(workflow);
    }
  }

  /** Read the form anew, with the models that came; what was filled in stays. */
  async #again() {
    const { recipe, form } = this;
    if (!recipe) return this.picker.file && this.#openFile();
    const [values, files] = [form.values(() => RANDOM), form.files()];
    const fresh = recipe.prompt ? await recipeOfWorkflow(recipe.key, recipe.label, JSON.stringify(recipe.prompt), recipe.about) : recipe;
    if (this.recipe !== recipe) return;
    this.open(fresh, values);
    this.form.choose(files);
  }

  #look() {
    if (!this.recipe) return;
    if (this.form.missing().length) return this.plan.clear();
    this.plan.look(this.recipe, this.form.values(), Object.keys(this.form.files()));
  }

  /** Check the form, and pass on what is to be run. */
  async submit() {
    show(at("problem"), "");
    if (!this.form) return show(at("problem"), "Choose a workflow file.");
    this.form.clearProblems();
    const missing = this.form.missing();
    if (missing.length) return show(at("problem"), this.form.mark(missing).map((problem) => problem.message).join("\n"));
    const submitted = this.onSubmit(this.recipe, this.form.values(), this.form.files());
    this.form.rollSeeds();
    return submitted;
  }

  /** Show a refusal, at its fields where it names them. */
  complain(refusal) {
    const others = refusal.problems?.length && this.form ? this.form.mark(refusal.problems) : null;
    const isMarked = others && !others.length;
    show(at("problem"), isMarked ? "Something in the form is wrong; see the marked fields." : refusal.message);
  }
}

/** Return the values without those of empty seeds, for which the workflow's own stay. */
const definite = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined));

/** Return a workflow's JSON text, or the file in base64 that carries it. */
async function textOf(file) {
  if (/json/.test(file.type) || /\.json$/i.test(file.name)) return file.text();
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(file);
  });
}
