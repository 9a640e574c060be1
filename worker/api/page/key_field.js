/** The key field of both pages: shown where the worker needs a key that this tab does not have. */

import { key } from "./api.js";
import { at, show } from "./dom.js";

export class KeyField {
  /** `onKey()` is called with a new key in use. */
  constructor(onKey) {
    this.form = at("key-form");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      key.set(at("key").value.trim());
      at("key").value = "";
      onKey();
    });
  }

  /** Ask for a key; `words` say why. */
  ask(words) {
    this.form.hidden = false;
    show(at("key-note"), key.get() ? words : "It is kept until this tab is closed.");
    at("key").focus();
  }

  hide() {
    this.form.hidden = true;
  }
}
