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

// How many tolerances apart scores have to lie so that rounding can't be what makes them differ; and how many times
// smaller the squared error has to be when the model in half precision is what is compared with: half of the error,
// squared. Rounding that happens elsewhere leaves more than half, and so do other weights.
const FAR = 10, CLOSER = 4;
const largest = (values: Row): number => values.reduce((one, other) => Math.max(one, other), -Infinity);
const shares = (powers: Row, sum = total(powers)): Row => powers.map((power) => power / sum);
const softmax = (row: Row, top = largest(row)): Row => shares(row.map((value) => Math.exp(value - top)));
const sigmoid = (row: Row): Row => row.map((value) => 1 / (1 + Math.exp(-value)));
const FUNCTIONS: [string, (row: Row) => Row][] = [
  ["none", (row) => row], ["softmax", (row) => softmax(row)], ["sigmoid", sigmoid],
  ["softmax of softmax", (row) => softmax(softmax(row))], ["sigmoid of sigmoid", (row) => sigmoid(sigmoid(row))],
];
const difference = (rows: Row[], others: Row[]): number =>
  largest(rows.map((row, at) => largest(row.map((value, to) => Math.abs(value - others[at][to])))));
const total = (row: Row): number => row.reduce((all, value) => all + value, 0);
// Sums the squared differences; with `centered`, after each class's mean difference is taken off.
function squaredError(rows: Row[], others: Row[], centered: boolean): number {
  const gaps = rows.map((row, at) => row.map((value, to) => value - others[at][to]));
  const means = gaps[0].map((_, to) => (centered ? total(gaps.map((row) => row[to])) / gaps.length : 0));
  return total(gaps.map((row) => total(row.map((gap, to) => (gap - means[to]) ** 2))));
}
const same = (one: unknown, other: unknown): boolean => JSON.stringify(one) === JSON.stringify(other);
const sorted = (rows: Row[]): Row[] => rows.map((row) => [...row].sort((one, other) => one - other));
const need = (isMet: boolean, found: string): void => { if (!isMet) throw new Error(found); };

function read(name: string): any {
  const text = new TextDecoder("utf-8", { fatal: true }).decode(readFileSync(name)), keys: Set<string>[] = [];
  const finite = (_: string, value: any): any => (need(value !== Infinity && value !== -Infinity, "a number is not finite"), value);
  let found = JSON.parse(text, finite), last = "";
  // Of two values for one key, JSON.parse takes the last.
  for (const [sign] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\]:]/g))
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
    const rows = head.logits.map(apply);
    const gap = (at: number, to: number) => largest(given.map((row, text) => Math.abs(row[at] - rows[text][to])));
    const nearest = (at: number) => plain.reduce((best, to) => (gap(at, to) < gap(at, best) ? to : best), 0);
    // The order of the classes is searched for only where each text has the same scores in some order.
    const isSearched = difference(rows, given) > tolerance && difference(sorted(rows), sorted(given)) <= tolerance;
    const order = isSearched ? plain.map(nearest) : plain, found = rows.map((row) => order.map((to) => row[to]));
    const fits = new Set(order).size === plain.length && difference(found, given) <= tolerance;
    return fits ? [`${head.name}, then ${name}${same(order, plain) ? "" : `, classes in the order [${order.join(", ")}]`}`] : [];
  }));
}

// Gives the first word and a sentence. Throws an error for files that can't be used.
export function compare(card: Card, file: Given | Rows, precision = "float32"): [string, string] {
  need(card.format === "headscope-card" && card.version === 1, "not a card of version 1");
  const answer: Given = Array.isArray(file) ? { scores: file } : file, kind = answer.logits == null ? "scores" : "logits";
  need((answer.scores == null) !== (answer.logits == null), "either scores or logits were expected");
  need(same(answer.labels ?? card.labels, card.labels), "other labels than the card's, or in another order");
  const rows = numbers(card, kind, answer[kind]), all = numbers(card, `the card's ${kind}`, card[kind]);
  const limitOf = (name: string): number => card.tolerances.find((item) => item.precision === name)?.[kind] ?? NaN;
  const limit = limitOf(precision), name = kind === "logits" ? "none" : card.activation;
  need(limit >= 0, `${kind} were not measured in ${precision}`);
  const tokens = card.inputs.map((item) => item.input_ids.filter((_, at) => item.attention_mask[at]));
  const ids = answer.input_ids ?? tokens, every = rows.map((_, at) => at), isSame = difference(rows, all) <= limit;
  need(Array.isArray(ids) && ids.length === rows.length && ids.every((row) => Array.isArray(row) && row.every(Number.isInteger)), "input_ids: lists of IDs were expected");
  const alike = every.filter((at) => same(ids[at], tokens[at]) || same(ids[at], card.inputs[at].input_ids));
  const others = every.filter((at) => !alike.includes(at)), places = isSame ? every : alike;
  const tokenizer = others.length ? `the tokenizer differs on inputs [${others.join(", ")}]; ` : "";
  if (!places.length) return ["FAIL", `${tokenizer}the head was not compared`];
  const only = (found: Row[]): Row[] => places.map((at) => found[at]), given = only(rows), expected = only(all);
  const off = difference(given, expected), short = off.toPrecision(2);
  if (off <= limit) {
    // In half precision, the tolerance is four times the rounding already.
    const margin = limit * (precision === "float32" ? FAR : 2), apply = new Map(FUNCTIONS).get(name)!;
    // At the ends of a function, which are whole numbers, other logits give the same scores.
    const isWhole = (value: number): boolean => Math.abs(value - Math.round(value)) <= margin;
    const telling = expected.filter((row) => name === "none" || !row.every(isWhole));
    const span = (to: number) => largest(telling.map((row) => row[to])) + largest(telling.map((row) => -row[to]));
    if (isSame && card.labels.every((_, to) => !telling.length || span(to) < margin))
      return ["NOT DETERMINED", `${tokenizer}the expected ${kind} hardly differ, so equal ones show nothing`];
    const runs = card.runs.filter((run) => run.name === precision).map((run) => only(run.logits).map(apply));
    const isFar = (run: Row[], by: boolean) => CLOSER * squaredError(given, run, by) > squaredError(given, expected, by);
    if (!(off <= limitOf("float32")) && runs.some((run) => isFar(run, false) || isFar(run, true)))
      return ["NOT DETERMINED", `${tokenizer}off by ${short}: rounding of ${precision}, or slightly other weights`];
    return [isSame ? "PASS" : "FAIL", `${tokenizer}the same ${kind} within ${precision} (off by ${short})`];
  }
  const heads = [{ name: "as it is", logits: card.logits }, ...card.alternatives];
  const chosen = heads.map(({ name, logits }) => ({ name, logits: only(numbers(card, name, logits)) }));
  const within = card.tolerances.find((item) => off <= (item[kind] ?? -1)), fits = explanations(chosen, given, limit);
  // In half precision, where rounding may hide the cause, all other causes have to be far away.
  const near = precision === "float32" ? fits : explanations(chosen, given, FAR * limit);
  const cause = fits.length === 1 && same(near, fits) ? fits[0] : fits.length ? "several causes fit" : "cause not in the card";
  return ["FAIL", `${tokenizer}other ${kind}, off by ${short}: ${cause}${within ? `; within the rounding of ${within.precision}` : ""}`];
}

let result = ["UNUSABLE", ""]; try { result = compare(read(process.argv[2]), read(process.argv[3]), process.argv[4]); } catch (error) { result[1] = `${error}`.replace(/\s+/g, " "); }
console.log(`${result[0]}: ${result[1]}`);
process.exitCode = ({ PASS: 0, FAIL: 1 } as Record<string, number>)[result[0]] ?? 3;
