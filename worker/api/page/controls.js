/** The control of one field: a list, a number within its range, a seed with a die, a text, a box to tick. */

import { make } from "./dom.js";

const MAX_RANDOM = 2 ** 32;

export const randomSeed = () => Math.floor(Math.random() * MAX_RANDOM);

/** Return the control of a field that takes no file. */
export function inputOf(field, id) {
  const shared = { id, name: field.name, required: field.isRequired };
  if (field.isBoolean) return make("input", { ...shared, type: "checkbox", checked: Boolean(field.initial) });
  if (field.choices.length || field.isList) return listOf(field, shared);
  if (field.isText) return make("textarea", { ...shared, rows: field.isRequired || field.isMain ? 3 : 2, value: field.initial });
  if (field.isSeed) return make("input", { ...shared, inputMode: "numeric", placeholder: "random", value: String(field.initial) });
  if (field.isNumber) {
    const step = field.isWhole ? 1 : "any";
    return make("input", {
      ...shared, type: "number", min: field.minimum, max: field.maximum, step, value: String(field.initial),
    });
  }
  const initial = typeof field.initial === "object" ? JSON.stringify(field.initial) : field.initial;
  return make("input", { ...shared, type: "text", spellcheck: false, value: initial });
}

/** Return a list of choices; a workflow's value that is none of them is shown as missing. */
function listOf(field, shared) {
  const known = field.choices.map(String);
  const initial = String(field.initial);
  const isKnown = known.includes(initial);
  const first = field.isList ? make("option", { value: initial }, initial ? `${initial} (not here)` : "none")
    : make("option", { value: "" }, field.isRequired ? "Choose one" : "Chosen by the worker");
  const options = known.map((value) => make("option", { value }, value));
  const select = make("select", shared, isKnown ? options : [first, ...options]);
  select.value = isKnown || field.isList ? initial : "";
  return select;
}

/** Return a seed's control with its die, which rolls a new number; empty means random at each run. */
export function withDie(input) {
  const roll = () => {
    input.value = String(randomSeed());
    input.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const die = make("button", { type: "button", className: "die", title: "Roll a new seed", ariaLabel: "Roll a new seed", onclick: roll }, "⚄");
  return make("div", { className: "joined" }, input, die);
}

/** Return the value of a control's text, in the type of its field. */
export function valueOf(field, text) {
  const choice = field.choices.find((value) => String(value) === text);
  if (choice !== undefined) return choice;
  if (field.isNumber || field.isSeed) return numberOf(text);
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
