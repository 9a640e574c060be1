/** Plots of the operator's page, from the worker's own history of its metrics. */

import { ask } from "./api.js";
import { at, bytes, duration } from "./dom.js";
import { bars, plot } from "./plot.js";

const POINTS = { 1: 60, 6: 120, 24: 144 }; // by hours: intervals of 1, 3 and 10 minutes
const REFRESH_MS = 20_000; // as often as the worker samples itself

const ENDINGS = { completed: "completed", failed: "failed", timeout: "timed out", cancelled: "cancelled" };
const STILL_EMPTY = "The worker samples itself every 20 s; the first figures come soon.";

/** The series of one reply, by name and label. */
class Series {
  constructor({ series, interval_seconds: seconds, ends_at_ms: endsAt }, count) {
    this.count = count;
    this.all = series;
    this.seconds = seconds;
    this.endsAt = endsAt;
  }

  named(name) {
    return this.all.filter((series) => series.name === name);
  }

  /** Return the values of a series; all null where there is none. */
  values(name, labels = {}) {
    const wanted = Object.entries(labels);
    const found = this.named(name).find((series) => wanted.every(([label, value]) => series.labels[label] === value));
    return found?.values ?? Array(this.count).fill(null);
  }

  /** Return the increases of counters, by the values of a label. */
  totals(name, label) {
    return this.named(name).map(({ labels, values }) => [labels[label], values.reduce((sum, value) => sum + (value ?? 0), 0)]);
  }
}

/** Return values of two series put together; null where either has none. */
const joined = (one, other, join) => one.map((value, index) =>
  value === null || other[index] === null ? null : join(value, other[index]));

/** The plots, drawn anew every 20 s while they are in sight. */
export class Plots {
  constructor() {
    this.drawnAt = 0;
    at("hours").addEventListener("change", () => this.refresh(true));
  }

  /** Ask for the history and draw it, where the plots are old or `isNow`. Throws Refusal. */
  async refresh(isNow = false) {
    if (!isNow && Date.now() - this.drawnAt < REFRESH_MS) return;
    this.drawnAt = Date.now();
    const hours = at("hours").value;
    const reply = await ask(`metrics/history?hours=${hours}&points=${POINTS[hours]}`);
    if (at("plots").contains(document.activeElement)) return; // somebody reads one with the keys
    at("plots").replaceChildren(...figures(new Series(reply, POINTS[hours])));
  }
}

function figures(series) {
  const drawn = (given) => plot({ seconds: series.seconds, endsAt: series.endsAt, empty: STILL_EMPTY, ...given });
  return [
    drawn({ title: "Jobs a minute", lines: jobLines(series), format: short }),
    drawn({ title: "Waiting jobs", lines: [{ name: "waiting", values: series.values("darkroom_queue_jobs") }], format: short }),
    drawn({ title: "Seconds a job", lines: paceLines(series), format: duration, empty: "No job has begun in this time." }),
    drawn({ title: "Device memory", lines: deviceLines(series), format: bytes, isBinary: true, whole: most(series, DEVICE_TOTALS),
      empty: "No engine reports the memory of its device." }),
    drawn({ title: "RAM", lines: ramLines(series), format: bytes, isBinary: true, whole: most(series, ["darkroom_memory_total_bytes"]) }),
    ...gpuLoad(series).map(drawn),
    bars({ title: "Errors by kind", entries: errors(series), empty: "No job failed and no request was refused in this time." }),
  ];
}

const short = (value) => (Number.isInteger(value) ? `${value}` : value.toPrecision(2));
const DEVICE_TOTALS = ["darkroom_gpu_memory_total_bytes", "darkroom_memory_device_total_bytes"];

/** Return the highest value of some gauges; 0 without one. */
function most(series, names) {
  return Math.max(0, ...names.flatMap((name) => series.named(name)).flatMap(({ values }) => values.filter(Boolean)));
}

function jobLines(series) {
  const sampled = series.values("darkroom_memory_total_bytes"); // a counter without an event has no series
  return Object.entries(ENDINGS)
    .map(([state, name]) => {
      const counts = series.values("darkroom_jobs_ended_total", { state });
      const values = sampled.map((value, index) => (value === null ? null : ((counts[index] ?? 0) * 60) / series.seconds));
      return { name, values };
    })
    .filter(({ name, values }) => name === "completed" || values.some(Boolean));
}

function paceLines(series) {
  return [["until it begins", "wait"], ["on the engine", "run"]].map(([name, part]) => ({
    name,
    values: joined(series.values(`darkroom_job_${part}_seconds_sum`), series.values(`darkroom_job_${part}_seconds_count`),
      (sum, count) => (count ? sum / count : null)),
  }));
}

function deviceLines(series) {
  const gpus = series.named("darkroom_gpu_memory_used_bytes");
  if (gpus.length) return gpus.map(({ labels, values }) => ({ name: `GPU ${labels.gpu}`, values }));
  return series.named("darkroom_memory_device_total_bytes").flatMap(({ labels: { engine }, values }) => [
    { name: `engine ${engine}`, values: joined(values, series.values("darkroom_memory_device_free_bytes", { engine }), (total, free) => total - free) },
    { name: "its models", values: series.values("darkroom_memory_device_models_bytes", { engine }) },
  ]);
}

function ramLines(series) {
  const total = series.values("darkroom_memory_total_bytes");
  return [
    { name: "machine", values: joined(total, series.values("darkroom_memory_available_bytes"), (all, free) => all - free) },
    ...series.named("darkroom_engine_memory_bytes").map(({ labels, values }) => ({ name: `engine ${labels.engine}`, values })),
    { name: "front", values: series.values("darkroom_front_memory_bytes") },
  ];
}

function gpuLoad(series) {
  const gpus = series.named("darkroom_gpu_utilization_ratio");
  const lines = gpus.map(({ labels, values }) => ({ name: `GPU ${labels.gpu}`, values }));
  return lines.length ? [{ title: "GPU load", lines, format: (value) => `${Math.round(value * 100)} %`, whole: 1 }] : [];
}

function errors(series) {
  return [
    ...series.totals("darkroom_job_failures_total", "code").map(([code, count]) => [`${code} (job)`, count]),
    ...series.totals("darkroom_requests_refused_total", "code").map(([code, count]) => [`${code} (refused)`, count]),
  ];
}
