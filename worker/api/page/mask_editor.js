/** The editor of an image field: a mask is painted over what is to be drawn anew, the image is cut and turned. */

import { at, make } from "./dom.js";
import { canvasOf, played, rectangle, stroke, withMask } from "./edit_steps.js";
import { pngOf } from "./png.js";

const MAX_PIXELS = 24_000_000;
const TOOLS = { paint: "Paint the mask", erase: "Erase the mask", cut: "Cut out" };
const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** Open the editor for an image file and the steps of its last editing; `onDone(file, steps)` gets the edited one.
 * Throws Error for what is no image. */
export async function edit(file, steps, onDone) {
  const bitmap = await createImageBitmap(file).catch(() => null);
  if (!bitmap) throw new Error(`${file.name} is no image that this browser can edit.`);
  if (bitmap.width * bitmap.height > MAX_PIXELS) throw new Error(`${file.name} is too large to be edited here: at most 24 megapixels.`);
  const source = canvasOf(bitmap.width, bitmap.height);
  source.getContext("2d").drawImage(bitmap, 0, 0);
  new Editor(at("editor"), source, { name: file.name, steps: [...steps], onDone }).open();
}

class Editor {
  constructor(dialog, source, { name, steps, onDone }) {
    Object.assign(this, { dialog, source, name, steps, onDone });
    this.tool = "paint";
    this.drawn = null; // the stroke or rectangle that is being made
    this.at = [source.width / 2, source.height / 2]; // of the brush, for the keyboard
    this.canvas = make("canvas", { tabIndex: 0, ariaLabel: "Image: drag to paint; arrow keys move the brush, space paints" });
    this.canvas.setAttribute("role", "img");
    this.size = make("input", { type: "range", min: 1, max: 100, value: 12, id: "brush-size", oninput: () => this.#draw() });
    this.undo = make("button", { type: "button", onclick: () => this.#change(() => this.steps.pop()) }, "Undo");
    this.canvas.addEventListener("pointerdown", (event) => this.#begin(event));
    this.canvas.addEventListener("pointermove", (event) => this.#move(event));
    this.canvas.addEventListener("pointerup", () => this.#end());
    this.canvas.addEventListener("pointercancel", () => this.#end());
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  open() {
    const tools = Object.entries(TOOLS).map(([value, words]) =>
      make("label", {}, make("input", {
        type: "radio", name: "tool", value, checked: value === this.tool, onchange: () => (this.tool = value),
      }), ` ${words}`));
    const button = (words, onclick, className = "") => make("button", { type: "button", className, onclick }, words);
    this.dialog.className = "editor";
    this.dialog.replaceChildren(
      make("div", { className: "stage" }, this.canvas),
      make("div", { className: "side" },
        make("p", { className: "note" }, "What the mask covers is drawn anew, where a workflow takes a mask."),
        make("div", { className: "actions", role: "radiogroup", ariaLabel: "Tool" }, tools),
        make("label", { htmlFor: this.size.id }, "Brush"), this.size,
        make("div", { className: "actions" },
          this.undo,
          button("Turn", () => this.#change(() => this.steps.push({ kind: "turn" }))),
          button("Start again", () => this.#change(() => (this.steps = [])))),
        make("div", { className: "actions" },
          button("Done", () => this.#done(), "primary"),
          button("Cancel", () => this.dialog.close()))));
    this.#change(() => {});
    this.dialog.showModal();
    this.canvas.focus();
  }

  get diameter() {
    return Math.max(1, (Math.max(this.source.width, this.source.height) * this.size.value) / 100);
  }

  #change(step) {
    step();
    this.shown = played(this.source, this.steps);
    const { width, height } = this.shown.image;
    if (this.canvas.width !== width || this.canvas.height !== height) this.at = [width / 2, height / 2];
    [this.canvas.width, this.canvas.height] = [width, height];
    this.undo.disabled = !this.steps.length;
    this.#draw();
  }

  /** Show the image with the mask in red over it, what is being drawn, and the brush. */
  #draw() {
    const context = this.canvas.getContext("2d");
    const { image, mask } = this.shown;
    const cover = canvasOf(mask.width, mask.height);
    cover.getContext("2d").drawImage(mask, 0, 0);
    if (this.drawn && this.tool !== "cut") stroke(cover, this.drawn);
    const red = cover.getContext("2d");
    red.globalCompositeOperation = "source-in";
    red.fillStyle = "#f00";
    red.fillRect(0, 0, cover.width, cover.height);
    context.clearRect(0, 0, image.width, image.height);
    context.drawImage(image, 0, 0);
    context.globalAlpha = 0.6;
    context.drawImage(cover, 0, 0);
    context.globalAlpha = 1;
    context.lineWidth = Math.max(1, image.width / 300);
    context.strokeStyle = "#fff";
    context.beginPath();
    if (this.drawn && this.tool === "cut") {
      const [[x1, y1], [x2, y2]] = [this.drawn.points[0], this.drawn.points.at(-1)];
      context.rect(x1, y1, x2 - x1, y2 - y1);
    } else context.arc(...this.at, this.diameter / 2, 0, 2 * Math.PI);
    context.stroke();
  }

  #point({ clientX, clientY }) {
    const box = this.canvas.getBoundingClientRect();
    return [((clientX - box.left) * this.canvas.width) / box.width, ((clientY - box.top) * this.canvas.height) / box.height];
  }

  #begin(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.#press(this.#point(event));
  }

  #press(point) {
    this.at = point;
    this.drawn = { kind: "stroke", points: [point], size: this.diameter, isErase: this.tool === "erase" };
    this.#draw();
  }

  #move(event) {
    this.at = this.#point(event);
    this.drawn?.points.push(this.at);
    this.#draw();
  }

  #end() {
    const drawn = this.drawn;
    this.drawn = null;
    if (!drawn) return;
    const step = this.tool === "cut" ? rectangle(drawn.points[0], drawn.points.at(-1), this.canvas) : drawn;
    this.#change(() => step && this.steps.push(step));
  }

  #key(event) {
    const isPress = event.key === " " || event.key === "Enter";
    if (event.key === "z" && (event.ctrlKey || event.metaKey)) this.undo.click();
    else if (isPress && this.drawn) this.#end(); // the other corner of what is cut out
    else if (isPress) {
      this.#press(this.at);
      if (this.tool !== "cut") this.#end();
    }
    const way = KEYS[event.key];
    if (way) {
      const step = this.diameter / 4;
      this.at = [this.at[0] + way[0] * step, this.at[1] + way[1] * step];
      this.drawn?.points.push(this.at);
      this.#draw();
    }
    if (way || isPress) event.preventDefault();
  }

  async #done() {
    const blob = await pngOf(withMask(this.shown));
    this.dialog.close();
    const name = `${this.name.replace(/\.\w+$/, "")}-edited.png`;
    this.onDone(new File([blob], name, { type: "image/png" }), this.steps);
  }
}
