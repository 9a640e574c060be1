/** Meshes drawn by WebGL, lit from the viewer and from above. */

import { product } from "./glb.js";

const VERTEX = `#version 300 es
in vec3 position; in vec3 normal; in vec3 color; in vec2 place;
uniform mat4 camera; uniform mat4 turned;
out vec3 facing; out vec3 tint; out vec2 spot;
void main() {
  gl_Position = camera * vec4(position, 1.0);
  facing = mat3(turned) * normal; tint = color; spot = place;
}`;
const FRAGMENT = `#version 300 es
precision highp float;
in vec3 facing; in vec3 tint; in vec2 spot;
uniform sampler2D image; uniform bool hasImage;
out vec4 shade;
void main() {
  vec3 normal = normalize(facing);
  if (!gl_FrontFacing) normal = -normal;
  float light = 0.25 + 0.6 * max(normal.z, 0.0) + 0.25 * max(normal.y, 0.0);
  vec3 base = hasImage ? tint * texture(image, spot).rgb : tint;
  shade = vec4(min(base * light, 1.0), 1.0);
}`;
const FIELD = 1 / Math.tan(0.35); // of a view of 40 degrees
const NAMES = { position: 3, normal: 3, color: 3, place: 2 };

export class MeshView {
  /** `model` is that of `readGlb`. Throws Error where the browser has no WebGL. */
  constructor(canvas, model) {
    const gl = canvas.getContext("webgl2", { antialias: true, preserveDrawingBuffer: true });
    if (!gl) throw new Error("this browser shows no 3D");
    this.gl = gl;
    this.model = model;
    this.program = programOf(gl);
    this.parts = model.parts.map((part) => this.#upload(part));
    gl.enable(gl.DEPTH_TEST);
    gl.clearColor(0, 0, 0, 0);
  }

  /** Draw as seen from `yaw` and `pitch` (radians) at a distance of 1 for a model that fills the view. */
  draw({ yaw, pitch, distance }) {
    const { gl, program, model: { center, radius } } = this;
    const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
    const turned = product([1, 0, 0, 0, 0, cp, sp, 0, 0, -sp, cp, 0, 0, 0, 0, 1], [cy, 0, -sy, 0, 0, 1, 0, 0, sy, 0, cy, 0, 0, 0, 0, 1]);
    const away = distance * radius * (FIELD + 0.3);
    const [near, far] = [away / 100, away + 2 * radius];
    const lens = [FIELD, 0, 0, 0, 0, FIELD, 0, 0, 0, 0, (near + far) / (near - far), -1, 0, 0, (2 * near * far) / (near - far), 0];
    const back = [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, -away, 1];
    const centered = [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, ...center.map((value) => -value), 1];
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    gl.useProgram(program);
    gl.uniformMatrix4fv(gl.getUniformLocation(program, "camera"), false, product(lens, product(back, product(turned, centered))));
    gl.uniformMatrix4fv(gl.getUniformLocation(program, "turned"), false, turned);
    for (const { array, texture, count, isOrdered } of this.parts) {
      gl.bindVertexArray(array);
      gl.bindTexture(gl.TEXTURE_2D, texture);
      gl.uniform1i(gl.getUniformLocation(program, "hasImage"), texture ? 1 : 0);
      if (isOrdered) gl.drawElements(gl.TRIANGLES, count, gl.UNSIGNED_INT, 0);
      else gl.drawArrays(gl.TRIANGLES, 0, count);
    }
  }

  /** Give the browser's memory back; nothing can be drawn after it. */
  end() {
    this.gl.getExtension("WEBGL_lose_context")?.loseContext();
  }

  #upload({ positions, normals, colors, places, order, image }) {
    const { gl, program } = this;
    const array = gl.createVertexArray();
    gl.bindVertexArray(array);
    const found = { position: positions, normal: normals, color: colors, place: places };
    for (const [name, width] of Object.entries(NAMES)) {
      const slot = gl.getAttribLocation(program, name);
      if (slot < 0 || !found[name]) continue;
      gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
      gl.bufferData(gl.ARRAY_BUFFER, found[name], gl.STATIC_DRAW);
      gl.enableVertexAttribArray(slot);
      gl.vertexAttribPointer(slot, width, gl.FLOAT, false, 0, 0);
    }
    if (order) {
      gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, gl.createBuffer());
      gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, order, gl.STATIC_DRAW);
    }
    return { array, texture: places && image ? textureOf(gl, image) : null, count: order ? order.length : positions.length / 3, isOrdered: Boolean(order) };
  }
}

function textureOf(gl, image) {
  const texture = gl.createTexture();
  gl.bindTexture(gl.TEXTURE_2D, texture);
  gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, image);
  gl.generateMipmap(gl.TEXTURE_2D);
  return texture;
}

function programOf(gl) {
  const program = gl.createProgram();
  for (const [kind, text] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, text);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error("this browser shows no 3D");
  return program;
}
