/** Two images over one another, with a slider between them. */

import { make } from "./dom.js";

/** Show the comparison in a dialog. The slider works by keyboard and touch, too. */
export function compare(dialog, [left, right]) {
  const over = make("img", { src: left.output.url, alt: `Left: ${left.title}` });
  const slider = make("input", { type: "range", min: 0, max: 100, value: 50, ariaLabel: "How much of the left image is shown" });
  const cut = () => over.style.setProperty("clip-path", `inset(0 ${100 - slider.value}% 0 0)`);
  slider.addEventListener("input", cut);
  cut();
  dialog.className = "compare";
  dialog.replaceChildren(
    make("div", { className: "stage pair" }, make("img", { src: right.output.url, alt: `Right: ${right.title}` }), over),
    make("div", { className: "side" },
      slider,
      make("dl", {}, make("dt", {}, "Left"), make("dd", {}, left.title), make("dt", {}, "Right"), make("dd", {}, right.title)),
      make("button", { type: "button", onclick: () => dialog.close() }, "Close")),
  );
  dialog.showModal();
}
