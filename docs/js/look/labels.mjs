// The names of classes in a line, as `inspect` writes it, and made harmless: see headscope/render/text/safe.py.
"use strict";

import { withCommas } from "./template.mjs";

const MOST = 12;
const BRIEF = 64;
const HIDDEN = new RegExp("[\\p{C}\\p{Zl}\\p{Zp}\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u2800\\u3164\\ufe00-\\ufe0f" +
  "\\uffa0\\u{1d159}\\u{e0100}-\\u{e01ef}]|(?! )\\p{Zs}", "gu");
const NAMED = { "\t": "\\t", "\n": "\\n", "\r": "\\r" };

// A text with everything invisible or active as a visible escape.
export function safe(text) {
  return text.replace(HIDDEN, (char) => {
    const code = char.codePointAt(0);
    const [sign, digits] = code <= 0xff ? ["x", 2] : code <= 0xffff ? ["u", 4] : ["U", 8];
    return NAMED[char] ?? `\\${sign}${code.toString(16).padStart(digits, "0")}`;
  });
}

// A text in which Markdown finds nothing to format, and GitHub nobody to notify.
export function plain(text) {
  return safe(text).replace(/[\\`*_{}[\]<>#|!&]/g, "\\$&").replaceAll("@", "@&#8203;");
}

// `3: negative, neutral, positive`
export function labelLine(labels) {
  let size = 0;
  const fitting = labels.filter((label) => (size += [...label].length) <= BRIEF).length;
  const most = Math.max(1, Math.min(MOST, fitting));
  const rest = labels.length > most ? ` and ${withCommas(labels.length - most)} more (--json lists all)` : "";
  return safe(`${withCommas(labels.length)}: ${labels.slice(0, most).join(", ")}${rest}`);
}
