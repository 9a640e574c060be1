/** A form of fields (`fields.js`): what was filled in, and the problems at their fields. */

import { browseButton } from "./browse.js";
import { inputOf, randomSeed, valueOf, withDie } from "./controls.js";
import { make } from "./dom.js";
import { RANDOM } from "./fields.js";
import { ImageField } from "./image_field.js";

const PREFIXES = /^input\.(modifications|overrides|inputs)\./;

/** The controls of one form. `values` and `files` are what a request has of them. */
export class SchemaForm {
  constructor(name, fields) {
    this.name = name;
    this.fields = fields;
    this.controls = new Map();
    const main = fields.filter((field) => field.isMain);
    const rest = fields.filter((field) => !field.isMain);
    this.more = make("details", {}, make("summary", {}, `More (${rest.length})`), this.#groups(rest));
    this.element = make("div", {}, this.#grid(main), rest.length ? this.more : null);
  }

  /** Return the fields below the titles of their nodes. */
  #groups(fields) {
    const groups = Map.groupBy ? Map.groupBy(fields, (field) => field.group) : grouped(fields);
    return [...groups].map(([title, found]) =>
      title ? make("fieldset", {}, make("legend", {}, title), this.#grid(found)) : this.#grid(found));
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
    if (field.media && field.initial) control.fill(field.initial);
    const isWide = field.media || field.isText || field.isList;
    const label = make("label", { htmlFor: id, title: field.about }, field.label, field.isRequired ? " *" : "");
    const shown = control instanceof ImageField ? control.element : field.isSeed ? withDie(control) : withBrowser(field, control);
    return make("div", { className: isWide ? "field wide" : "field" }, label, shown, note);
  }

  /** Fill the controls; names that the form does not have are skipped. */
  fill(values) {
    for (const [name, value] of Object.entries(values)) {
      const { control, field } = this.controls.get(name) ?? {};
      if (control instanceof ImageField) control.fill(value);
      else if (control?.type === "checkbox") control.checked = Boolean(value);
      else if (control) control.value = value === RANDOM ? "" : typeof value === "object" ? JSON.stringify(value) : value;
      if (control && !field.isMain && value !== field.initial) this.more.open = true;
    }
  }

  /** Return the values that differ from the initial ones: every seed is drawn here, so that the page can name it,
   * unless `seed()` gives another value for empty ones. Images are left out. */
  values(seed = randomSeed) {
    const found = {};
    for (const [name, { field, control }] of this.controls) {
      if (control instanceof ImageField) {
        if (control.address && control.address !== String(field.initial)) found[name] = control.address;
      } else if (field.isBoolean) {
        if (control.checked !== Boolean(field.initial)) found[name] = control.checked;
      } else {
        const text = field.isText && field.keepsEmpty ? control.value : control.value.trim();
        if (field.isSeed && text === "") found[name] = seed();
        else if (isChanged(field, text)) found[name] = valueOf(field, text);
      }
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

  /** Put files into their fields. */
  choose(files) {
    for (const [name, file] of Object.entries(files)) this.controls.get(name)?.control.choose?.(file);
  }

  /** Empty the seeds that are still the workflow's, so that the next run has another one. */
  rollSeeds() {
    for (const { field, control } of this.controls.values()) {
      if (field.isSeed && control.value === String(field.initial)) control.value = "";
    }
  }

  /** Mark the fields that problems name, and move to the first. Returns the problems of no field. */
  mark(problems) {
    const others = [];
    let first = null;
    for (const problem of problems) {
      const name = this.#named(problem);
      if (name === null) others.push(problem);
      else first = this.#complain(name, problem.message) ?? first ?? name;
    }
    const { input, field } = this.controls.get(first) ?? {};
    if (field && !field.isMain) this.more.open = true;
    input?.focus();
    return others;
  }

  #named(problem) {
    const name = (problem.field ?? "").replace(PREFIXES, "");
    const names = [name, name.split(".")[0], `${problem.node_id}.${problem.field}`];
    return names.find((one) => this.controls.has(one)) ?? null;
  }

  /** Return the problems that can be seen without the worker: required fields that are empty. */
  missing() {
    const isEmpty = ({ control }) =>
      control instanceof ImageField ? !control.file && !control.address : control.value.trim() === "";
    return [...this.controls.values()]
      .filter((entry) => entry.field.isRequired && isEmpty(entry))
      .map(({ field }) => ({ field: `input.modifications.${field.name}`, message: `${field.label} is needed.` }));
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

/** Return true for a text that differs from the initial one, or that a request names in any case. */
function isChanged(field, text) {
  if (field.keepsEmpty) return text !== String(field.initial).replaceAll("\r\n", "\n") && (text !== "" || field.isText || !field.isNumber);
  return text !== "" && (field.isSeed || field.isText || text !== String(field.initial));
}

function grouped(fields) {
  const groups = new Map();
  for (const field of fields) groups.set(field.group, [...(groups.get(field.group) ?? []), field]);
  return groups;
}

/** Return a list of model files with the button that shows their images. */
function withBrowser(field, control) {
  return field.folder && field.choices.length ? make("div", { className: "joined" }, control, browseButton(field, control)) : control;
}
