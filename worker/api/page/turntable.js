/** A 3D model that turns: still in the gallery, by pointer and arrow keys where it is large. */

import { make } from "./dom.js";

const TURN_PER_MS = 0.0004; // radians
const STEP = 0.15; // radians a key
const STILL_PX = 512;
const LARGEST_BYTES = 128 * 2 ** 20;
const STILL = { yaw: 0.6, pitch: 0.35, distance: 1 };

let last = Promise.resolve(); // stills are drawn one after another

export class Turntable {
  constructor(address, name, isLarge) {
    this.view = { ...STILL };
    this.element = make("div", { className: "turntable" }, make("p", { className: "note" }, name));
    if (isLarge) return void this.#show(address, name, isLarge);
    const watcher = new IntersectionObserver((seen) => {
      if (!seen.some((entry) => entry.isIntersecting)) return;
      watcher.disconnect();
      last = last.then(() => this.#show(address, name, isLarge));
    });
    watcher.observe(this.element);
  }

  #show(address, name, isLarge) {
    return this.#load(address, name, isLarge).catch((error) => {
      this.element.replaceChildren(make("p", { className: "note" }, `${name}: ${error.message}`));
    });
  }

  async #load(address, name, isLarge) {
    const [{ readGlb }, { MeshView }] = await Promise.all([import("./glb.js"), import("./mesh_view.js")]);
    const reply = await fetch(address).catch(() => null);
    if (!reply?.ok) throw new Error("in a store that this page cannot read");
    if (Number(reply.headers.get("Content-Length")) > LARGEST_BYTES) {
      reply.body.cancel();
      throw new Error("too large to be shown here");
    }
    const model = await readGlb(await reply.arrayBuffer());
    const canvas = make("canvas", { width: STILL_PX, height: STILL_PX });
    const drawer = new MeshView(canvas, model);
    drawer.draw(this.view);
    if (!isLarge) {
      const still = make("img", { src: canvas.toDataURL("image/png"), alt: name });
      drawer.end(); // browsers keep few contexts
      return this.element.replaceChildren(still);
    }
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.ariaLabel = `${name}, turned by dragging or arrow keys`;
    this.element.replaceChildren(canvas);
    this.#turn(canvas, drawer);
  }

  /** Draw while the canvas is shown: it turns by itself until somebody turns it. */
  #turn(canvas, drawer) {
    let isFree = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    let last = performance.now();
    const move = (yaw, pitch, factor = 1) => {
      isFree = false;
      const { view } = this;
      view.yaw += yaw;
      view.pitch = Math.max(-1.5, Math.min(1.5, view.pitch + pitch));
      view.distance = Math.max(0.3, Math.min(4, view.distance * factor));
    };
    const keys = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, STEP], ArrowDown: [0, -STEP], "+": [0, 0, 0.9], "-": [0, 0, 1.1] };
    canvas.addEventListener("keydown", (event) => {
      if (!keys[event.key]) return;
      event.preventDefault();
      event.stopPropagation(); // the viewer goes to the next result by arrows
      move(...keys[event.key]);
    });
    canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
    canvas.addEventListener("pointermove", (event) => event.buttons && move(event.movementX * 0.01, event.movementY * 0.01));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      move(0, 0, event.deltaY > 0 ? 1.1 : 0.9);
    }, { passive: false });
    const frame = (now) => {
      if (!canvas.isConnected || !canvas.closest("dialog")?.open) return drawer.end();
      if (isFree) this.view.yaw += (now - last) * TURN_PER_MS;
      last = now;
      drawer.draw(this.view);
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }
}
