// Scores of a BertForSequenceClassification for the inputs of a card: a small engine to seed bugs in.
// node engine.js MODEL CARD SCORES [BUG]. MODEL is a folder that save_pretrained wrote in float32.
import { readFileSync, writeFileSync } from "node:fs";

type Row = number[];
type Config = { hidden_act: string; layer_norm_eps: number; num_attention_heads: number; num_hidden_layers: number };
type Given = { input_ids: Row; attention_mask: Row; token_type_ids: Row };
type Tensor = { dtype: string; shape: number[]; data_offsets: [number, number] };

const sum = (row: Row): number => row.reduce((all, value) => all + value, 0);
const dot = (one: Row, other: Row): number => one.reduce((all, value, at) => all + value * other[at], 0);
const added = (one: Row, other: Row): Row => one.map((value, at) => value + other[at]);
const addedRows = (one: Row[], other: Row[]): Row[] => one.map((row, at) => added(row, other[at]));

function softmax(row: Row): Row {
  const top = Math.max(...row), powers = row.map((value) => Math.exp(value - top)), all = sum(powers);
  return powers.map((power) => power / all);
}

// The series of Abramowitz and Stegun, 7.1.6: all its terms have one sign.
function erf(value: number): number {
  if (Math.abs(value) > 6) return Math.sign(value);
  let term = value, all = value;
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(all); n++) {
    term *= (2 * value * value) / (2 * n + 1);
    all += term;
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-value * value) * all;
}

function readWeights(path: string): Map<string, Row[]> {
  const data = readFileSync(path), start = 8 + Number(data.readBigUInt64LE(0));
  const header: Record<string, Tensor> = JSON.parse(data.toString("utf8", 8, start));
  const found = new Map<string, Row[]>();
  for (const [name, { dtype, shape, data_offsets }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const [first, last] = data_offsets;
    if (dtype !== "F32") throw new Error(`${name} is in ${dtype}`);
    const width = shape[shape.length - 1], rows: Row[] = [];
    for (let at = start + first; at < start + last; at += 4 * width)
      rows.push(Array.from({ length: width }, (_, to) => data.readFloatLE(at + 4 * to)));
    found.set(name, rows);
  }
  return found;
}

// A model, and the bug that it has; "" for none.
class Engine {
  config: Config;
  weights: Map<string, Row[]>;
  bug: string;

  constructor(folder: string, bug: string) {
    this.config = JSON.parse(readFileSync(`${folder}/config.json`, "utf8"));
    if (this.config.hidden_act !== "gelu") throw new Error(`${this.config.hidden_act} is not supported`);
    this.weights = readWeights(`${folder}/model.safetensors`);
    this.bug = bug;
  }

  weight(name: string): Row[] {
    const found = this.weights.get(name);
    if (found === undefined) throw new Error(`${name} is missing`);
    return found;
  }

  linear(name: string, rows: Row[]): Row[] {
    const weight = this.weight(`${name}.weight`), [bias] = this.weight(`${name}.bias`);
    return rows.map((row) => weight.map((line, at) => dot(line, row) + bias[at]));
  }

  norm(name: string, rows: Row[]): Row[] {
    const [weight] = this.weight(`${name}.weight`), [bias] = this.weight(`${name}.bias`);
    return rows.map((row) => {
      const mean = sum(row) / row.length, variance = sum(row.map((value) => (value - mean) ** 2)) / row.length;
      const deviation = Math.sqrt(variance + this.config.layer_norm_eps);
      return row.map((value, at) => ((value - mean) / deviation) * weight[at] + bias[at]);
    });
  }

  gelu(value: number): number {
    if (this.bug === "tanh GELU")
      return (value / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (value + 0.044715 * value ** 3)));
    if (this.bug === "sigmoid GELU") return value / (1 + Math.exp(-1.702 * value));
    return (value / 2) * (1 + erf(value / Math.SQRT2));
  }

  attend(name: string, hidden: Row[], mask: Row): Row[] {
    const [query, key, value] = ["query", "key", "value"].map((kind) => this.linear(`${name}.self.${kind}`, hidden));
    const width = hidden[0].length / this.config.num_attention_heads;
    const isRead = (at: number): boolean => this.bug === "mask ignored" || mask[at] > 0;
    const heads = Array.from({ length: this.config.num_attention_heads }, (_, head) => {
      const part = (rows: Row[]): Row[] => rows.map((row) => row.slice(head * width, (head + 1) * width));
      const keys = part(key), values = part(value), columns = values[0].map((_, to) => values.map((row) => row[to]));
      return part(query).map((row) => {
        const logits = keys.map((other, at) => isRead(at) ? dot(row, other) / Math.sqrt(width) : -1e30);
        const shares = softmax(logits);
        return columns.map((column) => dot(column, shares));
      });
    });
    return hidden.map((_, at) => heads.flatMap((head) => head[at]));
  }

  encode({ input_ids, attention_mask, token_type_ids }: Given): Row[] {
    const table = (kind: string): Row[] => this.weight(`bert.embeddings.${kind}_embeddings.weight`);
    const [words, positions, segments] = ["word", "position", "token_type"].map(table);
    const types = token_type_ids.map((type) => this.bug === "segments ignored" ? 0 : type);
    const embedded = input_ids.map((id, at) => added(added(words[id], positions[at]), segments[types[at]]));
    let hidden = this.norm("bert.embeddings.LayerNorm", embedded);
    for (let layer = 0; layer < this.config.num_hidden_layers; layer++) {
      const own = `bert.encoder.layer.${layer}`, attended = this.attend(`${own}.attention`, hidden, attention_mask);
      const mixed = addedRows(hidden, this.linear(`${own}.attention.output.dense`, attended));
      hidden = this.norm(`${own}.attention.output.LayerNorm`, mixed);
      const inner = this.linear(`${own}.intermediate.dense`, hidden).map((row) => row.map((value) => this.gelu(value)));
      hidden = this.norm(`${own}.output.LayerNorm`, addedRows(hidden, this.linear(`${own}.output.dense`, inner)));
    }
    return hidden;
  }

  score(given: Given): Row {
    const hidden = this.encode(given), read = hidden.filter((_, at) => given.attention_mask[at] > 0);
    let pooled = hidden[0];
    if (this.bug === "last token") pooled = read[read.length - 1];
    if (this.bug === "mean of the tokens") pooled = read.reduce(added).map((value) => value / read.length);
    if (this.bug !== "no pooler") pooled = this.linear("bert.pooler.dense", [pooled])[0];
    if (this.bug !== "no pooler" && this.bug !== "no tanh") pooled = pooled.map(Math.tanh);
    const scores = softmax(this.linear("classifier", [pooled])[0]);
    return this.bug === "labels in another order" ? scores.reverse() : scores;
  }
}

const [folder, card, output, bug = ""] = process.argv.slice(2), engine = new Engine(folder, bug);
const inputs: Given[] = JSON.parse(readFileSync(card, "utf8")).inputs;
const scores = inputs.map((given) => engine.score(given));
writeFileSync(output, JSON.stringify({ engine: "tiny in TypeScript", dtype: "float32", scores }));
