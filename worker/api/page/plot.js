/** Line plots as SVG, with a legend, axes and a readout by pointer or arrow keys. Text is HTML, so that it keeps its size. */

import { make } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 100;
const COLOURS = 6; // classes line-0 … of admin.css

function shape(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** Return the next of 1, 2, 5, 10, 20 … that is not below a value; of bytes the next power of two. */
function ceiling(value, isBinary) {
  if (!(value > 0)) return 1;
  if (isBinary) return 2 ** Math.ceil(Math.log2(value));
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((factor) => factor * power >= value) * power;
}

const known = (values) => values.filter((value) => value !== null);

/** Return the paths of a line: one for each run of values without a gap; a value alone becomes a dash. */
function paths(values, top) {
  const x = (index) => index + 0.5;
  const y = (value) => (HEIGHT * (1 - Math.min(value, top) / top)).toFixed(2);
  const parts = [];
  let part = "";
  values.forEach((value, index) => {
    if (value === null) {
      if (part) parts.push(part);
      part = "";
    } else {
      part += part ? `L${x(index)} ${y(value)}` : `M${x(index) - 0.4} ${y(value)}L${x(index)} ${y(value)}`;
    }
  });
  return part ? [...parts, part] : parts;
}

const clock = (ms, isLong) =>
  new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...(isLong ? {} : { second: "2-digit" }) });

/**
 * Return a figure. `lines`: `{ name, values }` with a number or null for each interval. `format(value)`: words.
 * `isBinary`: the axis ends at a power of two. `whole`: what there is of it at most, the end of the axis.
 */
export function plot({ title, lines, format, endsAt, seconds, isBinary = false, whole = 0, empty }) {
  const count = lines[0]?.values.length ?? 0;
  const all = lines.flatMap((line) => known(line.values));
  if (!all.length) return make("figure", { className: "plot" }, make("figcaption", {}, title), note(empty));
  const most = Math.max(...all);
  const top = whole >= most && whole > 0 ? whole : ceiling(most, isBinary);
  const time = (index) => endsAt - (count - index) * seconds * 1000;
  const says = (index) => lines.map(({ name, values }) => `${name} ${values[index] === null ? "–" : format(values[index])}`);
  const last = count - 1 - Math.max(0, [...lines[0].values].reverse().findIndex((value) => value !== null));
  const summary = `${title}: ${says(last).join(", ")}; highest ${format(most)}`;

  const picture = shape("svg", { viewBox: `0 0 ${count} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const share of [0, 0.5, 1]) {
    picture.append(shape("line", { class: "grid-line", x1: 0, x2: count, y1: HEIGHT * share, y2: HEIGHT * share }));
  }
  lines.forEach(({ values }, index) => {
    for (const path of paths(values, top)) picture.append(shape("path", { class: `line line-${index % COLOURS}`, d: path }));
  });
  const cursor = shape("line", { class: "cursor", y1: 0, y2: HEIGHT });
  picture.append(cursor);

  const legend = make("ul", { className: "legend" });
  const label = make("span", { className: "note" });
  const area = make("div", { className: "area", tabIndex: 0, role: "img", ariaLabel: summary }, picture);
  const showAt = (index) => {
    const at = index ?? last;
    cursor.setAttribute("visibility", index === null ? "hidden" : "visible");
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, at + 0.5);
    label.textContent = index === null ? "" : clock(time(at + 1), seconds >= 60);
    legend.replaceChildren(...says(at).map((words, line) =>
      make("li", {}, make("i", { className: `swatch line-${line % COLOURS}`, ariaHidden: "true" }), words)));
  };
  let chosen = null;
  const choose = (index) => {
    chosen = index === null ? null : Math.min(count - 1, Math.max(0, index));
    showAt(chosen);
    if (chosen !== null) area.ariaLabel = `${title}, ${label.textContent}: ${says(chosen).join(", ")}`;
  };
  area.addEventListener("pointermove", (event) => {
    const box = area.getBoundingClientRect();
    choose(Math.floor(((event.clientX - box.left) / box.width) * count));
  });
  area.addEventListener("pointerleave", () => choose(null));
  area.addEventListener("blur", () => choose(null));
  area.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -count, End: count }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    choose((chosen ?? last + (step < 0 ? 1 : 0)) + step);
  });
  showAt(null);

  const marks = make("div", { className: "marks", ariaHidden: "true" },
    make("span", {}, format(top)), make("span", {}, format(top / 2)), make("span", {}, format(0)));
  const times = make("div", { className: "times", ariaHidden: "true" },
    [0, 0.5, 1].map((share) => make("span", {}, clock(endsAt - (1 - share) * count * seconds * 1000, true))));
  return make("figure", { className: "plot" },
    make("figcaption", {}, title, " ", label), legend, make("div", { className: "frame" }, marks, area, times));
}

const note = (words) => make("p", { className: "note" }, words);

/** Return a list of bars, the longest first. `entries`: `[name, count]`. */
export function bars({ title, entries, empty }) {
  const found = entries.filter(([, count]) => count > 0).sort((one, other) => other[1] - one[1]);
  const most = found[0]?.[1] ?? 0;
  const rows = found.map(([name, count]) => {
    const picture = shape("svg", { viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true", class: "bar" });
    picture.append(shape("rect", { x: 0, y: 0, width: (100 * count) / most, height: 4 }));
    return make("li", {}, make("span", {}, name), make("b", {}, `${Math.round(count)}`), picture);
  });
  return make("figure", { className: "plot" }, make("figcaption", {}, title),
    rows.length ? make("ul", { className: "bars" }, rows) : note(empty));
}
