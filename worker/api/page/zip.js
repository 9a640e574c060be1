/** A ZIP archive of files, stored as they are: images and videos are compressed already. Below 4 GiB. */

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, number) => {
  for (let bit = 0; bit < 8; bit += 1) number = number & 1 ? (number >>> 1) ^ 0xedb88320 : number >>> 1;
  return number >>> 0;
});

/** Return the CRC-32 of bytes, as ZIP and PNG have it. */
export function crcOf(bytes) {
  let crc = 0xffffffff;
  for (const byte of bytes) crc = CRC_TABLE[(crc ^ byte) & 255] ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}

/** Return numbers as little-endian bytes: pairs of a number and its count of bytes. */
function packed(...fields) {
  const bytes = [];
  for (const [number, count] of fields) for (let place = 0; place < count; place += 1) bytes.push((number / 2 ** (8 * place)) & 255);
  return Uint8Array.from(bytes);
}

/** Return the archive of `{name, bytes}` as a Blob; names that come twice get a number. */
export function zipOf(files) {
  const parts = [];
  const directory = [];
  const names = new Set();
  let offset = 0;
  for (const { name, bytes } of files) {
    const encoded = new TextEncoder().encode(free(name, names));
    const facts = [[20, 2], [0x0800, 2], [0, 2], [0, 2], [0x21, 2], [crcOf(bytes), 4], [bytes.length, 4], [bytes.length, 4], [encoded.length, 2], [0, 2]];
    const header = packed([0x04034b50, 4], ...facts);
    parts.push(header, encoded, bytes);
    directory.push(packed([0x02014b50, 4], [20, 2], ...facts, [0, 2], [0, 2], [0, 2], [0, 4], [offset, 4]), encoded);
    offset += header.length + encoded.length + bytes.length;
  }
  const size = directory.reduce((sum, part) => sum + part.length, 0);
  const count = files.length;
  const end = packed([0x06054b50, 4], [0, 4], [count, 2], [count, 2], [size, 4], [offset, 4], [0, 2]);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
}

function free(name, names) {
  let found = name;
  for (let number = 2; names.has(found); number += 1) found = name.replace(/(\.\w+)?$/, ` (${number})$1`);
  names.add(found);
  return found;
}
