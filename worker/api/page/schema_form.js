/** A form made from a modifier's JSON schema. */

import { make } from "./dom.js";
import { ImageField } from "./image_field.js";

const MAIN = ["prompt", "negative_prompt", "width", "height", "steps", "seed", "ckpt_name"];
const RANDOM = "__RANDOM_INT__";
const MAX_RANDOM = 2 ** 32;

const WORDS = { ckpt: "checkpoint", cfg: "CFG", clip: "CLIP", controlnet: "ControlNet", lora: "LoRA", unet: "UNet", vae: "VAE" };

/** Return a parameter's name in words: `ckpt_name` is "Checkpoint". */
function labelOf(name) {
  const words = name.replace(/(.)_name$/, "$1").split("_").map((word) => WORDS[word] ?? word);
  return words.join(" ").replace(/^./, (letter) => letter.toUpperCase());
}

/** Return the facts of a property that a control needs. */
function described(name, property, isRequired) {
  const kinds = [property, ...(property.anyOf ?? [])];
  const first = (key) => kinds.map((kind) => kind[key]).find((value) => value !== undefined);
  const types = new Set(kinds.map((kind) => kind.type).filter(Boolean));
  const isNumber = types.has("integer") || types.has("number");
  return {
    name,
    isRequired,
    label: labelOf(name),
    about: property.description ?? "",
    choices: first("enum") ?? [],
    isSeed: kinds.some((kind) => kind.const === RANDOM),
    isNumber,
    isWhole: !types.has("number"),
    isBoolean: types.has("boolean"),
    isText: !isNumber && /(^|_)(prompt|text)$|^(subject|description)$/.test(name),
    mayBeJson: types.has("array") || types.has("object") || kinds.some((kind) => kind.$ref),
    media: property.contentMediaType ?? null,
    minimum: first("minimum"),
    maximum: first("maximum"),
    initial: property.default === RANDOM ? "" : (property.default ?? ""),
  };
}

/** The controls of one modifier. `values` and `files` are what a request has of them. */
export class SchemaForm {
  constructor(modifier) {
    this.modifier = modifier;
    this.controls = new Map();
    const required = new Set(modifier.schema.required ?? []);
    const fields = Object.entries(modifier.schema.properties).map(([name, property]) =>
      described(name, property, required.has(name)),
    );
    const isMain = (field) => field.isRequired || field.media || MAIN.includes(field.name);
    const order = (field) => (field.media ? 0 : 1 + (MAIN.indexOf(field.name) + 1 || 99));
    const main = fields.filter(isMain).sort((one, other) => order(one) - order(other));
    const rest = fields.filter((field) => !isMain(field));
    const more = make("details", {}, make("summary", {}, `More (${rest.length})`), this.#grid(rest));
    this.element = make("div", {}, this.#grid(main), rest.length ? more : null);
    this.more = more;
  }

  #grid(fields) {
    return make("div", { className: "grid" }, fields.map((field) => this.#row(field)));
  }

  #row(field) {
    const id = `field-${field.name}`;
    const note = make("p", { className: "note field-problem", id: `${id}-problem`, hidden: true });
    const control = field.media ? new ImageField(field, id) : inputOf(field, id);
    const input = control instanceof ImageField ? control.input : control;
    input.setAttribute("aria-describedby", note.id);
    input.title = field.about;
    input.addEventListener("input", () => this.#complain(field.name, ""));
    this.controls.set(field.name, { field, control, input, note });
    const isWide = field.media || field.isText;
    const label = make("label", { htmlFor: id, title: field.about }, field.label, field.isRequired ? " *" : "");
    return make("div", { className: isWide ? "field wide" : "field" }, label,
      control instanceof ImageField ? control.element : control, note);
  }

  /** Fill the controls; names that the modifier does not have are skipped. */
  fill(values) {
    for (const [name, value] of Object.entries(values)) {
      const { control, field } = this.controls.get(name) ?? {};
      if (control instanceof ImageField) control.fill(value);
      else if (control?.type === "checkbox") control.checked = Boolean(value);
      else if (control) control.value = value === RANDOM ? "" : typeof value === "object" ? JSON.stringify(value) : value;
      if (control && !field.isRequired && !MAIN.includes(name) && value !== field.initial) this.more.open = true;
    }
  }

  /** Return the modifications: every seed is drawn here, so that the page can name it. Images are left out. */
  values() {
    const found = {};
    for (const [name, { field, control }] of this.controls) {
      if (control instanceof ImageField) {
        if (control.address) found[name] = control.address;
        continue;
      }
      if (field.isBoolean) {
        if (control.checked !== Boolean(field.initial)) found[name] = control.checked;
        continue;
      }
      const text = control.value.trim();
      if (field.isSeed) found[name] = text ? numberOf(text) : Math.floor(Math.random() * MAX_RANDOM);
      else if (text !== "" && (field.isText || text !== String(field.initial))) found[name] = valueOf(field, text);
    }
    return found;
  }

  /** Return the images that were chosen, by field. */
  files() {
    const found = {};
    for (const [name, { control }] of this.controls) {
      if (control instanceof ImageField && control.file) found[name] = control.file;
    }
    return found;
  }

  /** Mark the fields that problems name, and move to the first. Returns the problems of no field. */
  mark(problems) {
    const others = [];
    let first = null;
    for (const problem of problems) {
      const name = (problem.field ?? "").replace(/^input\.modifications\./, "").split(".")[0];
      if (!this.controls.has(name)) others.push(problem);
      else first = this.#complain(name, problem.message) ?? first ?? name;
    }
    const { input, field } = this.controls.get(first) ?? {};
    if (field && !field.isRequired && !MAIN.includes(first)) this.more.open = true;
    input?.focus();
    return others;
  }

  /** Return the problems that can be seen without the worker: required fields that are empty. */
  missing() {
    const isEmpty = ({ control }) =>
      control instanceof ImageField ? !control.file && !control.address : control.value.trim() === "";
    return [...this.controls.values()]
      .filter((entry) => entry.field.isRequired && isEmpty(entry))
      .map(({ field }) => ({ field: `input.modifications.${field.name}`, message: "is needed" }));
  }

  clearProblems() {
    for (const name of this.controls.keys()) this.#complain(name, "");
  }

  #complain(name, words) {
    const { input, note } = this.controls.get(name);
    note.textContent = words;
    note.hidden = !words;
    if (words) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }
}

function inputOf(field, id) {
  const shared = { id, name: field.name, required: field.isRequired };
  if (field.isBoolean) return make("input", { ...shared, type: "checkbox", checked: Boolean(field.initial) });
  if (field.choices.length) {
    const known = field.choices.map(String);
    const isKnown = known.includes(String(field.initial));
    const open = make("option", { value: "" }, field.isRequired ? "choose one" : "as suits");
    const options = known.map((value) => make("option", { value }, value));
    const select = make("select", shared, isKnown ? options : [open, ...options]);
    select.value = isKnown ? String(field.initial) : "";
    return select;
  }
  if (field.isText) return make("textarea", { ...shared, rows: field.isRequired ? 3 : 2, value: field.initial });
  if (field.isSeed) return make("input", { ...shared, inputMode: "numeric", placeholder: "random", value: "" });
  if (field.isNumber) {
    const step = field.isWhole ? 1 : "any";
    return make("input", {
      ...shared, type: "number", min: field.minimum, max: field.maximum, step, value: field.initial,
    });
  }
  const initial = typeof field.initial === "object" ? JSON.stringify(field.initial) : field.initial;
  return make("input", { ...shared, type: "text", spellcheck: false, value: initial });
}

function valueOf(field, text) {
  if (field.isNumber) return numberOf(text);
  if (field.mayBeJson && /^[[{]/.test(text)) {
    try {
      return JSON.parse(text);
    } catch {
      return text; // the worker says what is wrong with it
    }
  }
  return text;
}

/** Return a number, or its text where JavaScript would round it. */
function numberOf(text) {
  const number = Number(text);
  return Number.isNaN(number) || Math.abs(number) > Number.MAX_SAFE_INTEGER ? text : number;
}
