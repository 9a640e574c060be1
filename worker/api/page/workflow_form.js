/** The form for a workflow file: as ComfyUI's page saves or exports it, or an image that carries one. */

import { make } from "./dom.js";
import { ImageField } from "./image_field.js";

export const WORKFLOW = "A workflow file";

export class WorkflowForm {
  constructor() {
    const field = { name: "workflow", media: "application/json,image/*,video/mp4,.flac", label: "File" };
    this.image = new ImageField(field, "field-workflow");
    const label = make("label", { htmlFor: "field-workflow" }, "File *");
    this.element = make("div", { className: "field wide" }, label, this.image.element);
    this.modifier = { name: WORKFLOW };
  }

  fill() {}

  clearProblems() {}

  mark(problems) {
    return problems;
  }

  missing() {
    return this.image.file ? [] : [{ field: "", message: "Choose a workflow file." }];
  }

  /** Return the request's `workflow_json`: the JSON itself, or the file in base64. Throws SyntaxError. */
  async workflow() {
    const { file } = this.image;
    if (/json/.test(file.type) || /\.json$/i.test(file.name)) return JSON.parse(await file.text());
    return new Promise((done, failed) => {
      const reader = new FileReader();
      reader.onload = () => done(reader.result);
      reader.onerror = () => failed(reader.error);
      reader.readAsDataURL(file);
    });
  }

  get name() {
    return this.image.file?.name ?? WORKFLOW;
  }
}
