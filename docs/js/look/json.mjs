// JSON as Python reads it: whole numbers are BigInt and others Number, objects are Map, a key may occur only once.
"use strict";

import { brief } from "./foreign.mjs";

const DEEPEST = 127;
const MOST_DIGITS = 4_300;
const HALF = /\p{Cs}/u;
const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?/y;
const WORDS = [["true", true], ["false", false], ["null", null], ["NaN", NaN], ["Infinity", Infinity], ["-Infinity", -Infinity]];

export class NotJson extends Error {}

// An object as its pairs of key and value, doubles included.
export class Pairs extends Array {}

// The value of a text. Throws NotJson. With `isHeader` it is read as by the parser of safetensors, which takes no NaN, no
// number beyond all bounds and no half of a surrogate pair, and a key twice: an object is Pairs.
export function parse(text, isHeader = false) {
  let at = 0;
  const fail = (what) => { throw new NotJson(`${what} at character ${at}`); };
  const next = () => {
    while (text[at] === " " || text[at] === "\n" || text[at] === "\r" || text[at] === "\t") at += 1;
    return text[at];
  };
  const sign = (expected) => {
    if (next() !== expected) return false;
    at += 1;
    return true;
  };
  const string = () => {
    const begin = next() === '"' ? at : fail("a text was expected");
    for (at += 1; at < text.length && text[at] !== '"'; at += 1) if (text[at] === "\\") at += 1;
    at += 1;
    let found;
    try {
      found = JSON.parse(text.slice(begin, at));
    } catch {
      at = begin;
      fail("a text was expected");
    }
    return isHeader && HALF.test(found) ? fail("a text holds half a surrogate pair") : found;
  };
  const number = () => {
    NUMBER.lastIndex = at;
    if (!NUMBER.test(text)) return word();
    const found = text.slice(at, NUMBER.lastIndex);
    const isWhole = !/[.eE]/.test(found) && !(isHeader && found[0] === "-"); // no size is negative
    if (isHeader && !Number.isFinite(Number(found))) fail("a number is out of range");
    if (isWhole && found.length > MOST_DIGITS) fail(`a number has more than ${MOST_DIGITS} digits`);
    at += found.length;
    return isWhole ? BigInt(found) : Number(found);
  };
  const word = () => {
    const found = WORDS.slice(0, isHeader ? 3 : 6).find(([word]) => text.startsWith(word, at)) ?? fail("a value was expected");
    at += found[0].length;
    return found[1];
  };
  const value = (depth) => {
    const first = next();
    if (first === '"') return string();
    if (first !== "{" && first !== "[") return number();
    if (depth >= DEEPEST) fail("it is nested too deeply");
    at += 1;
    return first === "{" ? object(depth) : list(depth);
  };
  const object = (depth) => {
    const found = isHeader ? new Pairs() : new Map();
    if (sign("}")) return found;
    do {
      const key = string();
      if (!isHeader && found.has(key)) fail(`the key "${brief(key)}" occurs twice`);
      if (!sign(":")) fail("a colon was expected");
      const inside = value(depth + 1);
      if (isHeader) found.push([key, inside]); else found.set(key, inside);
    } while (sign(","));
    return sign("}") ? found : fail("} was expected");
  };
  const list = (depth) => {
    const found = [];
    if (sign("]")) return found;
    do found.push(value(depth + 1)); while (sign(","));
    return sign("]") ? found : fail("] was expected");
  };
  const whole = value(0);
  next();
  return at === text.length ? whole : fail("more follows its end");
}

// The value of the bytes of a file. Throws NotJson.
export function parseBytes(bytes, isHeader = false) {
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new NotJson("it is not UTF-8 text");
  }
  return parse(text, isHeader);
}

// Whether two values are the same: 1, 1.0 and true are not. Takes no longer than the smaller of them allows.
export function same(one, other) {
  if (one instanceof Map)
    return other instanceof Map && one.size === other.size && [...one].every(([key, value]) => other.has(key) && same(value, other.get(key)));
  if (Array.isArray(one))
    return Array.isArray(other) && one.length === other.length && one.every((value, at) => same(value, other[at]));
  return Object.is(one, other);
}
