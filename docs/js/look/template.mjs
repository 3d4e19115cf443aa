// Fills in what the site's build made with Python: the templates of headscope/core/source/memory/templates.py.
"use strict";

// A template for some symbols: whole numbers as BigInt, others as Number, texts. Throws where one is missing. `cast` is
// what whole numbers become.
export function filled(template, symbols, cast = (number) => number) {
  if (Array.isArray(template)) return template.flatMap((item) => itemsOf(item, symbols, cast));
  const parts = template instanceof Map ? template : template !== null && typeof template === "object" ? new Map(Object.entries(template)) : null;
  if (parts === null) return template;
  if (parts.has("+")) return cast(numberOf(parts.get("+"), symbols));
  if (parts.has("")) return parts.get("").map((part) => typeof part === "string" ? part : written(part, symbols)).join("");
  if (parts.has("t")) return typeof valueOf(parts.get("t"), symbols) === "bigint" ? cast(symbols.get(parts.get("t"))) : symbols.get(parts.get("t"));
  if (parts.has("√")) return spreadOf(parts.get("√"), symbols);
  const found = [...parts].map(([name, value]) => [name, filled(value, symbols, cast)]);
  return template instanceof Map ? new Map(found) : Object.fromEntries(found);
}

// The items of a list that one item of its template stands for.
function itemsOf(item, symbols, cast) {
  const get = (name) => item instanceof Map ? item.get(name) : item?.[name];
  const [repeated, cycled] = item !== null && typeof item === "object" && !Array.isArray(item) ? [get("*"), get("~")] : [];
  if (repeated) {
    const [terms, symbol, first, inside] = repeated;
    const found = [];
    for (let at = BigInt(first); at < numberOf(terms, symbols); at += 1n) found.push(...filled(inside, new Map(symbols).set(symbol, at), cast));
    return found;
  }
  if (cycled) return Array.from({ length: Number(numberOf(cycled[0], symbols)) }, (_, at) => cycled[1][at % cycled[1].length]);
  return [filled(item, symbols, cast)];
}

function spreadOf([times, above, terms], symbols) {
  return Number(times) * Math.sqrt(Number(above) / Number(numberOf(terms, symbols)));
}

// The sum of some terms: each is a number, or a number with the names that it is multiplied by and, after "/", divided.
function numberOf(terms, symbols) {
  return terms.reduce((sum, term) => sum + (Array.isArray(term) ? productOf(term, symbols) : BigInt(term)), 0n);
}

function productOf([times, ...names], symbols) {
  const cut = names.includes("/") ? names.indexOf("/") : names.length;
  const product = (some) => some.reduce((found, name) => found * wholeOf(name, symbols), 1n);
  const above = BigInt(times) * product(names.slice(0, cut));
  const below = product(names.slice(cut + 1));
  if (below === 0n || above % below) throw new RangeError(`${names.join(" ")} is no whole number`);
  return above / below;
}

// The value of a symbol, or of the whole part of a quotient: `image_size//patch_size`.
function wholeOf(name, symbols) {
  const [one, two] = name.split("//");
  const value = BigInt(valueOf(one, symbols));
  return two === undefined ? value : value / BigInt(valueOf(two, symbols));
}

function valueOf(name, symbols) {
  if (!symbols.has(name)) throw new RangeError(`there is no ${name}`);
  return symbols.get(name);
}

function written(part, symbols) {
  if (part[0] === "t") {
    const value = valueOf(part[1], symbols);
    return Number.isInteger(value) ? value.toFixed(1) : String(value);
  }
  return part[0] === "," ? withCommas(numberOf(part.slice(1), symbols)) : String(numberOf(part, symbols));
}

// Texts in which marks stand for articles before a number, `an` being those below a thousand that are read with "an",
// and for the dtype of the weights.
export function withoutMarks(value, dtype, an) {
  if (typeof value === "string")
    return value
      .replace(/([\u0001\u0002])(?=(\d+))/g, (_, mark, number) => `${mark === "\u0001" ? "a" : "A"}${an.includes(Number(number)) ? "n" : ""} `)
      .replaceAll("\u0003", () => dtype);
  if (Array.isArray(value)) return value.map((item) => withoutMarks(item, dtype, an));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, withoutMarks(item, dtype, an)]));
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
