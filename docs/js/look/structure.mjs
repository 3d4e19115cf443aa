// Which shipped structure a checkpoint has, by the rules of headscope/core/source/memory/shipped_structures.py.
"use strict";

import { brief } from "./foreign.mjs";
import { same } from "./json.mjs";
import { filled } from "./template.mjs";

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

// The family of a checkpoint; "" where this page knows none of its structures.
export function familyOf(config, words) {
  const family = config.get("model_type");
  return words.families.includes(family) ? family : "";
}

// Transformers 5.24 writes null for a label map that it wasn't given.
const isAbsent = (config, name) => (config.get(name) ?? null) === null;

// The names of the classes, if they are numbered from 0 and `label2id`, which heads don't read, has ids; else null.
export function plainLabels(config) {
  const names = config.get("id2label");
  const numbers = config.get("label2id");
  if (!(names instanceof Map) || names.size === 0) return null;
  const labels = Array.from({ length: names.size }, (_, at) => names.get(String(at)));
  if (!labels.every((label) => typeof label === "string")) return null;
  if (isAbsent(config, "label2id")) return labels;
  const isId = (value) => typeof value === "bigint" || typeof value === "string";
  return numbers instanceof Map && [...numbers.values()].every(isId) ? labels : null;
}

// How many classes are meant, by the configuration, by the request, or by default; `names` are theirs.
export function classesOf(config, wanted, most) {
  const stated = plainLabels(config);
  if (stated === null && LABELS.some((name) => !isAbsent(config, name)))
    throw new NotKnown("labels", "config.json numbers its classes in an unusual way.");
  if (stated !== null && wanted === stated.length) wanted = null;
  if (stated !== null && wanted !== null)
    throw new NotKnown("other count", `config.json names ${stated.length} classes; what happens with another number is not known here.`);
  const number = wanted ?? (stated ? stated.length : null);
  if (number !== null && number > most) throw new NotKnown("many classes", `There are more classes than this page knows of (${most}).`);
  if (stated && new Set(stated).size < stated.length) throw new NotKnown("repeated label", "config.json gives one name to several classes.");
  const kind = number === null ? "default" : number <= 4 ? String(number) : "many"; // lists name up to four
  return { form: wanted === null ? "stated" : "asked", kind, number, naming: namingOf(stated), names: stated ?? [] };
}

function namingOf(labels) {
  if (!labels || labels.every((label, at) => label === `LABEL_${at}`)) return "placeholders";
  if (labels.every((label) => PLACEHOLDER.test(label)))
    throw new NotKnown("placeholders", "config.json gives its classes placeholders (LABEL_...) in another order.");
  return "named";
}

// The structure of a checkpoint among those of its family: where its answers are, the key of its own, and its sizes.
export function structureIn(entries, config, tensors, classes, reserved) {
  const named = [...config.keys()].find((name) => name.startsWith("__") || reserved.includes(name));
  if (named !== undefined) throw new NotKnown("structure", `This page doesn't know what ${quoted(named)} in config.json changes.`);
  const misses = [];
  for (const entry of entries) {
    try {
      return placeIn(entry, config, tensors, classes);
    } catch (error) {
      if (!(error instanceof Miss)) throw error;
      misses.push(error);
    }
  }
  const [nearest] = misses.sort((one, other) => other.near - one.near);
  throw new NotKnown("structure", nearest?.message ?? "This page knows no structure of this family.");
}

// Why a structure isn't that of a checkpoint; `near` is how much of it fits.
class Miss extends Error {
  constructor(near, sentence) {
    super(sentence);
    this.near = near;
  }
}

const NEAR = { name: 0, field: 1, sizes: 2, tensors: 3, tokens: 4 };
const quoted = (text) => `"${brief(text)}"`;

function placeIn(entry, config, tensors, classes) {
  const rules = entry.get("config");
  const [, own] = rules.get("architectures");
  if (!same(own, config.get("architectures"))) throw new Miss(NEAR.name, "This page doesn't know the class that config.json names in architectures.");
  const symbols = sizesOf(entry, config);
  symbols.set("classes", classes.number === null ? entry.get("classes") : BigInt(classes.number));
  for (const [kind, one, two] of entry.get("relations"))
    if (!holds(kind, one, two, symbols)) throw new Miss(NEAR.sizes, `This page doesn't know this class with ${one} and ${two} as config.json has them.`);
  symbols.set("dtype", dtypeOf(entry, config, tensors));
  const stated = new Map(symbols);
  if (classes.form === "asked") stated.set("classes", entry.get("classes"));
  const forms = entry.get("forms");
  const form = forms.find((item) => differing(filled(item.get("tensors"), stated), tensors) === null);
  if (!form) throw new Miss(NEAR.tensors, differing(filled(forms[0].get("tensors"), stated), tensors));
  const isHalf = symbols.get("dtype") === "float16";
  const key = `${classes.form} ${classes.kind} ${classes.naming} ${config.get("problem_type") ?? ""} ${patternOf(entry, config)} ${isHalf ? "float16" : ""}`;
  if (!form.get("answers").includes(key))
    throw new Miss(NEAR.tokens, "This page knows this class, and not with these special tokens, number of classes and problem_type.");
  return { id: form.get("id"), key, symbols };
}

// The numbers of a configuration that fits the rules of an entry: what no rule names can't matter.
function sizesOf(entry, config) {
  const absent = entry.get("absent").find((name) => config.has(name));
  if (absent !== undefined) throw new Miss(NEAR.field, `This page doesn't know what ${quoted(absent)} in config.json changes.`);
  const present = LABELS.map((name) => !isAbsent(config, name));
  if (present.some(Boolean) && !entry.get("labels").some((form) => form.every((is, at) => is === present[at])))
    throw new Miss(NEAR.field, "This page doesn't know this class with these label maps in config.json.");
  const defaults = entry.get("defaults");
  const found = new Map();
  const isNumber = (kind, value) => typeof value === "bigint" || (kind === "f" && typeof value === "number");
  for (const [name, [kind]] of entry.get("config")) {
    const value = config.has(name) ? config.get(name) : defaults.get(name);
    if (kind !== "=" && isNumber(kind, value)) found.set(name, value);
  }
  for (const [name, [kind, ...allowed]] of entry.get("config")) {
    if (found.has(name)) continue;
    const value = config.has(name) ? config.get(name) : defaults.has(name) ? orNothing(defaults.get(name), found) : ABSENT;
    if (kind !== "=" && !config.has(name) && isNumber(kind, value)) found.set(name, value);
    else if (!allowed.some((item) => isAllowed(value, orNothing(item, found))))
      throw new Miss(NEAR.field, config.has(name) ? `This page doesn't know this class with ${name} = ${shortOf(value)} in config.json.` : `This page doesn't know this class without ${name} in config.json.`);
  }
  return found;
}

// A template for some sizes; what needs a size that isn't there is no value of anything.
function orNothing(template, sizes) {
  try {
    return filled(template, sizes);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return undefined;
  }
}

function shortOf(value) {
  const text = JSON.stringify(value, (_, item) => typeof item === "bigint" ? Number(item) : item instanceof Map ? Object.fromEntries(item) : item) ?? "nothing";
  return brief(text, 60);
}

// Whether a value is that of a rule, in which {"?": "f"} is any number, and {"?": "ids"} a list of whole numbers.
function isAllowed(value, rule) {
  if (Array.isArray(rule)) return Array.isArray(value) && value.length === rule.length && rule.every((item, at) => isAllowed(value[at], item));
  if (!(rule instanceof Map)) return same(rule, value);
  if (rule.get("?") === "f") return typeof value === "number" || typeof value === "bigint";
  if (rule.has("?")) return Array.isArray(value) && value.length > 0 && value.every((item) => typeof item === "bigint");
  return value instanceof Map && value.size === rule.size && [...rule].every(([name, item]) => value.has(name) && isAllowed(value.get(name), item));
}

function holds(kind, one, two, symbols) {
  const sizeOf = (side) => side.split("*").reduce((found, name) => found === undefined || !symbols.has(name) ? undefined : found * symbols.get(name), 1n);
  const [left, right] = [one, two].map((side) => typeof side === "bigint" ? side : sizeOf(side));
  if (left === undefined || right === undefined) return true; // a field that may be null
  if (kind === "%") return right > 0n && left % right === 0n;
  if (kind === "!=") return left !== right;
  return kind === "<" ? left < right : kind === "<=" ? left <= right : left === right;
}

// The one dtype of the weights, beside whole numbers, that the configuration agrees with.
function dtypeOf(entry, config, tensors) {
  const kinds = [...new Set(tensors.map((item) => item.dtype).filter((item) => item !== "int64"))];
  const stated = config.get("dtype") ?? config.get("torch_dtype") ?? kinds[0];
  if (kinds.length !== 1 || stated !== kinds[0] || !entry.get("dtypes").includes(kinds[0]))
    throw new Miss(NEAR.sizes, `This page doesn't know this class with weights in ${brief(kinds.join(", "))} and dtype = ${shortOf(stated)} in config.json.`);
  return kinds[0];
}

// What tells tensors from those of a form; null where nothing does.
function differing(rows, tensors) {
  const expected = new Map(rows.map(([key, dtype, shape]) => [key, { dtype, shape: shape.map(Number) }]));
  for (const { key, dtype, shape } of tensors) {
    const own = expected.get(key);
    if (!own) return `This page doesn't know this class with a tensor ${quoted(key)}.`;
    if (own.dtype !== dtype || !same(own.shape, shape)) return `This page expects ${quoted(key)} as ${own.shape.join("x")} in ${own.dtype}, and it is ${shape.join("x")} in ${dtype}.`;
    expected.delete(key);
  }
  const [missing] = expected.keys();
  return missing === undefined ? null : `This page doesn't know this class without a tensor ${quoted(missing)}.`;
}

// Which special tokens have no number, or that of another: as scripts/site/site_look.py writes it.
function patternOf(entry, config) {
  const known = new Map([...entry.get("defaults"), ...config]);
  const names = [...entry.get("config").keys()].filter((name) => name.endsWith("_token_id") && known.has(name)).sort();
  const ids = names.map((name) => [name, known.get(name)]);
  const placeOf = (value) => value === null ? "-" : Array.isArray(value) ? "*" : ids.findIndex(([, other]) => same(other, value));
  return ids.map(([name, value]) => `${name.slice(0, -"_token_id".length)}:${placeOf(value)}`).join(",");
}
