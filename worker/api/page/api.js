/** Requests to the worker that this page comes from, with the visitor's key. */

const KEY = "darkroom.key";

/** A refusal or failure. `problems` by field; `needsKey`: another key would help. */
export class Refusal extends Error {
  constructor(words, { status = 0, problems = [], retryAfter = null } = {}) {
    super(words);
    this.status = status;
    this.problems = problems;
    this.retryAfter = retryAfter;
  }

  /** No answer at all: the worker is restarting, or the network is away. */
  get isUnreachable() {
    return this.status === 0;
  }

  /** The same request may succeed later without a change. */
  get isPassing() {
    return this.isUnreachable || [429, 502, 503, 504].includes(this.status);
  }

  get needsKey() {
    return this.status === 401 || this.status === 403;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (secret) => (secret ? sessionStorage.setItem(KEY, secret) : sessionStorage.removeItem(KEY)),
};

function headers(more = {}) {
  return key.get() ? { ...more, Authorization: `Bearer ${key.get()}` } : more;
}

async function send(path, { method = "GET", body, signal } = {}) {
  const isForm = body instanceof FormData;
  const type = body === undefined || isForm ? {} : { "Content-Type": "application/json" };
  const content = body === undefined || isForm ? body : JSON.stringify(body);
  let reply;
  try {
    reply = await fetch(path, { method, body: content, headers: headers(type), signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The worker does not answer. Is it running, and is the network there?");
  }
  return reply;
}

/** Return the words for a result or refusal that is not good. */
export function refusalOf(result, status, retryAfter = null) {
  const error = result?.error ?? {};
  const problems = error.problems ?? [];
  let words = error.message || result?.message || `The worker answered ${status}.`;
  if (problems.length) words = [...(error.summary ? [error.summary] : []), ...problems.map(wordsOf)].join("\n");
  else if (error.node_id) words = `${words} (node ${error.node_id}${error.class_type ? `, ${error.class_type}` : ""})`;
  if (error.unlisted_problems) words += `\n… and ${error.unlisted_problems} more`;
  if (retryAfter) words += ` Try again in ${retryAfter} s.`;
  return new Refusal(words, { status, problems, retryAfter });
}

function wordsOf(problem) {
  const field = (problem.field ?? "").replace(/^input\.(modifications\.)?/, "");
  const place = field || (problem.node_id ? `node ${problem.node_id}` : "");
  return place && !problem.message.startsWith(place) ? `${place}: ${problem.message}` : problem.message;
}

/** Ask a route for JSON. Throws Refusal. */
export async function ask(path, options = {}) {
  const reply = await send(path, options);
  const found = await reply.json().catch(() => null);
  if (!reply.ok) throw refusalOf(found, reply.status, reply.headers.get("Retry-After"));
  return found;
}

/** Ask a route for a file. Throws Refusal. */
export async function blob(path) {
  const reply = await send(path, {});
  if (!reply.ok) throw refusalOf(null, reply.status);
  return reply.blob();
}

const FIRST_PAUSE_MS = 1000;
const LONGEST_PAUSE_MS = 8000;

/** Resolve after the pause before a try: longer with every try in vain, or as long as the worker asks for. */
export function pauseBefore(tries, retryAfter = null) {
  const asked = Number(retryAfter) * 1000;
  const pause = asked > 0 ? asked : Math.min(FIRST_PAUSE_MS * 2 ** Math.max(0, tries - 1), LONGEST_PAUSE_MS);
  return new Promise((wake) => setTimeout(wake, pause));
}

/** Yield the events of a stream of server-sent events. Throws Refusal where there is no stream. */
export async function* events(path, options = {}) {
  const reply = await send(path, options);
  if (!reply.ok) {
    const found = await reply.json().catch(() => null);
    throw refusalOf(found, reply.status, reply.headers.get("Retry-After"));
  }
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      return; // cut off: the job goes on, and the stream can be taken up again
    }
    if (part.done) return;
    const blocks = (rest + part.value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").find((line) => line.startsWith("data:"));
      if (data) yield JSON.parse(data.slice(5));
    }
  }
}
