// Which shipped structure a checkpoint has, by the rules of headscope/examination/checkpoint/shipped_structures.py.
"use strict";

import { same } from "./json.mjs";

const LABELS = ["id2label", "label2id"];
const PLACEHOLDER = /^LABEL_\p{Decimal_Number}+$/u;

// Why nothing can be said: `kind` is one word for it.
export class NotKnown extends Error {
  constructor(kind, sentence) {
    super(sentence);
    this.kind = kind;
  }
}

// The part of the index that holds the structures of a family with that many tensors; "" where there is none.
export function memberOf(config, tensors, words) {
  const family = config.get("model_type");
  const member = typeof family === "string" ? `${family}-${tensors.length}` : "";
  return words.members.includes(member) ? member : "";
}

// The names of the classes, if they are numbered from 0 and `label2id` says the same; null for anything else.
export function plainLabels(config) {
  const names = config.get("id2label");
  const numbers = config.get("label2id");
  if (!(names instanceof Map) || names.size === 0) return null;
  const labels = Array.from({ length: names.size }, (_, at) => names.get(String(at)));
  if (!labels.every((label) => typeof label === "string")) return null;
  if (!config.has("label2id")) return labels;
  const expected = new Map(labels.map((label, at) => [label, BigInt(at)]));
  return same(expected, numbers) ? labels : null;
}

// How many classes are meant, by the configuration, by the request, or by default; `names` are theirs.
export function classesOf(config, wanted, most) {
  const stated = plainLabels(config);
  if (stated === null && LABELS.some((name) => config.has(name)))
    throw new NotKnown("labels", "config.json numbers its classes in an unusual way, or its label maps contradict each other.");
  if (stated !== null && wanted !== null)
    throw new NotKnown("other count", `config.json names ${stated.length} classes; what happens with another number is not known here.`);
  const number = wanted ?? (stated ? stated.length : null);
  if (number !== null && number > most) throw new NotKnown("many classes", `There are more classes than this page knows of (${most}).`);
  if (stated && new Set(stated).size < stated.length) throw new NotKnown("repeated label", "config.json gives one name to several classes.");
  const kind = number === null ? "default" : number <= 2 ? String(number) : "many";
  return { form: wanted === null ? "stated" : "asked", kind, number, naming: namingOf(stated), names: stated ?? [] };
}

function namingOf(labels) {
  if (!labels || labels.every((label, at) => label === `LABEL_${at}`)) return "placeholders";
  if (labels.every((label) => PLACEHOLDER.test(label)))
    throw new NotKnown("placeholders", "config.json gives its classes placeholders (LABEL_...) in another order.");
  return "named";
}

// The entry of a part of the index that is this checkpoint's structure, and the key of what is said of it.
export async function structureIn(entries, config, tensors, classes, silent) {
  const key = `${classes.form} ${classes.kind} ${classes.naming}`;
  const present = LABELS.map((name) => config.has(name));
  const own = comparedFields(config, silent);
  for (const entry of entries) {
    if (!entry.get("answers").includes(key)) continue;
    if (!present.every((is) => is === entry.get("labels"))) continue;
    if (!isSameConfig(entry, own)) continue;
    if (await areSameTensors(entry, tensors, classes)) return { id: entry.get("id"), key };
  }
  throw new NotKnown("structure", "The structure of this checkpoint is not among those that this page knows.");
}

// The fields of a configuration that matter, under the names of today.
function comparedFields(config, silent) {
  const left = new Set([...LABELS, ...silent]);
  const own = new Map([...config].filter(([name]) => !left.has(name)));
  if (own.has("torch_dtype") && !own.has("dtype")) {
    own.set("dtype", own.get("torch_dtype"));
    own.delete("torch_dtype");
  }
  return own;
}

function isSameConfig(entry, own) {
  const whole = entry.get("config");
  for (const [name, value] of own)
    if (whole.has(name) ? !same(whole.get(name), value) : !entry.get("quiet").includes(name)) return false;
  return [...whole.keys()].every((name) => own.has(name) || entry.get("free").includes(name));
}

async function areSameTensors(entry, tensors, classes) {
  const stated = classes.form === "stated" ? classes.number ?? 0 : 0;
  const shapes = new Map(entry.get("varying").map(([at, shape]) => [Number(at), shape.map((axis) => sizeOf(axis, stated))]));
  for (const [at, shape] of shapes) if (!same(shape, tensors[at]?.shape)) return false;
  const fixed = tensors.map(({ key, dtype, shape }, at) => [key, dtype, shapes.has(at) ? null : shape]);
  return await digestOf(fixed) === entry.get("tensors");
}

function sizeOf(axis, count) {
  return Array.isArray(axis) ? Number(axis[0]) * count + Number(axis[1]) : Number(axis);
}

async function digestOf(value) {
  const bytes = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(JSON.stringify(value)));
  return Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("").slice(0, 20);
}
