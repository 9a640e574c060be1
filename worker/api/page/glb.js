/** Meshes of a binary glTF 2.0 file, as arrays for WebGL: triangles with normals, colours and one texture. */

const MAGIC = 0x46546c67;
const JSON_CHUNK = 0x4e4f534a;
const TRIANGLES = 4;
const MAX_NODES = 10_000;
const MAX_CORNERS = 6_000_000; // a few nodes may repeat a mesh often
const ARRAYS = { 5120: Int8Array, 5121: Uint8Array, 5122: Int16Array, 5123: Uint16Array, 5125: Uint32Array, 5126: Float32Array };
const WIDTHS = { SCALAR: 1, VEC2: 2, VEC3: 3, VEC4: 4 };
const IDENTITY = [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1];

/** Return `{parts, center, radius}`: each part has positions, normals, colors, places in its texture, and that image.
 * Throws Error for a file that is none or that needs an extension. */
export async function readGlb(buffer) {
  const view = new DataView(buffer);
  if (buffer.byteLength < 20 || view.getUint32(0, true) !== MAGIC) throw new Error("not a GLB file");
  const length = view.getUint32(12, true);
  if (view.getUint32(16, true) !== JSON_CHUNK) throw new Error("a GLB file without a description");
  const json = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 20, length)));
  if (json.extensionsRequired?.length) throw new Error(`needs ${json.extensionsRequired.join(", ")}`);
  const file = { json, buffer, start: 20 + length + 8, images: new Map() };
  const parts = [];
  const waiting = (json.scenes?.[json.scene ?? 0]?.nodes ?? []).map((index) => [index, IDENTITY]);
  let corners = 0;
  for (let count = 0; waiting.length && count < MAX_NODES; count += 1) {
    const [index, parent] = waiting.pop();
    const node = json.nodes[index];
    const matrix = product(parent, node.matrix ?? placed(node));
    for (const primitive of json.meshes?.[node.mesh]?.primitives ?? []) {
      if ((primitive.mode ?? TRIANGLES) !== TRIANGLES) continue;
      corners += json.accessors[primitive.attributes.POSITION].count + (json.accessors[primitive.indices]?.count ?? 0);
      if (corners > MAX_CORNERS) throw new Error("too large to be shown here");
      parts.push(await partOf(file, primitive, matrix));
    }
    for (const child of node.children ?? []) waiting.push([child, matrix]);
  }
  if (!parts.length) throw new Error("no triangles to show");
  return { parts, ...bounds(parts) };
}

async function partOf(file, { attributes, indices, material }, matrix) {
  const positions = moved(numbers(file, attributes.POSITION).values, matrix);
  const count = positions.length / 3;
  const order = indices === undefined ? null : Uint32Array.from(numbers(file, indices).values); // GLB's may be of 8 or 16 bits
  const look = file.json.materials?.[material]?.pbrMetallicRoughness ?? {};
  const color = look.baseColorFactor ?? [1, 1, 1, 1];
  const given = attributes.COLOR_0 === undefined ? null : numbers(file, attributes.COLOR_0);
  const colors = new Float32Array(count * 3);
  for (let at = 0; at < count; at += 1) {
    for (let one = 0; one < 3; one += 1) colors[at * 3 + one] = color[one] * (given ? given.values[at * given.width + one] : 1);
  }
  const texture = look.baseColorTexture && file.json.textures?.[look.baseColorTexture.index]?.source;
  return {
    positions,
    order,
    colors,
    normals: normalsOf(positions, order),
    places: attributes.TEXCOORD_0 === undefined ? null : numbers(file, attributes.TEXCOORD_0).values,
    image: texture === undefined ? null : await imageOf(file, texture),
  };
}

/** Return an accessor's numbers as floats, integers scaled where the file says so; indices stay as they are. */
function numbers({ json, buffer, start }, index) {
  const accessor = json.accessors[index];
  const { bufferView, byteOffset = 0, componentType, count, type, normalized } = accessor;
  const Kind = ARRAYS[componentType];
  const width = WIDTHS[type];
  const { byteOffset: offset = 0, byteStride } = json.bufferViews[bufferView];
  const stride = byteStride ?? Kind.BYTES_PER_ELEMENT * width;
  const values = new (componentType === 5125 ? Uint32Array : Float32Array)(count * width);
  const first = start + offset + byteOffset;
  const scale = normalized ? { 5120: 127, 5121: 255, 5122: 32767, 5123: 65535 }[componentType] : 1;
  if (stride === Kind.BYTES_PER_ELEMENT * width) {
    values.set(new Kind(buffer.slice(first, first + count * stride)));
    if (scale > 1) for (let at = 0; at < values.length; at += 1) values[at] /= scale;
    return { values, width };
  }
  for (let at = 0; at < count; at += 1) {
    const row = new Kind(buffer.slice(first + at * stride, first + at * stride + width * Kind.BYTES_PER_ELEMENT));
    for (let one = 0; one < width; one += 1) values[at * width + one] = row[one] / scale;
  }
  return { values, width };
}

async function imageOf({ json, buffer, start, images }, index) {
  if (!images.has(index)) {
    const { bufferView, mimeType } = json.images[index];
    const { byteOffset = 0, byteLength } = json.bufferViews[bufferView] ?? {};
    const bytes = byteLength && new Uint8Array(buffer, start + byteOffset, byteLength);
    images.set(index, bytes ? await createImageBitmap(new Blob([bytes], { type: mimeType })).catch(() => null) : null);
  }
  return images.get(index);
}

/** Return the normals of the corners: the mean of their triangles', by area. */
function normalsOf(positions, order) {
  const normals = new Float32Array(positions.length);
  const count = order ? order.length : positions.length / 3;
  for (let at = 0; at + 2 < count; at += 3) {
    const [a, b, c] = [0, 1, 2].map((one) => (order ? order[at + one] : at + one) * 3);
    const edge = (from, to, one) => positions[to + one] - positions[from + one];
    const across = (one, other) => edge(a, b, one) * edge(a, c, other) - edge(a, b, other) * edge(a, c, one);
    const normal = [across(1, 2), across(2, 0), across(0, 1)];
    for (const corner of [a, b, c]) for (let one = 0; one < 3; one += 1) normals[corner + one] += normal[one];
  }
  return normals;
}

function bounds(parts) {
  const low = [Infinity, Infinity, Infinity];
  const high = [-Infinity, -Infinity, -Infinity];
  for (const { positions } of parts) {
    for (let at = 0; at < positions.length; at += 1) {
      low[at % 3] = Math.min(low[at % 3], positions[at]);
      high[at % 3] = Math.max(high[at % 3], positions[at]);
    }
  }
  return { center: low.map((value, one) => (value + high[one]) / 2), radius: Math.hypot(...low.map((value, one) => high[one] - value)) / 2 || 1 };
}

/** Return the matrix of a node's translation, rotation (a quaternion) and scale, by columns. */
function placed({ translation: [x, y, z] = [0, 0, 0], rotation: [i, j, k, w] = [0, 0, 0, 1], scale: [a, b, c] = [1, 1, 1] }) {
  return [
    (1 - 2 * (j * j + k * k)) * a, 2 * (i * j + k * w) * a, 2 * (i * k - j * w) * a, 0,
    2 * (i * j - k * w) * b, (1 - 2 * (i * i + k * k)) * b, 2 * (j * k + i * w) * b, 0,
    2 * (i * k + j * w) * c, 2 * (j * k - i * w) * c, (1 - 2 * (i * i + j * j)) * c, 0,
    x, y, z, 1,
  ];
}

export function product(left, right) {
  const found = new Array(16).fill(0);
  for (let column = 0; column < 4; column += 1) {
    for (let row = 0; row < 4; row += 1) {
      for (let one = 0; one < 4; one += 1) found[column * 4 + row] += left[one * 4 + row] * right[column * 4 + one];
    }
  }
  return found;
}

function moved(positions, matrix) {
  const found = new Float32Array(positions.length);
  for (let at = 0; at < positions.length; at += 3) {
    for (let row = 0; row < 3; row += 1) {
      found[at + row] = matrix[row] * positions[at] + matrix[4 + row] * positions[at + 1] + matrix[8 + row] * positions[at + 2] + matrix[12 + row];
    }
  }
  return found;
}
