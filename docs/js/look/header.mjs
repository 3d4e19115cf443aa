// The header of a safetensors file, checked as strictly as the official parser does.
"use strict";

import { NotJson, parseBytes } from "./json.mjs";

export const PREFIX = 8;
export const LARGEST = 4_000_000;
const METADATA = "__metadata__";

export class BadHeader extends Error {}

// How long the header is, of the first 8 bytes of a file.
export function headerLength(bytes) {
  if (bytes.length < PREFIX) throw new BadHeader(`the file holds ${bytes.length} bytes, fewer than the length of a header`);
  return new DataView(bytes.buffer, bytes.byteOffset, PREFIX).getBigUint64(0, true);
}

// The tensors in the order of their data, as {key, dtype, shape}; `size` is the file's, null if no one tells it.
export function tensorsOf(header, dtypes, size) {
  let entries;
  try {
    entries = parseBytes(header);
  } catch (error) {
    if (error instanceof NotJson) throw new BadHeader(`its header is not JSON: ${error.message}`);
    throw error;
  }
  if (!(entries instanceof Map)) throw new BadHeader("its header is not a JSON object");
  checkMetadata(entries.get(METADATA));
  entries.delete(METADATA);
  const tensors = [...entries].map(([key, entry]) => tensorOf(key, entry, dtypes));
  tensors.sort((one, other) => one.begin - other.begin || one.end - other.end);
  let at = 0;
  for (const { key, begin, end } of tensors) {
    if (begin !== at) throw new BadHeader(`the data of ${JSON.stringify(key)} begins at ${begin} where ${at} was expected`);
    at = end;
  }
  if (size !== null && PREFIX + header.length + at !== size)
    throw new BadHeader(`its header accounts for ${PREFIX + header.length + at} bytes, and the file has ${size}`);
  return tensors.map(({ key, dtype, shape }) => ({ key, dtype, shape }));
}

function checkMetadata(metadata) {
  if (metadata === undefined || metadata === null) return;
  if (!(metadata instanceof Map) || ![...metadata.values()].every((value) => typeof value === "string"))
    throw new BadHeader("__metadata__ is not a map of texts");
}

function tensorOf(key, entry, dtypes) {
  const fields = entry instanceof Map ? ["dtype", "shape", "data_offsets"].map((name) => entry.get(name)) : [];
  const [dtype, shape, offsets] = fields;
  if (typeof dtype !== "string" || !Object.hasOwn(dtypes, dtype) || !areSizes(shape) || !areSizes(offsets) || offsets.length !== 2)
    throw new BadHeader(`the entry of ${JSON.stringify(key)} doesn't describe a tensor`);
  const [name, bits] = dtypes[dtype];
  const length = shape.reduce((product, size) => product * size, 1n) * BigInt(bits);
  if (offsets[1] - offsets[0] !== length / 8n || length % 8n) throw new BadHeader(`the size of ${JSON.stringify(key)} doesn't fit its place`);
  return { key, dtype: name, shape: shape.map(Number), begin: Number(offsets[0]), end: Number(offsets[1]) };
}

// No size of a real checkpoint is beyond what a number holds exactly.
function areSizes(value) {
  return Array.isArray(value) && value.every((size) => typeof size === "bigint" && size >= 0n && size <= BigInt(Number.MAX_SAFE_INTEGER));
}
