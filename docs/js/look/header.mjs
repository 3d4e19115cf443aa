// The header of a safetensors file, checked as strictly as the official parser does.
"use strict";

import { brief } from "./foreign.mjs";
import { NotJson, Pairs, parseBytes } from "./json.mjs";

export const PREFIX = 8;
export const LARGEST = 1_000_000;
const LARGEST_SIZE = 2n ** 64n - 1n;
const METADATA = "__metadata__";
const FIELDS = ["dtype", "shape", "data_offsets"];

export class BadHeader extends Error {}

// How long the header is, of the first 8 bytes of a file of this size.
export function headerLength(bytes, size) {
  if (bytes.length < PREFIX) throw new BadHeader(`the file holds ${bytes.length} bytes, fewer than the length of a header`);
  const length = new DataView(bytes.buffer, bytes.byteOffset, PREFIX).getBigUint64(0, true);
  if (length > BigInt(size - PREFIX)) throw new BadHeader(`its header claims ${length} bytes, and the file has ${size}`);
  return length;
}

// The tensors in the order of their data, as {key, dtype, shape}, of a file of this size.
export function tensorsOf(header, dtypes, size) {
  let entries;
  try {
    entries = parseBytes(header, true);
  } catch (error) {
    if (error instanceof NotJson) throw new BadHeader(`its header is not JSON: ${error.message}`);
    throw error;
  }
  if (!(entries instanceof Pairs)) throw new BadHeader("its header is not a JSON object");
  checkMetadata(entries);
  const described = new Map(entries.filter(([key]) => key !== METADATA).map(([key, entry]) => [key, tensorOf(key, entry, dtypes)]));
  const tensors = [...described.values()].sort((one, other) => order(one.begin, other.begin) || order(one.end, other.end));
  let at = 0n;
  for (const { key, begin, end } of tensors) {
    if (begin !== at) throw new BadHeader(`the data of "${brief(key)}" begins at ${begin} where ${at} was expected`);
    at = end;
  }
  const whole = BigInt(PREFIX + header.length) + at;
  if (whole !== BigInt(size)) throw new BadHeader(`its header accounts for ${whole} bytes, and the file has ${size}`);
  return tensors.map(({ key, dtype, shape }) => ({ key, dtype, shape }));
}

function order(one, other) {
  return one < other ? -1 : Number(one > other);
}

function checkMetadata(entries) {
  const found = entries.filter(([key]) => key === METADATA).map(([, value]) => value);
  if (found.length > 1) throw new BadHeader("__metadata__ occurs twice");
  for (const metadata of found)
    if (metadata !== null && !(metadata instanceof Pairs && metadata.every(([, value]) => typeof value === "string")))
      throw new BadHeader("__metadata__ is not a map of texts");
}

function tensorOf(key, entry, dtypes) {
  const [dtype, shape, offsets] = fieldsOf(entry);
  if (typeof dtype !== "string" || !Object.hasOwn(dtypes, dtype) || !areSizes(shape) || !areSizes(offsets) || offsets.length !== 2)
    throw new BadHeader(`the entry of "${brief(key)}" doesn't describe a tensor`);
  const [name, bits] = dtypes[dtype];
  const length = product(shape, key) * BigInt(bits);
  if (length > LARGEST_SIZE || length % 8n || offsets[1] - offsets[0] !== length / 8n)
    throw new BadHeader(`the size of "${brief(key)}" doesn't fit its place`);
  return { key, dtype: name, shape: shape.map(Number), begin: offsets[0], end: offsets[1] };
}

// By name or by place, as the official parser takes them.
function fieldsOf(entry) {
  if (Array.isArray(entry) && !(entry instanceof Pairs)) return entry.length === FIELDS.length ? entry : [];
  const known = entry instanceof Pairs ? entry.filter(([name]) => FIELDS.includes(name)) : [];
  return known.length === FIELDS.length ? FIELDS.map((name) => known.find(([own]) => own === name)?.[1]) : [];
}

// The official parser multiplies in 64 bits and refuses what overflows, zeros or not; so no product takes long either.
function product(shape, key) {
  let found = 1n;
  for (const size of shape) {
    found *= size;
    if (found > LARGEST_SIZE) throw new BadHeader(`the shape of "${brief(key)}" overflows`);
  }
  return found;
}

function areSizes(value) {
  return Array.isArray(value) && value.every((size) => typeof size === "bigint" && size >= 0n && size <= LARGEST_SIZE);
}
