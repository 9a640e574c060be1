/** PNG files with the colours below transparent pixels, which a canvas would drop: a mask is the transparency. */

import { crcOf } from "./zip.js";

const SIGNATURE = Uint8Array.of(137, 80, 78, 71, 13, 10, 26, 10);
const RGBA = [8, 6, 0, 0, 0]; // bits a channel, colour type, compression, filter, interlacing

function bigEndian(number) {
  return Uint8Array.of(number >>> 24, number >>> 16, number >>> 8, number);
}

function chunk(name, data) {
  const body = new Uint8Array(4 + data.length);
  body.set(new TextEncoder().encode(name));
  body.set(data, 4);
  return [bigEndian(data.length), body, bigEndian(crcOf(body))];
}

/** Return the PNG of an ImageData as a Blob. */
export async function pngOf({ width, height, data }) {
  const line = width * 4;
  const rows = new Uint8Array(height * (line + 1)); // a filter byte, 0, before each row
  for (let row = 0; row < height; row += 1) rows.set(data.subarray(row * line, (row + 1) * line), row * (line + 1) + 1);
  const packed = new Blob([rows]).stream().pipeThrough(new CompressionStream("deflate"));
  const pixels = new Uint8Array(await new Response(packed).arrayBuffer());
  const header = Uint8Array.from([...bigEndian(width), ...bigEndian(height), ...RGBA]);
  return new Blob([SIGNATURE, ...chunk("IHDR", header), ...chunk("IDAT", pixels), ...chunk("IEND", new Uint8Array())], { type: "image/png" });
}
