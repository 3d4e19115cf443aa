// JSON as Python reads it: whole numbers are BigInt and others Number, objects are Map, a key may occur only once.
"use strict";

const DEEPEST = 120;
const SPACE = /[ \t\n\r]*/y;
const NUMBER = /-?(?:0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?/y;
const TEXT = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const WORDS = [["true", true], ["false", false], ["null", null], ["NaN", NaN], ["Infinity", Infinity], ["-Infinity", -Infinity]];

export class NotJson extends Error {}

// The value of a text. Throws NotJson.
export function parse(text) {
  let at = 0;
  const take = (pattern) => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) at = pattern.lastIndex;
    return found;
  };
  const sign = (expected) => {
    take(SPACE);
    if (text[at] !== expected) return false;
    at += 1;
    return true;
  };
  const fail = (what) => { throw new NotJson(`${what} at character ${at}`); };
  const string = () => {
    const found = take(TEXT);
    return found ? JSON.parse(found[0]) : fail("a text was expected");
  };
  const value = (depth) => {
    if (depth > DEEPEST) fail("it is nested too deeply");
    take(SPACE);
    if (text[at] === '"') return string();
    if (sign("{")) return object(depth);
    if (sign("[")) return list(depth);
    for (const [word, meant] of WORDS)
      if (text.startsWith(word, at)) {
        at += word.length;
        return meant;
      }
    const number = take(NUMBER);
    if (!number) fail("a value was expected");
    return number[1] || number[2] ? Number(number[0]) : BigInt(number[0]);
  };
  const object = (depth) => {
    const found = new Map();
    if (sign("}")) return found;
    do {
      take(SPACE);
      const key = string();
      if (found.has(key)) fail(`the key ${JSON.stringify(key)} occurs twice`);
      if (!sign(":")) fail("a colon was expected");
      found.set(key, value(depth + 1));
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
  take(SPACE);
  return at === text.length ? whole : fail("more follows its end");
}

// The value of the bytes of a file. Throws NotJson.
export function parseBytes(bytes) {
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new NotJson("it is not UTF-8 text");
  }
  return parse(text);
}

// A text that is the same for equal values alone: 1, 1.0 and true are not equal.
export function canonical(value) {
  if (value instanceof Map)
    return `{${[...value.keys()].sort().map((key) => `${JSON.stringify(key)}:${canonical(value.get(key))}`).join()}}`;
  if (Array.isArray(value)) return `[${value.map(canonical).join()}]`;
  if (typeof value === "bigint") return value.toString();
  if (typeof value === "number") return Object.is(value, -0) ? "f-0" : `f${value}`;
  return JSON.stringify(value);
}
