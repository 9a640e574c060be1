/** Outputs as files: one, several in an archive, or as the input of the next request. */

import { make } from "./dom.js";
import { zipOf } from "./zip.js";

const LARGEST_BYTES = 2 ** 31;

/** Return an output's bytes. Throws Error where its store does not hand them to this page. */
async function blobOf(output) {
  const reply = await fetch(output.url).catch(() => null);
  if (!reply?.ok) throw new Error(`${output.filename} is in a store that this page cannot read; open the file instead.`);
  return reply.blob();
}

/** Return an output as a file, to be put into a field. */
export async function fileOf(output) {
  const blob = await blobOf(output);
  return new File([blob], output.filename, { type: blob.type });
}

/** Save one output as it is, several as an archive. */
export async function save(outputs) {
  if (outputs.length === 1) return keep(await blobOf(outputs[0]), outputs[0].filename);
  const files = [];
  let size = 0;
  for (const output of outputs) {
    const blob = await blobOf(output);
    size += blob.size;
    if (size > LARGEST_BYTES) throw new Error("The files are larger than 2 GiB together; choose fewer.");
    files.push({ name: output.filename, bytes: new Uint8Array(await blob.arrayBuffer()) });
  }
  return keep(zipOf(files), "darkroom.zip");
}

/** Hand a Blob to the browser as a download. */
export function keep(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = make("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
