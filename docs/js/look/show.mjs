// Draws an answer. Everything that comes from a checkpoint is set as text, never as markup, and made harmless first.
"use strict";

import { brief } from "./foreign.mjs";
import { withCommas } from "./template.mjs";

const LONGEST_TEXT = 2_000;

// An element with attributes and children; texts become text that is safe, and not endless.
export function element(name, attributes = {}, ...children) {
  const found = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, brief(value, LONGEST_TEXT));
  found.append(...children.map((child) => typeof child === "string" ? brief(child, LONGEST_TEXT) : child));
  return found;
}

const code = (text) => element("code", {}, brief(text));
const size = (shape) => shape.length ? shape.join("x") : "one number";
const count = (number, noun) => `${withCommas(number)} ${noun}${number === 1 ? "" : "s"}`;

// All of an answer below the heading of its checkpoint.
export function answerElements(answer, read, words) {
  const { report } = answer;
  // What the sentence in words says of the head, formula and loss say again.
  const [first, later] = answer.words && !isWide() ? parted(answer.lines, ([name]) => !["formula", "loss", "problem"].includes(name)) : [answer.lines, []];
  return [
    element("p", { class: `look-verdict look-${answer.tone}` }, report.headline),
    ...(answer.words ? [element("p", { class: "look-words" }, answer.words)] : []),
    ...tokenStrip(answer.tokens),
    factList([...first, ["labels", answer.labels]]),
    ...shortOnPhones("Formula and loss", "", later.length ? [factList(later)] : []),
    ...findingsOf(report.findings),
    ...pictureOf(answer, words),
    ...shortOnPhones("Weights", "h3", [...headTable(report), ...weightLists(report.weights)]),
    ...labelList(report.model.labels),
    ...noteList(report.not_determined.map((gap) => `not determined: ${gap.what}: ${gap.reason}`)),
    ...shortOnPhones("Notes", "", noteList(report.notes)),
    ...commandsOf("The rest", answer.next),
    ...shortOnPhones("What was read", "", [element("p", { class: "look-scope" }, scopeOf(read, words))]),
  ];
}

const isWide = () => globalThis.matchMedia("(min-width: 45em)").matches;

function parted(items, isFirst) {
  return [items.filter(isFirst), items.filter((one) => !isFirst(one))];
}

// Below a heading, if there is one; on a phone, where it would fill the screen, it opens on request.
function shortOnPhones(title, heading, children) {
  if (!children.length) return [];
  if (!isWide()) return [element("details", {}, element("summary", {}, title), ...children)];
  return [...(heading ? [element(heading, {}, title)] : []), ...children];
}

function scopeOf(read, words) {
  const weights = read.size === null ? "" : ` of ${withCommas(read.size)}`;
  const asked = read.requests ? ` in ${count(read.requests, "request")}` : "";
  const commit = read.commit ? ` Commit ${read.commit.slice(0, 12)}.` : "";
  return `Read: ${count(read.bytes, "byte")}${asked}, the configuration and the header of model.safetensors${weights} bytes. The numbers, the tokenizer ` +
    `and other files were not looked at.${commit} True of Transformers ${words.transformers}; made by headscope ${words.headscope}.`;
}

function factList(lines) {
  return element("dl", { class: "look-facts" }, ...lines.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
}

function tokenStrip(tokens) {
  const rows = (tokens?.rows ?? []).filter((row) => row.cells.every(([text]) => text));
  if (!rows.length) return [];
  const drawn = rows.map((row) => element("div", { class: "look-tokens" },
    ...(row.caption ? [element("span", { class: "look-caption" }, row.caption)] : []),
    ...row.cells.map(([text, mark]) => element("span", { class: `look-cell look-${mark.replace(" ", "-")}` },
      ...(SIGNS[mark] ? [element("span", { "aria-hidden": "true" }, SIGNS[mark])] : []), text,
      ...(SPOKEN[mark] ? [element("span", { class: "look-spoken" }, ` (${SPOKEN[mark]})`)] : [])))));
  return [element("div", { class: "look-strip" }, ...drawn, element("p", { class: "look-legend" }, tokens.legend))];
}

const SIGNS = { read: "\u25b2 ", "not told": "? " };
const SPOKEN = { read: "read", "not told": "not known" };

function findingsOf(findings) {
  const listed = (some) => some.length ? [element("ul", { class: "look-findings" }, ...some.map(findingItem))] : [];
  const [graver, notes] = isWide() ? [findings, []] : parted(findings, (one) => one.severity !== "note");
  const named = notes.map((one) => one.id).join(", ");
  return [...(graver.length ? [element("h3", {}, "Findings")] : []), ...listed(graver), ...shortOnPhones(`${count(notes.length, "note")}: ${named}`, "", listed(notes))];
}

function findingItem(one) {
  return element("li", { class: `look-${one.severity}` },
    element("a", { href: `rules.html#${one.id.toLowerCase()}` }, one.id), ` ${one.severity}: `, element("strong", {}, `${one.title}.`), ` ${one.message} ${one.remedy}`);
}

// The picture as an image: whatever is in it, nothing in it runs. The style sheet shows that of the page's theme; a
// phone shows the narrow one, if there is one.
function pictureOf(answer, words) {
  if (!answer.report.head || !answer.svg) return [];
  const label = `The head of ${answer.report.model.class}: ${answer.report.head.stages.map((stage) => stage.operation).join(", ")}`;
  const images = ["light", "dark"].map((theme) => {
    const addressOf = (svg) => {
      const text = svg.replace("<style></style>", () => `<style>${words.style[theme]}\n${words.style.rules}</style>`);
      return URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    };
    const address = addressOf(answer.svg);
    const narrow = answer.narrow ? [element("source", { media: "(max-width: 45em)", srcset: addressOf(answer.narrow) })] : [];
    const image = element("picture", {}, ...narrow, element("img", { src: address, alt: label, ...(narrow.length ? {} : { class: "look-wide" }) }));
    return element("a", { class: `only-${theme}`, href: address, target: "_blank", rel: "noopener" }, image);
  });
  const name = `Picture of the head of ${answer.report.checkpoint.reference}`;
  const picture = element("div", { class: "look-picture", tabindex: "0", role: "region", "aria-label": name }, ...images);
  // On a phone, what it repeats of the lines above fills three screens: it opens on request.
  return [element("details", isWide() ? { open: "" } : {}, element("summary", {}, "From the hidden states to the scores: the picture"), picture)];
}

function headTable(report) {
  const tensors = report.head ? [...report.head.parameters, ...report.head.buffers] : [];
  if (!tensors.length) return [];
  const rows = tensors.map((item) => element("tr", {}, element("td", {}, code(item.name)), element("td", {}, size(item.shape)),
    element("td", {}, element("span", { class: `look-status look-${item.status}` }, item.status), item.live ? "" : " (no score depends on it)")));
  const head = element("tr", {}, ...["tensor of the head", "shape", "status"].map((text) => element("th", { scope: "col" }, text)));
  return [element("div", { class: "look-scroll", tabindex: "0", role: "region", "aria-label": `Weights of the head of ${report.checkpoint.reference}` },
    element("table", { class: "look-table" }, element("thead", {}, head), element("tbody", {}, ...rows)))];
}

function weightLists(weights) {
  const groups = [
    ["loaded", weights.loaded, []],
    ["new", weights.new.length, weights.new],
    ["mismatched", weights.mismatched.length, weights.mismatched.map((one) => `${one.parameter}: ${size(one.checkpoint_shape)} stored, ${size(one.model_shape)} expected`)],
    ["tied", weights.tied.length, weights.tied.map((one) => `${one.parameter} = ${one.source}`)],
    ["unused", weights.unused.length, weights.unused],
    ["renamed", weights.renamed.length, weights.renamed.map((one) => `${one.parameter} from ${one.checkpoint_keys.join(", ")}`)],
  ].filter(([, number]) => number);
  const items = groups.map(([name, number, names]) => element("li", {}, ...(names.length
    ? [element("details", {}, element("summary", {}, `${withCommas(number)} ${name}`), manyOf(`${name} tensors`, element("ul", {}, ...names.map((text) => element("li", {}, code(text))))))]
    : [`${withCommas(number)} ${name}`])));
  return [element("ul", { class: "look-weights" }, ...items)];
}

function labelList(labels) {
  if (labels.length <= 12) return [];
  return [element("details", {}, element("summary", {}, `All ${withCommas(labels.length)} labels`),
    manyOf("All labels", element("ol", { start: "0", class: "look-labels" }, ...labels.map((text) => element("li", {}, brief(text))))))];
}

// A list that scrolls if it is long.
function manyOf(name, list) {
  return element("div", { class: "look-many", tabindex: "0", role: "group", "aria-label": name }, list);
}

function noteList(lines) {
  return lines.length ? [element("ul", { class: "look-notes" }, ...lines.map((text) => element("li", {}, text)))] : [];
}

// Commands below a title, whole, each with what it is for.
export function commandsOf(title, steps) {
  const whole = (word) => word.startsWith("-") ? element("span", {}, word) : word; // no line ends behind a hyphen
  const code = (command) => element("code", {}, ...command.split(/( )/).map(whole));
  const lines = steps.map(([command, purpose]) => element("li", {}, code(command), ` ${purpose}`));
  return [element("h3", {}, title), element("ul", { class: "look-next" }, ...lines)];
}
