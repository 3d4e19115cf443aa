// Fills in what the site's build made with Python: see scripts/look_templates.py.
"use strict";

// A template for a number of classes; `an` are the ranges of numbers that are read with "an" before them.
export function filled(template, count, an) {
  if (Array.isArray(template)) return template.map((item) => filled(item, count, an));
  if (template === null || typeof template !== "object") return template;
  if (template["$+"]) return template["$+"][0] * count + template["$+"][1];
  if (template["$by"]) return filled(template["$by"].find(([most]) => count <= most)[1], count, an);
  if (template.$) return template.$.map((part) => typeof part === "string" ? part : written(part, count, an)).join("");
  return Object.fromEntries(Object.entries(template).map(([name, value]) => [name, filled(value, count, an)]));
}

function written([each, more, how], count, an) {
  const number = each * count + more;
  if (!how) return String(number);
  const text = withCommas(number);
  if (how === ",") return text;
  return `${an.some(([first, last]) => first <= number && number <= last) ? how : how[0]} ${text}`;
}

// 1,234,567
export function withCommas(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ",");
}

// A value with others at some places: each change is the way there and what is there.
export function changed(base, changes) {
  const found = { value: structuredClone(base) };
  for (const [path, value] of changes) {
    const way = ["value", ...path];
    const last = way.pop();
    way.reduce((inside, step) => inside[step], found)[last] = value;
  }
  return found.value;
}

// The text of a file that was compressed when the site was built; a server may have decompressed it already.
export async function textOf(blob) {
  const start = new Uint8Array(await blob.slice(0, 2).arrayBuffer());
  const isPacked = start[0] === 0x1f && start[1] === 0x8b;
  return new Response(isPacked ? blob.stream().pipeThrough(new DecompressionStream("gzip")) : blob).text();
}
