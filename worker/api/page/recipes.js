/** What a form can run, by one shape: `base` is its part of a request, and the values go into the field `valuesIn`.
 *
 * A modifier, a workflow in a file, an image or an example, and a workflow that the worker keeps under a name. Only
 * workflows have a `prompt` (API format), with which their cost is asked.
 */

import { ask } from "./api.js";
import { fieldsOfForm, fieldsOfModifier, fieldsOfStored } from "./fields.js";

export const recipeOfModifier = (modifier) => ({
  key: modifier.name,
  label: modifier.name,
  about: modifier.description ?? "",
  example: modifier.example ?? {},
  base: { modifier: modifier.name },
  valuesIn: "modifications",
  fields: fieldsOfModifier(modifier),
});

/** Return the recipe of a workflow: its JSON text, or an image that carries it as a data URI. Throws Refusal. */
export async function recipeOfWorkflow(key, label, workflow, about = "") {
  const form = await ask("form", { method: "POST", body: { workflow_json: workflow } });
  return workflowRecipe({ key, label, about, form, base: { workflow_json: workflow } });
}

/** Return the recipe of a job that the worker keeps. Files that came with its request are to be chosen anew. */
export async function recipeOfJob(key, id) {
  const job = await ask(`jobs/${encodeURIComponent(id)}`);
  if (!job.workflow_json) return recipeOfStored(key, job.parameters.workflow);
  const nodes = Object.entries(job.workflow_json).map(([node, entry]) => [node, { ...entry, inputs: withoutFiles(entry.inputs) }]);
  return recipeOfWorkflow(key, job.title || job.modifier || id, JSON.stringify(Object.fromEntries(nodes)));
}

const withoutFiles = (inputs = {}) =>
  Object.fromEntries(Object.entries(inputs).map(([name, value]) => [name, /^(upload:|darkroom\/)/.test(value) ? "" : value]));

/** Return the recipe of a stored workflow. Its document is for operators; others get its named inputs. Throws Refusal. */
export async function recipeOfStored(key, name) {
  const stored = await ask(`workflows/${encodeURIComponent(name)}`);
  const about = [stored.description, `Version ${stored.version}`].filter(Boolean).join("\n");
  const base = { workflow: name };
  if (!stored.workflow_json) return { key, label: name, about, base, valuesIn: "inputs", fields: fieldsOfStored(stored), example: {} };
  const form = await ask("form", { method: "POST", body: { workflow_json: stored.workflow_json } });
  return workflowRecipe({ key, label: name, about, form, base, named: stored.inputs, document: stored.workflow_json });
}

function workflowRecipe({ key, label, about, form, base, named = {}, document = base.workflow_json }) {
  const left = form.num_left_out ? `\n${form.num_left_out} further inputs are not shown.` : "";
  return {
    key, label, base, document, example: {}, valuesIn: "overrides",
    about: `${about}${left}`.trim(),
    prompt: form.workflow_json,
    fields: fieldsOfForm(form, named),
  };
}

/** Return a recipe's `input` of a request. `parts` are the names of files that are sent beside it, by field. */
export const inputOfRecipe = (recipe, values, parts = {}) => ({ ...recipe.base, [recipe.valuesIn]: spread(recipe, { ...values, ...parts }) });

/** Return the values with those of fields that stand for several inputs at each of them. */
function spread(recipe, values) {
  const all = { ...values };
  for (const { name, also } of recipe.fields) {
    if (name in values) for (const other of also ?? []) all[other] = values[name];
  }
  return all;
}

/** Return a recipe's prompt with the values in it. */
export function promptWith(recipe, values) {
  const prompt = { ...recipe.prompt };
  for (const [target, value] of Object.entries(spread(recipe, values))) {
    const dot = target.indexOf(".", target.indexOf(":") + 1); // ids of nodes have none
    const [id, name] = [target.slice(0, dot), target.slice(dot + 1)];
    if (prompt[id]) prompt[id] = { ...prompt[id], inputs: { ...prompt[id].inputs, [name]: value } };
  }
  return prompt;
}

/** Return the words by which people know a job: its prompt, else the recipe's name. */
export function titleOf(recipe, values) {
  const isPrompt = ({ name, role }) => role === "prompt" || ["prompt", "subject"].includes(name);
  const field = recipe.fields.find(isPrompt);
  const text = field ? String(values[field.name] ?? field.initial).trim() : "";
  return text.slice(0, 300) || recipe.label;
}
