// The page "Look at a checkpoint": the form, the link that carries its state, and what is shown.
"use strict";

import { answerOn, inspectCommand, modelName } from "./answer.mjs";
import { brief, safe } from "./foreign.mjs";
import { FOLDER, readFiles, readRepository, referenceOf, Unread } from "./hub.mjs";
import { NotKnown, plainLabels } from "./structure.mjs";
import { answerElements, commandsOf, element } from "./show.mjs";
import { textOf } from "./template.mjs";

const root = document.getElementById("look");
const form = root.querySelector("form");
const output = root.querySelector(".look-answers");
const status = root.querySelector(".look-state");
const hub = root.dataset.hub;
const texts = new Map();
const LONGEST_ASKED = 1_000;
let words;
let turn = 0;
let asking = new AbortController();
let shownSearch = null;

// A file that the site's build made, once for a visit.
function load(name) {
  if (!texts.has(name)) {
    texts.set(name, fetched(`${root.dataset.store}/${name}`));
    texts.get(name).catch(() => texts.delete(name));
  }
  return texts.get(name);
}

async function fetched(address) {
  const response = await fetch(address).catch(() => null);
  if (!response?.ok) throw new Unread("site", "A part of this site could not be loaded. Reload the page.");
  return textOf(await response.blob());
}

// What is asked: the text of each model, and the number of classes or null.
function asked() {
  const number = form.elements["num-labels"].value.trim();
  if (number && !/^[1-9]\d{0,6}$/.test(number)) throw new Unread("number", "The number of classes is a whole number, at least 1.");
  const models = [form.elements.model.value, form.elements.with.value].map((text) => text.trim()).filter(Boolean);
  return { models, wanted: number ? Number(number) : null };
}

function say(...sentences) {
  status.textContent = sentences.map((text) => brief(text, 600)).join(" ");
}

async function run(sources, wanted) {
  turn += 1;
  const own = turn;
  asking.abort();
  asking = new AbortController();
  root.dataset.state = "busy";
  say(sources.length ? "Looking ..." : "");
  const { signal } = asking;
  const parts = await Promise.all(sources.map((source) => partOf(source, wanted, sources.length > 1, signal)));
  if (own !== turn) return;
  show(parts.map((part) => part.shown));
  output.classList.toggle("look-two", parts.length > 1);
  say(...parts.map((part) => part.told));
  root.dataset.state = "done";
  root.answers = parts.map((part) => part.answer);
}

function show(sections) {
  for (const picture of output.querySelectorAll("img, source")) URL.revokeObjectURL(picture.src || picture.srcset);
  output.replaceChildren(...sections);
}

// The section on one model, and what a screen reader says of it. Of two, the number of classes is for those without labels.
async function partOf(source, asked, isOfTwo, signal) {
  let wanted = asked;
  try {
    words ??= JSON.parse(await load("words.json.gz"));
    const read = await source.read(words, signal);
    if (isOfTwo && plainLabels(read.config)) wanted = null;
    const answer = await answerOn(read, wanted, words, load);
    const shown = element("section", {}, element("h2", {}, brief(source.name)), copyButtons(answer), ...answerElements(answer, read, words));
    return { shown, told: `${source.name}: ${answer.report.headline}.`, answer };
  } catch (error) {
    const known = error instanceof Unread || error instanceof NotKnown ? error : failed(error);
    const title = known instanceof NotKnown ? "Not known here." : "No answer here.";
    const steps = source.command ? commandsOf("On your machine", [[source.command, "needs headscope"]]) : [];
    const shown = element("section", {}, element("h2", {}, brief(source.name)), element("p", { class: "look-verdict look-unknown" }, element("strong", {}, title), ` ${known.message}`), ...steps);
    return { shown, told: `${source.name}: ${title} ${known.message}`, answer: { unknown: known.kind, sentence: known.message } };
  }
}

function failed(error) {
  console.error(error);
  return new Unread("failed", "This page failed on what it read. Run headscope on your machine.");
}

function copyButtons(answer) {
  const button = (name, text) => {
    const found = element("button", { type: "button", class: "md-button" }, name);
    found.addEventListener("click", async () => {
      const done = await navigator.clipboard.writeText(text()).then(() => true, () => false);
      say(done ? "Copied." : "The browser does not allow copying.");
      found.textContent = done ? "Copied" : name;
      setTimeout(() => { found.textContent = name; }, 2000);
    });
    return found;
  };
  return element("p", { class: "look-copy" }, button("Copy as Markdown", () => answer.markdown), button("Copy the link", () => location.href));
}

function fromHub(text, wanted) {
  try {
    const reference = referenceOf(text, hub);
    return { name: modelName(reference), command: inspectCommand(reference, wanted), read: (known, signal) => readRepository(reference, hub, known.dtypes, signal) };
  } catch (error) {
    if (!(error instanceof Unread)) throw error;
    return { name: text, read: () => Promise.reject(error) };
  }
}

// Whether what the form asks for is what the address says.
function isShown() {
  const state = new URLSearchParams(location.search);
  return ["model", "num-labels", "with"].every((name) => form.elements[name].value.trim() === (state.get(name) ?? ""));
}

function look({ remember }) {
  let wish;
  try {
    wish = asked();
  } catch (error) {
    say(error.message);
    return;
  }
  if (!wish.models.length) {
    say("Type the ID of a model, or choose its files.");
    return;
  }
  if (remember) {
    const [model, other] = wish.models;
    const state = { model, ...(wish.wanted === null ? {} : { "num-labels": wish.wanted }), ...(other ? { with: other } : {}) };
    history.pushState(null, "", `?${new URLSearchParams(state)}`);
    shownSearch = location.search;
  }
  run(wish.models.map((text) => fromHub(text, wish.wanted)), wish.wanted);
}

function lookAtFiles(files) {
  let wish;
  try {
    wish = asked();
  } catch (error) {
    say(error.message);
    return;
  }
  history.pushState(null, "", location.pathname);
  shownSearch = location.search;
  run([{ name: "Files from your disk", command: inspectCommand({ reference: FOLDER }, wish.wanted), read: (known) => readFiles(files, known.dtypes) }], wish.wanted);
}

// The state that a link carries. A link to a heading changes none of it.
function restore() {
  if (location.search === shownSearch) return;
  shownSearch = location.search;
  const state = new URLSearchParams(location.search);
  for (const name of ["model", "num-labels", "with"]) form.elements[name].value = safe((state.get(name) ?? "").slice(0, LONGEST_ASKED));
  form.querySelector("details").open ||= Boolean(state.get("with"));
  if (state.get("model")) look({ remember: false });
  else if (output.children.length || root.dataset.state === "busy") run([], null);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (root.dataset.state === "busy" && isShown()) return; // a double click
  look({ remember: true });
});
form.elements.files.addEventListener("change", () => form.elements.files.files.length && lookAtFiles([...form.elements.files.files]));
for (const name of ["dragover", "drop"])
  root.addEventListener(name, (event) => {
    event.preventDefault();
    if (name === "drop" && event.dataTransfer.files.length) droppedFiles(event.dataTransfer).then(lookAtFiles);
  });

// The files that were dropped, and those in folders among them.
async function droppedFiles(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const folders = entries.filter((entry) => entry.isDirectory);
  const files = [...transfer.files].filter((file) => !folders.some((folder) => folder.name === file.name));
  const listed = await Promise.all(folders.map((folder) => new Promise((done) => folder.createReader().readEntries(done, () => done([])))));
  const inside = listed.flat().filter((entry) => entry.isFile);
  return [...files, ...await Promise.all(inside.map((entry) => new Promise((done, failed) => entry.file(done, failed))))];
}
addEventListener("popstate", restore);
root.dataset.state = "ready";
restore();
