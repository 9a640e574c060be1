/** Make an element: `make("button", { type: "button", onclick }, "Draw")`. Texts become text, never markup. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

export const at = (id) => document.getElementById(id);

export function show(element, words) {
  element.textContent = words;
  element.hidden = !words;
}

/** Return a number of bytes in words. */
export function bytes(count) {
  if (count === null || count === undefined) return "–";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  for (; count >= 1024 && power < units.length - 1; power += 1) count /= 1024;
  return `${power && count < 100 ? count.toFixed(1) : Math.round(count)} ${units[power]}`;
}

/** Return seconds in words. */
export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 90) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
