/** The fields of a form: what a modifier's JSON schema, or the inputs of a workflow's nodes, ask for. */

export const RANDOM = "__RANDOM_INT__";

const MAIN = ["prompt", "negative_prompt", "width", "height", "steps", "seed", "ckpt_name"];
const WORDS = { ckpt: "checkpoint", cfg: "CFG", clip: "CLIP", controlnet: "ControlNet", lora: "LoRA", unet: "UNet", vae: "VAE" };

/** Return a parameter's name in words: `ckpt_name` is "Checkpoint". */
function labelOf(name) {
  const words = name.replace(/(.)_name$/, "$1").split(/[_ ]/).map((word) => WORDS[word.toLowerCase()] ?? word);
  return words.join(" ").replace(/^./, (letter) => letter.toUpperCase());
}

/** Return the facts of a property that a control needs. */
function described(name, property, isRequired = false) {
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
    isText: !isNumber && (property.isMultiline || /(^|_)(prompt|text)$|^(subject|description)$/.test(name)),
    mayBeJson: types.has("array") || types.has("object") || kinds.some((kind) => kind.$ref),
    media: property.contentMediaType ?? null,
    minimum: first("minimum"),
    maximum: first("maximum"),
    step: property.step,
    initial: property.default === RANDOM ? "" : (property.default ?? ""),
    group: "",
    isMain: true,
  };
}

/** Return the fields of a modifier: images and prompts first, most others folded. */
export function fieldsOfModifier({ schema }) {
  const required = new Set(schema.required ?? []);
  const fields = Object.entries(schema.properties).map(([name, property]) => described(name, property, required.has(name)));
  for (const field of fields) field.isMain = Boolean(field.isRequired || field.media || MAIN.includes(field.name));
  const order = (field) => (field.media ? 0 : 1 + (MAIN.indexOf(field.name) + 1 || 99));
  const main = fields.filter((field) => field.isMain).sort((one, other) => order(one) - order(other));
  return [...main, ...fields.filter((field) => !field.isMain)];
}

/** Return the named inputs of a stored workflow whose document only operators see. */
export const fieldsOfStored = ({ schema }) =>
  Object.entries(schema.properties).map(([name, property]) => ({ ...described(name, property), keepsEmpty: true }));

/** Return the fields of a workflow's form; `named` are the inputs with which it was stored, by name. */
export function fieldsOfForm({ fields, choices }, named = {}) {
  const names = Object.entries(named).map(([name, { into }]) => [into[0], name]);
  const chosen = new Map(names);
  const found = fields.map((item) => ({
    ...described(item.target, item.schema),
    label: chosen.get(item.target) ?? labelOf(item.label),
    about: `${item.title}: ${item.input}${item.schema.description ? `\n${item.schema.description}` : ""}`,
    choices: choices[item.choices] ?? [],
    isList: Boolean(item.choices || item.folder),
    folder: item.folder,
    isText: Boolean(item.schema.isMultiline),
    group: item.title,
    isMain: names.length ? chosen.has(item.target) : item.is_main,
    role: item.role,
    isRequired: Boolean(item.schema.contentMediaType) && item.schema.default === "",
    also: item.also,
    keepsEmpty: true,
  }));
  const order = [...chosen.keys()];
  const main = found.filter((field) => field.isMain);
  if (order.length) main.sort((one, other) => order.indexOf(one.name) - order.indexOf(other.name));
  tell(main);
  return [...main, ...found.filter((field) => !field.isMain)];
}

/** Add the node's title to labels that would be the same. */
function tell(fields) {
  const count = (label) => fields.filter((field) => field.label === label).length;
  const same = fields.filter((field) => count(field.label) > 1);
  for (const field of same) field.label = `${field.label} (${field.group})`;
}
