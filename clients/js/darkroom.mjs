/**
 * Client of a worker for Node 20 and newer, Deno, Bun and browsers. No dependencies.
 *
 *     import { Darkroom } from "./darkroom.mjs";
 *     const worker = new Darkroom("http://127.0.0.1:8000", { key: process.env.DARKROOM_KEY });
 *     const result = await worker.generate({ modifier: "Text2Image", modifications: { prompt: "a red apple" } });
 *     console.log(result.output[0].url);
 *
 * A request is the `input` object of the HTTP API. It gets a `request_id`, so it may be sent again after a broken
 * connection: the worker attaches it to the same job.
 */

const LATER = new Set([429, 502, 503, 504]);
const MAX_FAILURES = 8;
const SILENCE_MS = 60_000; // four times a stream's keep-alive

/** Refusal of a request: `status`, `code`, `problems`, `retryAfterSeconds`, and the whole `body`. */
export class RequestRefused extends Error {
  constructor(status, body, retryAfterSeconds) {
    super(body?.error?.message ?? body?.message ?? `the worker answers ${status}`);
    Object.assign(this, { name: "RequestRefused", status, body, retryAfterSeconds });
    this.code = body?.error?.code ?? "";
    this.problems = body?.error?.problems ?? [];
  }
}

/** End of a job without its pictures; `result` has its status and error. */
export class JobFailed extends Error {
  constructor(result) {
    super(result.message);
    Object.assign(this, { name: "JobFailed", result });
  }
}

/** A worker that does not answer. */
export class WorkerUnreachable extends Error {
  constructor(reason) {
    super(reason);
    this.name = "WorkerUnreachable";
  }
}

export class Darkroom {
  #headers;
  #patienceSeconds;
  #pause;

  /**
   * `patienceSeconds` bounds the waiting for a worker that replies with Retry-After, and for one that has taken the job
   * and is away, as while it restarts; `pause(seconds)` sleeps.
   */
  constructor(url, { key = "", patienceSeconds = 300, pause = sleep } = {}) {
    this.url = url.replace(/\/+$/, "");
    this.#headers = key ? { Authorization: `Bearer ${key}` } : {};
    this.#patienceSeconds = patienceSeconds;
    this.#pause = pause;
  }

  /** Return the result of a request once its job has completed; `onEvent` gets each event until then. */
  async generate(request, { onEvent = () => {}, signal } = {}) {
    return this.#ended(this.stream(request, { signal }), onEvent);
  }

  /** Return the result of a job that is there, once it has completed. */
  async wait(jobId, { onEvent = () => {}, signal } = {}) {
    return this.#ended(this.follow(jobId, { signal }), onEvent);
  }

  /** Yield the events of a request's job, the last with `result`. Connections that break are taken up again. */
  stream(request, { signal } = {}) {
    const input = { request_id: globalThis.crypto.randomUUID(), ...request };
    return this.#follow(input.request_id, { input }, signal);
  }

  /** Yield the events of a job that is there, the last with `result`. */
  follow(jobId, { signal } = {}) {
    return this.#follow(jobId, null, signal);
  }

  /** Submit a job and return its state at once. */
  submit(request) {
    const input = { request_id: globalThis.crypto.randomUUID(), ...request };
    return this.#ask("POST", "/generate", { input }, true);
  }

  /** Return the state of a job. */
  result(jobId) {
    return this.#ask("GET", `/result/${encodeURIComponent(jobId)}`, undefined, true);
  }

  /** Cancel a job and return `{ message, status }`. */
  cancel(jobId) {
    return this.#ask("POST", `/cancel/${encodeURIComponent(jobId)}`);
  }

  /** Return the modifiers with the JSON schemas of their parameters. */
  modifiers() {
    return this.#ask("GET", "/modifiers");
  }

  /** Return the stored workflows with the JSON schemas of their inputs. */
  async workflows() {
    return (await this.#ask("GET", "/workflows")).workflows;
  }

  /** Return the content of an output file as a Blob. */
  async fetchOutput(output) {
    if (output.data) {
      const bytes = Uint8Array.from(atob(output.data), (character) => character.charCodeAt(0));
      return new Blob([bytes], { type: output.mimetype ?? "application/octet-stream" });
    }
    const response = await fetch(output.url); // a signed link, which needs no key
    if (!response.ok) throw new WorkerUnreachable(`the output's link answers ${response.status}`);
    return response.blob();
  }

  async #ended(events, onEvent) {
    for await (const event of events) {
      if (event.result === undefined) onEvent(event);
      else if (event.result.status !== "completed") throw new JobFailed(event.result);
      else return event.result;
    }
    throw new WorkerUnreachable("the stream ended without a result");
  }

  async *#follow(jobId, body, signal) {
    let wasTaken = body === null;
    let lastId = "";
    let failures = 0;
    let patience = this.#patienceSeconds;
    let hasEvents = false;
    let away = 0; // seconds; a worker that has sent an event keeps the job through its restart
    const dropped = async (reason) => {
      const seconds = backoff(++failures);
      away += seconds;
      if (failures > MAX_FAILURES && !(hasEvents && away <= this.#patienceSeconds)) throw new WorkerUnreachable(reason);
      await this.#pause(seconds);
    };
    for (;;) {
      let response;
      const silence = new AbortController();
      let timer = setTimeout(() => silence.abort(), SILENCE_MS);
      const either = signal ? AbortSignal.any([signal, silence.signal]) : silence.signal;
      try {
        const headers = { ...this.#headers, ...(lastId ? { "Last-Event-ID": lastId } : {}) };
        response = wasTaken
          ? await fetch(`${this.url}/stream/${encodeURIComponent(jobId)}`, { headers, signal: either })
          : await fetch(`${this.url}/generate/stream`, {
              method: "POST",
              headers: { ...headers, "Content-Type": "application/json" },
              body: JSON.stringify(body),
              signal: either,
            });
        if (response.ok) {
          for await (const { id, data } of serverSentEvents(response.body)) {
            clearTimeout(timer);
            timer = setTimeout(() => silence.abort(), SILENCE_MS);
            if (!data) continue; // a keep-alive
            const event = JSON.parse(data);
            [wasTaken, hasEvents, failures, away, lastId] = [true, true, 0, 0, id || lastId];
            yield event;
            if (event.result !== undefined) return;
          }
        }
      } catch (error) {
        if (signal?.aborted) throw error;
        if (!(error instanceof TypeError) && error.name !== "AbortError") throw error;
        if (!wasTaken && response === undefined && failures === 0) throw new WorkerUnreachable(reasonOf(error));
        await dropped(reasonOf(error));
        continue;
      } finally {
        clearTimeout(timer);
      }
      if (response.ok) {
        await dropped("the stream ended early");
      } else if (response.status === 404 && wasTaken && body !== null) {
        wasTaken = false; // a worker that has nothing of it: the request is sent again, under the same id
        await dropped("the job is unknown");
      } else if (LATER.has(response.status) && wasTaken) {
        await dropped(`the worker answers ${response.status}`);
      } else {
        const refused = await refusalOf(response);
        patience = await this.#afterRefusal(refused, patience);
      }
    }
  }

  async #ask(method, path, body, isOfJob = false) {
    let patience = this.#patienceSeconds;
    for (;;) {
      let response;
      try {
        response = await fetch(this.url + path, {
          method,
          headers: { ...this.#headers, ...(body ? { "Content-Type": "application/json" } : {}) },
          body: body ? JSON.stringify(body) : undefined,
        });
      } catch (error) {
        throw new WorkerUnreachable(reasonOf(error));
      }
      if (response.ok) return response.json();
      const refused = await refusalOf(response);
      // A job that failed comes with its own status; a refusal has the same form without times.
      if (isOfJob && Object.keys(refused.body?.timings ?? {}).length > 0) return refused.body;
      patience = await this.#afterRefusal(refused, patience);
    }
  }

  /** Wait as long as a refusal asks for and return the patience that is left; throw the refusal if there is none. */
  async #afterRefusal(refused, patience) {
    const seconds = refused.retryAfterSeconds;
    const isLater = refused.status === 429 || refused.status === 503;
    if (!isLater || seconds === undefined || seconds > patience) throw refused;
    await this.#pause(seconds);
    return patience - Math.max(seconds, 0.1);
  }
}

async function* serverSentEvents(body) {
  let text = "";
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        const lines = text.slice(0, end).split("\n");
        text = text.slice(end + 2);
        const of = (name) =>
          lines.filter((line) => line.startsWith(`${name}:`)).map((line) => line.slice(name.length + 1).trim());
        yield { id: of("id").at(-1) ?? "", data: of("data").join("\n") };
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

async function refusalOf(response) {
  const retryAfter = response.headers.get("Retry-After");
  const body = await response.json().catch(() => ({}));
  return new RequestRefused(response.status, body, /^\d+$/.test(retryAfter ?? "") ? Number(retryAfter) : undefined);
}

function reasonOf(error) {
  return error.cause?.message ?? error.message;
}

function backoff(failures) {
  return Math.min(0.5 * 2 ** (failures - 1), 8);
}

function sleep(seconds) {
  return new Promise((resolve) => setTimeout(resolve, seconds * 1000));
}
