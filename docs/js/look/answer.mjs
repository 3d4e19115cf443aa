// The answer on a checkpoint: what the site's build made of its structure, with its own names and numbers.
"use strict";

import { labelLine, plain } from "./labels.mjs";
import { parse } from "./json.mjs";
import { classesOf, memberOf, NotKnown, structureIn } from "./structure.mjs";
import { changed, filled } from "./template.mjs";

// What `inspect` says, or throws NotKnown. `load` gives the text of a file that the site's build made.
export async function answerOn(read, wanted, words, load) {
  const classes = classesOf(read.config, wanted, words.most);
  const member = memberOf(read.config, read.tensors, words);
  if (!member) throw new NotKnown("structure", "The structure of this checkpoint is not among those that this page knows.");
  const entries = parse(await load(`index/${member}.json.gz`));
  const { id, key } = await structureIn(entries, read.config, read.tensors, classes, words.silent);
  const { base, answers } = JSON.parse(await load(`structures/${id}.json.gz`));
  const face = filled(changed(base, answers[key]), classes.number ?? 0, words.an);
  const labels = labelsOf(face, classes);
  const model = typedAs(read, wanted);
  return {
    id,
    report: documentOf(face, read, labels, words),
    words: face.words,
    tone: face.tone,
    lines: face.lines,
    labels: face.labels || labelLine(labels),
    tokens: face.tokens,
    svg: face.svg.join("\n"),
    narrow: face.narrow?.join("\n"),
    markdown: markdownOf(face, read, labels, words),
    next: face.next.map(([command, purpose]) => [command.replace(words.marks.command, model), purpose]),
  };
}

function labelsOf(face, classes) {
  if (classes.names.length) return classes.names;
  return classes.number === null ? face.default : Array.from({ length: classes.number }, (_, at) => `LABEL_${at}`);
}

// What stands behind `headscope inspect`.
export function typedAs({ reference, revision }, wanted) {
  const name = `${reference}${revision ? `@${revision}` : ""}`;
  // A revision may hold what a shell runs, and the command is there to be pasted.
  const quoted = /^[A-Za-z0-9._/@=:+-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`;
  return `${quoted}${wanted === null ? "" : ` --num-labels ${wanted}`}`;
}

// The document of `headscope inspect --json`, but for the versions that a browser lacks and what reading took.
function documentOf(face, read, labels, words) {
  const own = { reference: referenceOf(read), kind: read.kind, revision: read.revision, commit: read.commit, bytes_total: read.size };
  return {
    ...face.report,
    environment: { torch: words.torch, transformers: words.transformers },
    checkpoint: { ...own, ...face.report.checkpoint },
    model: { ...face.report.model, labels },
  };
}

function referenceOf(read) {
  return `${read.reference}${read.revision ? `@${read.revision}` : ""}`;
}

function markdownOf(face, read, labels, words) {
  const lines = face.markdown.map((line) => line === "| labels |" ? `| labels | ${plain(labelLine(labels))} |` : line);
  return lines.join("\n").replace(words.marks.reference, referenceOf(read));
}
