// Compares the scores of an engine with a card of headscope: reader.ts CARD SCORES [PRECISION], as reader.py does.
// Its types can be erased.
import { readFileSync } from "node:fs";

type Row = number[]; type Rows = (Row | number)[]; type Head = { name: string; logits: Row[] };
type Card = Head & {
  format: string; version: number; activation: string; labels: string[]; scores: Row[] | null;
  inputs: { input_ids: Row; attention_mask: Row }[]; alternatives: Head[]; runs: Head[];
  tolerances: { precision: string; logits: number | null; scores: number | null }[];
};
type Given = { logits?: Rows | null; scores?: Rows | null; input_ids?: Row[] | null; labels?: string[] | null };

const largest = (values: Row): number => values.reduce((one, other) => Math.max(one, other), -Infinity);
const softmax = (row: Row, top = largest(row), sum = total(row.map((value) => Math.exp(value - top)))): Row => row.map((value) => Math.exp(value - top) / sum);
const sigmoid = (row: Row): Row => row.map((value) => 1 / (1 + Math.exp(-value)));
const FUNCTIONS: [string, (row: Row) => Row][] = [
  ["none", (row) => row], ["softmax", (row) => softmax(row)], ["sigmoid", sigmoid],
  ["softmax of softmax", (row) => softmax(softmax(row))], ["sigmoid of sigmoid", (row) => sigmoid(sigmoid(row))],
];
const difference = (rows: Row[], others: Row[]): number =>
  largest(rows.map((row, at) => largest(row.map((value, to) => Math.abs(value - others[at][to])))));
const total = (row: Row): number => row.reduce((all, value) => all + value, 0);
// The squares of the differences of each class or, with `by` 1, of what is left of them without their mean.
const squaresOf = (gaps: Row, by: number): number => total(gaps.map((gap) => gap * gap)) - (by * total(gaps) ** 2) / gaps.length;
const squares = (rows: Row[], others: Row[], by: number): number => total(rows[0].map((_, to) => squaresOf(rows.map((row, at) => row[to] - others[at][to]), by)));
const same = (one: Row, other: Row): boolean => one.length === other.length && one.every((value, at) => value === other[at]);
const sorted = (rows: Row[]): Row[] => rows.map((row) => [...row].sort((one, other) => one - other));
const need = (isMet: boolean, found: string): void => { if (!isMet) throw new Error(found); };

function read(name: string): any {
  const text = new TextDecoder("utf-8", { fatal: true }).decode(readFileSync(name)), keys: Set<string>[] = [];
  const finite = (_: string, value: any): any => (need(value !== Infinity && value !== -Infinity, "a number is not finite"), value);
  let found = JSON.parse(text, finite), last = "";
  for (const [sign] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\]:]/g)) // of two values for one key, JSON.parse takes the last
    if (/[{[]/.test(sign[0])) keys.push(new Set());
    else if (/[}\]]/.test(sign[0])) keys.pop();
    else if (sign !== ":") last = JSON.parse(sign);
    else need(!keys.at(-1)!.has(last) && !!keys.at(-1)!.add(last), "a key is there twice");
  return found;
}

// Gives rows of numbers, one for each input and class; a number alone is a row.
function numbers(card: Card, what: string, given?: Rows | null): Row[] {
  const count = card.inputs.length, width = card.labels.length;
  const rows = (Array.isArray(given) ? given : []).map((row) => (Array.isArray(row) ? row : [row]));
  const fit = rows.every((row) => row.length === width && row.every((value) => typeof value === "number"));
  need(fit && rows.length === count && count > 0 && width > 0, `${what}: ${count} rows of ${width} numbers were expected`);
  return rows;
}

// What gives all the scores: a head of the card, a function on its logits, and an order of the classes.
function explanations(heads: Head[], given: Row[], tolerance: number): string[] {
  const plain = given[0].map((_, at) => at);
  return heads.flatMap((head) => FUNCTIONS.flatMap(([name, apply]) => {
    const rows = head.logits.map(apply), gap = (at: number, to: number) => largest(given.map((row, text) => Math.abs(row[at] - rows[text][to])));
    const nearest = (at: number) => plain.reduce((best, to) => (gap(at, to) < gap(at, best) ? to : best), 0);
    const isPlain = difference(rows, given) <= tolerance || difference(sorted(rows), sorted(given)) > tolerance, order = isPlain ? plain : plain.map(nearest);
    const fits = new Set(order).size === plain.length && difference(rows.map((row) => order.map((to) => row[to])), given) <= tolerance;
    return fits ? [`${head.name}, then ${name}${same(order, plain) ? "" : `, classes in the order [${order.join(", ")}]`}`] : [];
  }));
}

// Gives the first word and a sentence. Throws an error for files that can't be used.
export function compare(card: Card, file: Given | Rows, precision = "float32"): [string, string] {
  need(card.format === "headscope-card" && card.version === 1, "not a card of version 1");
  const answer: Given = Array.isArray(file) ? { scores: file } : file, kind = answer.logits == null ? "scores" : "logits";
  need((answer.scores == null) !== (answer.logits == null), "either scores or logits were expected");
  need(JSON.stringify(answer.labels ?? card.labels) === JSON.stringify(card.labels), "other labels than the card's, or in another order");
  const rows = numbers(card, kind, answer[kind]), all = numbers(card, `the card's ${kind}`, card[kind]);
  const limit = card.tolerances.find((item) => item.precision === precision)?.[kind] ?? NaN;
  need(limit >= 0, `${kind} were not measured in ${precision}`);
  const tokens = card.inputs.map((item) => item.input_ids.filter((_, at) => item.attention_mask[at]));
  const ids = answer.input_ids ?? tokens, every = rows.map((_, at) => at), isSame = difference(rows, all) <= limit;
  need(Array.isArray(ids) && ids.length === rows.length && ids.every((row) => Array.isArray(row) && row.every(Number.isInteger)), "input_ids: lists of IDs were expected");
  const alike = every.filter((at) => same(ids[at], tokens[at]) || same(ids[at], card.inputs[at].input_ids));
  const others = every.filter((at) => !alike.includes(at)), places = isSame ? every : alike;
  const tokenizer = others.length ? `the tokenizer differs on inputs [${others.join(", ")}]; ` : "";
  if (!places.length) return ["FAIL", `${tokenizer}the head was not compared`];
  const only = (found: Row[]): Row[] => places.map((at) => found[at]), given = only(rows), expected = only(all);
  const off = difference(given, expected), short = off.toPrecision(2), margin = limit * (precision === "float32" ? 10 : 2);
  if (off <= limit) {
    const isPlain = kind === "logits" || card.activation === "none";
    const telling = expected.filter((row) => isPlain || row.some((value) => Math.abs(value - Math.round(value)) > margin));
    const span = (to: number) => largest(telling.map((row) => row[to])) + largest(telling.map((row) => -row[to]));
    if (isSame && card.labels.every((_, to) => !telling.length || span(to) < margin)) return ["NOT DETERMINED", `${tokenizer}the expected ${kind} hardly differ, so equal ones show nothing`];
    const apply = FUNCTIONS.find(([name]) => name === (kind === "logits" ? "none" : card.activation))![1], runs = card.runs.filter((run) => run.name === precision);
    const isFar = ({ logits }: Head, by: number): boolean => 4 * squares(given, only(logits).map(apply), by) > squares(given, expected, by), single = card.tolerances.find((item) => item.precision === "float32")?.[kind] ?? 0;
    if (off > single && runs.some((run) => isFar(run, 0) || isFar(run, 1))) return ["NOT DETERMINED", `${tokenizer}off by ${short}: rounding of ${precision}, or slightly other weights`];
    return [isSame ? "PASS" : "FAIL", `${tokenizer}the same ${kind} within ${precision} (off by ${short})`];
  }
  const heads = [{ name: "as it is", logits: card.logits }, ...card.alternatives].map(({ name, logits }) => ({ name, logits: only(numbers(card, name, logits)) }));
  const within = card.tolerances.find((item) => off <= (item[kind] ?? -1)), found = explanations(heads, given, limit), near = precision === "float32" ? found : explanations(heads, given, 10 * limit); // in half precision, the other causes have to be far
  const cause = found.length === 1 && near.length === 1 && near[0] === found[0] ? found[0] : found.length ? "several causes fit" : "cause not in the card";
  return ["FAIL", `${tokenizer}other ${kind}, off by ${short}: ${cause}${within ? `; within the rounding of ${within.precision}` : ""}`];
}

let result = ["UNUSABLE", ""]; try { result = compare(read(process.argv[2]), read(process.argv[3]), process.argv[4]); } catch (error) { result[1] = `${error}`.replace(/\s+/g, " "); }
console.log(`${result[0]}: ${result[1]}`);
process.exitCode = ({ PASS: 0, FAIL: 1 } as Record<string, number>)[result[0]] ?? 3;
