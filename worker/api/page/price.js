/** What this worker's time costs, where its operator has said so (`WORKER_PRICE_PER_HOUR`). */

const MS_PER_HOUR = 3_600_000;

export const price = { perHour: null };

/** Return the cost of a run in the currency of that setting, for example "0.0012"; empty where it is not known. */
export function costOfRun({ generation_ms: ms } = {}) {
  if (!price.perHour || !ms) return "";
  return String(Number(((price.perHour * ms) / MS_PER_HOUR).toPrecision(2)));
}
