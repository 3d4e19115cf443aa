// Text from outside, made harmless: as the page shows it, in Markdown, and as a word of a command for a shell.
"use strict";

import { withCommas } from "./template.mjs";

const LONGEST = 160;
// What headscope/core/words/safe.py escapes.
const HIDDEN = new RegExp("[\\p{C}\\p{Zl}\\p{Zp}\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u2800\\u3164\\ufe00-\\ufe0f" +
  "\\uffa0\\u{1d159}\\u{e0100}-\\u{e01ef}]|(?! )\\p{Zs}", "gu");
const NAMED = { "\t": "\\t", "\n": "\\n", "\r": "\\r" };
const PLAIN_WORD = /^[\w@%+=:,./-]+$/;

// A text with everything invisible or active as a visible escape.
export function safe(text) {
  return text.replace(HIDDEN, (char) => {
    const code = char.codePointAt(0);
    const [sign, digits] = code <= 0xff ? ["x", 2] : code <= 0xffff ? ["u", 4] : ["U", 8];
    return NAMED[char] ?? `\\${sign}${code.toString(16).padStart(digits, "0")}`;
  });
}

// A text as it is, and a long one as its two ends and its length.
export function cut(text, longest = LONGEST) {
  if (text.length <= longest) return text;
  const half = Math.floor(longest / 2);
  const begin = text.slice(0, half).replace(/[\ud800-\udbff]$/, "");
  const end = text.slice(-half).replace(/^[\udc00-\udfff]/, "");
  return `${begin}\u2026${end} (${withCommas([...text].length)} characters)`;
}

// A text as the page shows it.
export function brief(text, longest) {
  return safe(cut(text, longest));
}

// A text in which Markdown finds nothing to format, and GitHub nobody to notify.
export function plain(text) {
  return safe(text).replace(/[\\`*_{}[\]<>#|!&]/g, "\\$&").replaceAll("@", "@&#8203;");
}

// A command to paste, which a POSIX shell takes apart into just these words, as `shlex.join` of Python makes it. Every
// command on the page comes from here.
export function commandLine(words) {
  return words.map((word) => PLAIN_WORD.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`).join(" ");
}
