/** A request as a program: what is in the form, for curl, Python and JavaScript, with their standard libraries alone. */

import { key } from "./api.js";
import { inputOfRecipe } from "./recipes.js";

const WORKFLOW_FILE = "workflow.json";
const WEBHOOK = { url: "https://example.com/done", secret: "a secret that both know" };
const S3 = {
  endpoint_url: "https://s3.example.com", region: "eu-west-1", bucket_name: "images",
  access_key_id: "...", secret_access_key: "...",
};

/** A part of a request that a program makes by itself: its expression in each language. */
class Expression {
  constructor(words) {
    this.words = words;
  }
}

const workflowFile = new Expression({
  curl: `$(cat ${WORKFLOW_FILE})`,
  python: `json.load(open("${WORKFLOW_FILE}"))`,
  javascript: `JSON.parse(await readFile("${WORKFLOW_FILE}", "utf8"))`,
});

/** Return the expression of a file as a data URI; it lies beside the program. */
function fileExpression({ name, type }) {
  const start = `data:${type || "application/octet-stream"};base64,`;
  const plain = name.replace(/["'\\$`]/g, "_");
  return new Expression({
    curl: `"${start}$(base64 -w0 "${plain}")"`,
    python: `"${start}" + base64.b64encode(open("${plain}", "rb").read()).decode()`,
    javascript: `"${start}" + (await readFile("${plain}")).toString("base64")`,
  });
}

const CONSTANTS = { python: { true: "True", false: "False", null: "None" } };

/** Return a value as text of a language. JSON is JavaScript, and Python but for three words. */
function textOf(value, language, indent) {
  if (value instanceof Expression) return value.words[language];
  if (value === null || typeof value !== "object") {
    const text = JSON.stringify(value);
    if (language !== "curl") return CONSTANTS[language]?.[text] ?? text;
    return text.replace(/[\\$`]/g, "\\$&"); // within a here-document
  }
  const inner = `${indent}  `;
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const items = Array.isArray(value)
    ? value.map((item) => textOf(item, language, inner))
    : Object.entries(value).map(([name, item]) => `${textOf(name, language, inner)}: ${textOf(item, language, inner)}`);
  return items.length ? `${open}\n${items.map((item) => inner + item).join(",\n")}\n${indent}${close}` : open + close;
}

/** Return a recipe's workflow as the text of the file that its programs read; null for one that needs none. */
export function workflowText({ base, document, prompt }) {
  if (!base.workflow_json) return null;
  const isText = typeof document === "string" && document.trimStart().startsWith("{");
  return isText ? document : JSON.stringify(prompt, null, 2);
}

/** Return the program of a request. `files` are those that were chosen, by field. */
export function codeOf(language, recipe, values, files, { hasWebhook, hasS3 }) {
  const parts = Object.fromEntries(Object.entries(files).map(([name, file]) => [name, fileExpression(file)]));
  const input = {
    ...inputOfRecipe(recipe, values, parts),
    ...(recipe.base.workflow_json && { workflow_json: workflowFile }),
    ...(hasWebhook && { webhook: WEBHOOK }),
    ...(hasS3 && { s3: S3 }),
  };
  const path = hasWebhook ? "generate" : "generate/sync";
  const address = new URL(path, location.href.split("#")[0]).href;
  return PROGRAMS[language](address, textOf({ input }, language, ""), { hasKey: Boolean(key.get()), hasWebhook });
}

const PROGRAMS = {
  curl: (address, body, { hasKey }) => `curl -s ${address} \\
${hasKey ? "  -H \"Authorization: Bearer $DARKROOM_KEY\" \\\n" : ""}  -H 'Content-Type: application/json' --data-binary @- <<JSON
${body}
JSON
`,
  python: (address, body, { hasKey, hasWebhook }) => `import base64
import json
import os
import urllib.request

body = ${body}
headers = {"Content-Type": "application/json"}
${hasKey ? "headers[\"Authorization\"] = \"Bearer \" + os.environ[\"DARKROOM_KEY\"]\n" : ""}request = urllib.request.Request("${address}", json.dumps(body).encode(), headers)
with urllib.request.urlopen(request) as reply:
    result = json.load(reply)
print(result["id"], result["status"])
${hasWebhook ? "" : `for output in result["output"]:
    urllib.request.urlretrieve(output["url"], output["filename"])
    print(output["filename"])
`}`,
  javascript: (address, body, { hasKey, hasWebhook }) => `import { readFile, writeFile } from "node:fs/promises";

const body = ${body};
const headers = { "Content-Type": "application/json" };
${hasKey ? "headers.Authorization = `Bearer ${process.env.DARKROOM_KEY}`;\n" : ""}const reply = await fetch("${address}", { method: "POST", headers, body: JSON.stringify(body) });
const result = await reply.json();
if (!reply.ok) throw new Error(result.message);
console.log(result.id, result.status);
${hasWebhook ? "" : `for (const output of result.output) {
  const file = await fetch(output.url);
  await writeFile(output.filename, Buffer.from(await file.arrayBuffer()));
  console.log(output.filename);
}
`}`,
};
