// Compares the scores of an engine with a card of headscope: reader.ts CARD SCORES [PRECISION], as reader.py does.
// Its types can be erased: `compare` runs wherever JavaScript does.
import { readFileSync } from "node:fs";

type Row = number[];
type Head = { name: string; logits: Row[] };
type Input = { input_ids: Row; attention_mask: Row };
type Card = {
  format: string; version: number; labels: string[]; inputs: Input[]; logits: Row[]; scores: Row[] | null;
  tolerances: { precision: string; logits: number | null; scores: number | null }[]; alternatives: Head[];
};
type Given = { logits?: (Row | number)[]; scores?: (Row | number)[]; input_ids?: Row[]; labels?: string[] };

function softmax(row: Row): Row {
  const powers = row.map((value) => Math.exp(value - Math.max(...row)));
  const sum = powers.reduce((one, other) => one + other, 0);
  return powers.map((power) => power / sum);
}

const sigmoid = (row: Row): Row => row.map((value) => 1 / (1 + Math.exp(-value)));
const FUNCTIONS: [string, (row: Row) => Row][] = [
  ["none", (row) => row],
  ["softmax", softmax],
  ["sigmoid", sigmoid],
  ["softmax of softmax", (row) => softmax(softmax(row))],
  ["sigmoid of sigmoid", (row) => sigmoid(sigmoid(row))],
];
const difference = (rows: Row[], others: Row[]): number =>
  Math.max(0, ...rows.flatMap((row, at) => row.map((value, to) => Math.abs(value - others[at][to]))));
const short = (value: number): string => value.toPrecision(2);
const same = (one: Row, other: Row): boolean => one.length === other.length && one.every((value, at) => value === other[at]);

// For each class of the engine, the class of the card with the nearest scores.
function nearestOrder(rows: Row[], given: Row[]): Row {
  return given[0].map((_, at) => {
    const gaps = given[0].map((_, to) => Math.max(...given.map((row, text) => Math.abs(row[at] - rows[text][to]))));
    return gaps.indexOf(Math.min(...gaps));
  });
}

// What gives all the scores: a head of the card, a function on its logits, and an order of the classes.
function explanations(card: Card, places: Row, given: Row[], tolerance: number): string[] {
  const heads = [{ name: "as it is", logits: card.logits }, ...card.alternatives];
  return heads.flatMap((head) => FUNCTIONS.flatMap(([name, apply]) => {
    const rows = places.map((at) => apply(head.logits[at]));
    const plain = rows[0].map((_, at) => at), nearest = nearestOrder(rows, given);
    const orders = new Set(nearest).size === plain.length ? [plain, nearest] : [plain];
    const order = orders.find((one) => difference(rows.map((row) => one.map((at) => row[at])), given) <= tolerance);
    if (order === undefined) return [];
    return [`${head.name}, then ${name}${same(order, plain) ? "" : `, classes in the order [${order.join(", ")}]`}`];
  }));
}

// Gives the exit code and a sentence.
export function compare(card: Card, file: Given | (Row | number)[], precision = "float32"): [number, string] {
  if (card.format !== "headscope-card" || card.version !== 1) return [2, "not a card of version 1"];
  const answer: Given = Array.isArray(file) ? { scores: file } : file;
  const kind = answer.logits !== undefined ? "logits" : "scores";
  if (answer.labels && JSON.stringify(answer.labels) !== JSON.stringify(card.labels))
    return [2, "other labels than the card's, or in another order: put the scores into the order of the card"];
  const rows = answer[kind]!.map((row) => (Array.isArray(row) ? row : [row]));
  const count = card.inputs.length, width = card.labels.length;
  if (rows.length !== count || rows.some((row) => row.length !== width))
    return [2, `${count} rows of ${width} numbers were expected`];
  if (!rows.every((row) => row.every(Number.isFinite))) return [1, "numbers that are not finite"];
  const limit = card.tolerances.find((item) => item.precision === precision)?.[kind] ?? null, all = card[kind];
  if (limit === null || all === null) return [2, `${kind} were not measured in ${precision}`];
  const tokens = card.inputs.map((item) => item.input_ids.filter((_, at) => item.attention_mask[at]));
  const ids = answer.input_ids ?? tokens, every = rows.map((_, at) => at);
  const places = every.filter((at) => same(ids[at], tokens[at]) || same(ids[at], card.inputs[at].input_ids));
  const others = every.filter((at) => !places.includes(at));
  const tokenizer = others.length ? `the tokenizer differs on inputs [${others.join(", ")}]; ` : "";
  if (!places.length) return [1, `${tokenizer}the head was not compared`];
  const given = places.map((at) => rows[at]), expected = places.map((at) => all[at]);
  const off = difference(given, expected), columns = card.labels.map((_, to) => expected.map((row) => row[to]));
  if (columns.every((column) => Math.max(...column) - Math.min(...column) < 2 * limit))
    return [3, `${tokenizer}the expected scores hardly differ, so equal ones show nothing`];
  if (off <= limit)
    return [difference(rows, all) > limit ? 1 : 0, `${tokenizer}the same ${kind} within ${precision} (off by ${short(off)})`];
  const found = explanations(card, places, given, limit);
  const cause = found.length === 1 ? found[0] : found.length ? "several causes fit" : "cause not in the card";
  const near = card.tolerances.find((item) => item[kind] !== null && off <= item[kind]);
  const rounding = near ? `; within the rounding of ${near.precision}` : "";
  return [1, `${tokenizer}other ${kind}, off by ${short(off)}: ${cause}${rounding}`];
}

let result: [number, string];
try {
  const [card, file] = process.argv.slice(2, 4).map((name) => JSON.parse(readFileSync(name, "utf8")));
  result = compare(card, file, process.argv[4]);
} catch (error) {
  result = [2, `unusable: ${error}`];
}
console.log(`${["PASS", "FAIL", "UNUSABLE", "NOT DETERMINED"][result[0]]}: ${result[1]}`);
process.exitCode = result[0];
