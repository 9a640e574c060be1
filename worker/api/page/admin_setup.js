/** Node packs and keys on the operator's page. */

import { bytes, make, plural } from "./dom.js";
import { facts, table } from "./admin_tables.js";

export function packsTable({ packs, problem }) {
  if (packs === null) return make("p", { className: "note" }, "No engine of this worker's own answers.");
  const rows = packs.map((pack) => {
    const failed = Object.entries(pack.failed_nodes).map(([name, reason]) => `${name}: ${reason}`);
    const lacks = pack.missing.length ? [`this engine lacks ${pack.missing.join(", ")}`] : [];
    return [pack.name, pack.status, pack.state ?? "–", `${pack.num_nodes}`, [pack.error, ...lacks, ...failed].filter(Boolean).join("\n") || "–"];
  });
  return make("div", {}, problem && make("p", { className: "problem" }, problem),
    table("Node packs", ["Pack", "Loaded", "As packs.toml", "Nodes", "Problem"], rows, "There are no packs of custom nodes."));
}

const LIMITS = [
  ["requests_per_second", "Requests a second", String],
  ["jobs_waiting", "Jobs that wait", String],
  ["jobs_running", "Jobs that run", String],
  ["pixel_steps_per_minute", "Pixels times steps a minute", (value) => value.toLocaleString()],
  ["stored_bytes", "Stored", bytes],
];

export function keysTable({ keys, limits, without_key: others }) {
  const rows = keys.map((key) => [
    key.name, key.scopes.join(", "), key.has_limits ? "yes" : "none", `${key.jobs_waiting}`, `${key.jobs_running}`,
    key.stored_bytes === null ? "–" : bytes(key.stored_bytes),
  ]);
  const set = LIMITS.map(([name, label, words]) => [label, limits[name] === null ? null : words(limits[name])]);
  const unkeyed = `Without a key: ${plural(others.jobs_waiting, "job")} waiting, ${others.jobs_running} running.`;
  return make("div", {},
    set.some(([, value]) => value !== null) ? facts(set) : make("p", { className: "note" }, "No limit is set (CALLER_LIMITS)."),
    make("p", { className: "note" }, unkeyed),
    table("Keys", ["Key", "Scopes", "Limits", "Wait", "Run", "Stored"], rows, "No API key is set."));
}
