/** Model files to choose by their images: a dialog beside a list. */

import { blob } from "./api.js";
import { make } from "./dom.js";

const AT_ONCE = 4; // requests for images

/** Return a button that opens the files of a field's list with their images; the list has what is chosen. */
export function browseButton(field, select) {
  const open = () => new Browser(field, select).open();
  return make("button", { type: "button", ariaLabel: `Browse ${field.label}`, onclick: open }, "Browse");
}

class Browser {
  constructor(field, select) {
    this.select = select;
    this.waiting = [];
    this.running = 0;
    this.addresses = [];
    this.watcher = new IntersectionObserver((seen) => this.#meet(seen));
    this.items = field.choices.map((name) => this.#item(field.folder, String(name)));
    const filter = make("input", { type: "search", placeholder: "Name", ariaLabel: "Names with" });
    filter.addEventListener("input", () => this.#filter(filter.value.toLowerCase()));
    const close = make("button", { type: "button", onclick: () => this.dialog.close() }, "Close");
    this.dialog = make("dialog", { className: "code", ariaLabel: field.label },
      make("div", { className: "side" }, make("div", { className: "actions" }, filter, close), make("div", { className: "gallery files" }, this.items)));
    this.dialog.addEventListener("close", () => this.#end());
  }

  open() {
    document.body.append(this.dialog);
    this.dialog.showModal();
    for (const item of this.items) this.watcher.observe(item);
  }

  #item(folder, name) {
    const choose = () => {
      this.select.value = name;
      this.select.dispatchEvent(new Event("input", { bubbles: true }));
      this.dialog.close();
    };
    const item = make("button", { type: "button", className: "file", ariaPressed: String(this.select.value === name), onclick: choose },
      make("span", { className: "image" }), name);
    item.dataset.path = `models/preview?${new URLSearchParams({ folder, name })}`;
    return item;
  }

  #meet(seen) {
    for (const { target, isIntersecting } of seen) {
      if (!isIntersecting) continue;
      this.watcher.unobserve(target);
      this.waiting.push(target);
    }
    while (this.running < AT_ONCE && this.waiting.length) this.#show(this.waiting.shift());
  }

  async #show(item) {
    this.running += 1;
    const image = await blob(item.dataset.path).catch(() => null);
    if (image?.size && this.dialog.open) {
      const address = URL.createObjectURL(image);
      this.addresses.push(address);
      item.firstChild.append(make("img", { src: address, alt: "" }));
    }
    this.running -= 1;
    this.#meet([]);
  }

  #filter(words) {
    for (const item of this.items) item.hidden = !item.textContent.toLowerCase().includes(words);
  }

  #end() {
    this.watcher.disconnect();
    this.waiting = [];
    this.addresses.forEach(URL.revokeObjectURL);
    this.dialog.remove();
  }
}
