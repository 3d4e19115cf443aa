// The names of classes in a line, as `inspect` writes it.
"use strict";

import { safe } from "./foreign.mjs";
import { withCommas } from "./template.mjs";

const MOST = 12;
const BRIEF = 64;

// `3: negative, neutral, positive`
export function labelLine(labels) {
  let size = 0;
  const fitting = labels.filter((label) => (size += [...label].length) <= BRIEF).length;
  const most = Math.max(1, Math.min(MOST, fitting));
  const rest = labels.length > most ? ` and ${withCommas(labels.length - most)} more (--json lists all)` : "";
  return safe(`${withCommas(labels.length)}: ${labels.slice(0, most).join(", ")}${rest}`);
}
