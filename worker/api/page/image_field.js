/** A place for a file: chosen, dropped, pasted, or given as an address. */

import { make } from "./dom.js";
import { edit } from "./mask_editor.js";

export class ImageField {
  constructor(field, id) {
    this.file = null;
    this.address = "";
    this.unedited = null; // the file before the editor, and the steps that it made
    this.input = make("input", { id, type: "file", accept: field.media, onchange: () => this.choose(this.input.files[0]) });
    this.preview = make("img", { alt: "", hidden: true });
    this.words = make("span", {}, "Drop a file, paste it, or click to choose");
    this.clear = make("button", { type: "button", hidden: true, onclick: () => this.fill("") }, "Remove");
    this.editor = make("button", { type: "button", hidden: true, onclick: () => this.#edit() }, "Edit or mask");
    this.element = make("div", { className: "drop", tabIndex: -1 }, this.preview, this.words, this.input,
      make("div", { className: "joined" }, this.editor, this.clear));
    this.element.addEventListener("dragover", (event) => {
      event.preventDefault();
      this.element.classList.add("over");
    });
    this.element.addEventListener("dragleave", () => this.element.classList.remove("over"));
    this.element.addEventListener("drop", (event) => {
      event.preventDefault();
      this.element.classList.remove("over");
      this.#take(event.dataTransfer);
    });
    this.element.addEventListener("paste", (event) => this.#take(event.clipboardData));
  }

  #take(transfer) {
    const [file] = transfer.files;
    if (file) this.choose(file);
    else this.fill(transfer.getData("text/uri-list") || transfer.getData("text/plain"));
  }

  choose(file) {
    if (!file) return;
    this.fill("");
    this.file = file;
    this.words.textContent = file.name;
    this.clear.hidden = false;
    if (file.type.startsWith("image/")) this.#image(URL.createObjectURL(file));
    this.#changed();
  }

  /** Set an address or a data URI in place of a file; empty removes both. */
  fill(address) {
    this.file = this.unedited = null;
    this.input.value = "";
    this.address = String(address ?? "").trim();
    const isShort = this.address && !this.address.startsWith("data:");
    this.words.textContent = isShort ? this.address : this.address ? "A small example" : "Drop a file, paste it, or click to choose";
    this.clear.hidden = !this.address;
    this.#image(/^(data:image|https?:)/.test(this.address) ? this.address : "");
    this.#changed();
  }

  #image(source) {
    if (this.preview.src.startsWith("blob:")) URL.revokeObjectURL(this.preview.src);
    this.preview.hidden = !source;
    this.editor.hidden = !source || source.startsWith("http");
    if (source) this.preview.src = source;
    else this.preview.removeAttribute("src");
  }

  async #edit() {
    // an edited image has no colours below its mask that a canvas would keep, so editing goes on with the first one
    const { file, steps } = this.unedited ?? { file: this.file ?? fileOf(this.address), steps: [] };
    try {
      await edit(file, steps, (edited, done) => {
        this.choose(edited);
        this.unedited = { file, steps: done };
      });
    } catch (error) {
      this.words.textContent = error.message;
    }
  }

  #changed() {
    this.input.dispatchEvent(new Event("input", { bubbles: true }));
  }
}

/** Return the image of a base64 data URI, which the page's policy lets no request read. */
function fileOf(address) {
  const [, type, data] = address.match(/^data:([\w/+.-]+);base64,(.*)$/s) ?? ["", "", ""];
  return new File([Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0))], "image.png", { type });
}
