// Which shipped structure a checkpoint has, by the rules of headscope/examination/checkpoint/shipped_structures.py.
"use strict";

import { same } from "./json.mjs";

const LABELS = ["id2label", "label2id"];
const ABSENT = new Map([["absent", true]]);
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
  if (stated !== null && wanted === stated.length) wanted = null;
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
export async function structureIn(entries, config, tensors, classes, reserved) {
  const problem = config.get("problem_type") ?? null;
  const key = `${classes.form} ${classes.kind} ${classes.naming}${problem === null ? "" : ` ${problem}`}`;
  const present = LABELS.map((name) => config.has(name));
  const isPlain = ![...config.keys()].some((name) => name.startsWith("__") || reserved.includes(name));
  const sorted = [...tensors].sort((one, other) => (one.key < other.key ? -1 : 1));
  for (const entry of isPlain ? entries : []) {
    if (!entry.get("answers").includes(key)) continue;
    const isLabelled = (form) => form.every((is, at) => is === present[at]);
    if (present.some(Boolean) && !entry.get("labels").some(isLabelled)) continue;
    if (!fits(entry, config)) continue;
    if (await areSameTensors(entry, sorted, classes)) return { id: entry.get("id"), key };
  }
  throw new NotKnown("structure", "The structure of this checkpoint is not among those that this page knows.");
}

// Whether a configuration fits the rules of an entry: what no rule names can't matter.
function fits(entry, config) {
  if (entry.get("absent").some((name) => config.has(name))) return false;
  const dtype = config.get("dtype") ?? config.get("torch_dtype") ?? entry.get("dtype");
  if (dtype !== entry.get("dtype")) return false;
  const defaults = entry.get("defaults");
  return [...entry.get("config")].every(([name, allowed]) => {
    const value = config.has(name) ? config.get(name) : defaults.has(name) ? defaults.get(name) : ABSENT;
    return allowed.some((item) => isAllowed(value, item));
  });
}

// Whether a value is that of a rule, in which {"?": "f"} is any number, and {"?": "ids"} a list of whole numbers.
function isAllowed(value, rule) {
  if (!(rule instanceof Map)) return same(rule, value);
  if (rule.get("?") === "f") return typeof value === "number" || typeof value === "bigint";
  if (rule.has("?")) return Array.isArray(value) && value.length > 0 && value.every((item) => typeof item === "bigint");
  return value instanceof Map && value.size === rule.size && [...rule].every(([name, item]) => value.has(name) && isAllowed(value.get(name), item));
}

async function areSameTensors(entry, tensors, classes) {
  const stated = classes.form === "stated" && classes.number !== null ? classes.number : Number(entry.get("classes"));
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
