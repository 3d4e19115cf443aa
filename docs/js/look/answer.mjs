// The answer on a checkpoint: what the site's build made of its structure, with its own names and numbers.
"use strict";

import { commandLine, cut, plain, safe } from "./foreign.mjs";
import { labelLine } from "./labels.mjs";
import { parse } from "./json.mjs";
import { classesOf, familyOf, NotKnown, structureIn } from "./structure.mjs";
import { changed, filled, withoutMarks } from "./template.mjs";

// What `inspect` says, or throws NotKnown. `load` gives the text of a file that the site's build made.
export async function answerOn(read, wanted, words, load) {
  const classes = classesOf(read.config, wanted, words.most);
  const family = familyOf(read.config, words);
  if (!family) throw new NotKnown("structure", "This page knows no structure of this family.");
  const entries = parse(await load(`index/${family}.json.gz`));
  const { id, key, symbols } = structureIn(entries, read.config, read.tensors, classes, words.reserved);
  const { base, answers } = JSON.parse(await load(`structures/${id}.json.gz`));
  const face = faceOf(changed(base, answers[key]), symbols, words.an);
  const labels = labelsOf(face, classes);
  const typed = (word) => word === words.marks.command ? modelWords(read, wanted) : [word];
  return {
    id,
    report: documentOf(face, read, labels, words),
    words: face.words,
    tone: face.tone,
    lines: face.lines,
    labels: face.labels || labelLine(labels.map((label) => cut(label))),
    tokens: face.tokens,
    svg: face.svg?.join("\n"),
    narrow: face.narrow?.join("\n"),
    markdown: markdownOf(face, read, labels, words),
    next: face.next.map(([command, purpose]) => [commandLine(command.split(" ").flatMap(typed)), purpose]),
  };
}

// All that is said, at the sizes of a checkpoint.
function faceOf(template, symbols, an) {
  const { counts, ...rest } = template;
  const own = new Map(symbols);
  for (const [name, shapes] of Object.entries(filled(counts, symbols, BigInt)))
    own.set(name, shapes.reduce((sum, shape) => sum + shape.reduce((found, axis) => found * BigInt(axis), 1n), 0n));
  return withoutMarks(filled(rest, own, Number), symbols.get("dtype"), an);
}

function labelsOf(face, classes) {
  if (classes.names.length) return classes.names;
  return classes.number === null ? face.default : Array.from({ length: classes.number }, (_, at) => `LABEL_${at}`);
}

// The command that examines a checkpoint where Python is.
export function inspectCommand(read, wanted) {
  return commandLine(["headscope", "inspect", ...modelWords(read, wanted)]);
}

function modelWords(read, wanted) {
  return [modelName(read), ...(wanted === null ? [] : ["--num-labels", String(wanted)])];
}

// The document of `headscope inspect --json`, but for the versions that a browser lacks and what reading took.
function documentOf(face, read, labels, words) {
  const own = { reference: modelName(read), kind: read.kind, revision: read.revision, commit: read.commit, bytes_total: read.size };
  return {
    ...face.report,
    summary: { ...face.report.summary, reference: own.reference, labels: labels.slice(0, 8) },
    environment: { transformers: words.transformers },
    checkpoint: { ...own, ...face.report.checkpoint },
    model: { ...face.report.model, labels },
  };
}

// A checkpoint as MODEL of a command names it.
export function modelName({ reference, revision }) {
  return `${reference}${revision ? `@${revision}` : ""}`;
}

function markdownOf(face, read, labels, words) {
  const lines = face.markdown.map((line) => line === "| labels |" ? `| labels | ${plain(labelLine(labels))} |` : line);
  return lines.join("\n").replace(words.marks.reference, () => safe(modelName(read)).replaceAll("`", "'").replaceAll("|", "\\|"));
}
