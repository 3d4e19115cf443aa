// Reads the configuration and the header of a checkpoint: from the Hub, in at most four requests, each of which may be led on, or from dropped files.
"use strict";

import { BadHeader, LARGEST, PREFIX, headerLength, tensorsOf } from "./header.mjs";
import { NotJson, parseBytes } from "./json.mjs";
import { withCommas } from "./template.mjs";

// What stands in a command for files whose folder a browser doesn't tell.
export const FOLDER = "FOLDER";
const CONFIG = "config.json";
const WEIGHTS = "model.safetensors";
const INDEX = "model.safetensors.index.json";
const ADAPTER = "adapter_config.json";
const MODULES = "modules.json";
const LARGEST_JSON = 2_000_000;
const FIRST = 65_536;
const SECONDS = 20;
const NAME = "[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?";
const ID = new RegExp(`^(${NAME}(?:/${NAME})?)(?:@([^@\\s]+))?$`);
const LONGEST_ID = 96;
// Git allows more in the name of a branch, such as what a shell would run; nobody's revision needs it.
const REVISION = /^(?![-/.])(?!.*(?:\.\.|\/[/.]))[\w.,+=%#/-]{1,255}(?<![/.])$/;
const COMMIT = /^[0-9a-f]{7,64}$/;
const RANGE = /^bytes (\d{1,15})-(\d{1,15})\/(\d{1,15}|\*)$/;
// What a browser puts into the name of a file that it downloads again: "model (1).safetensors".
const COPY = / \(\d{1,3}\)(?=\.(?:json|safetensors)$)/;
const HOSTS = ["huggingface.co", "www.huggingface.co", "hf.co"];
const REVISION_WORDS = ["tree", "blob", "resolve", "raw", "commit", "edit"];

// Why a checkpoint could not be read: `kind` is one word for it.
export class Unread extends Error {
  constructor(kind, sentence) {
    super(sentence);
    this.kind = kind;
  }
}

// The repository and the revision that a text names.
export function referenceOf(text, hub) {
  const typed = text.trim();
  const whole = [...HOSTS, new URL(hub).host].some((host) => typed.toLowerCase().startsWith(`${host}/`)) ? `https://${typed}` : typed;
  const found = /^https?:/i.test(whole) ? fromUrl(whole, hub) : /^hf:/.test(whole) ? fromParts(whole.replace(/^hf:(?:\/\/)?/, "").split("/")) : ID.exec(whole.replace(/^([^@]*)\/$/, "$1"));
  if (!found || found[1].length > LONGEST_ID)
    throw new Unread("reference", "This is not a Hub ID: one looks like bert-base-uncased or owner/name, with @revision if needed.");
  const [, reference, revision = null] = found;
  if (revision !== null && !REVISION.test(revision))
    throw new Unread("reference", "This is not a revision that the page takes: name a branch, tag or commit in letters, digits and . _ - + = , % # / only, such as main, v1.0 or refs/pr/1.");
  return { reference, revision };
}

function fromUrl(text, hub) {
  let url;
  try {
    url = new URL(text);
  } catch {
    return null;
  }
  return [...HOSTS, new URL(hub).hostname].includes(url.hostname) ? fromParts(url.pathname.split("/").map(decoded)) : null;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function fromParts(every) {
  const parts = every.filter(Boolean);
  if (["datasets", "spaces"].includes(parts[0])) throw new Unread("reference", `This is one of the Hub's ${parts[0]}, not a model.`);
  if (parts[0] === "models") parts.shift();
  const cut = parts.findIndex((part) => REVISION_WORDS.includes(part));
  const found = ID.exec((cut < 0 ? parts : parts.slice(0, cut)).join("/"));
  return found && [found[0], found[1], cut >= 0 && parts[cut + 1] ? parts[cut + 1] : found[2]];
}

// ---- the Hub

// The configuration and the tensors of a repository, with what was asked for it.
export async function readRepository({ reference, revision }, hub, dtypes, ended = new AbortController().signal) {
  const deadline = AbortSignal.any([AbortSignal.timeout(SECONDS * 1000), ended]);
  const asked = { requests: 0, bytes: 0, deadline, host: new URL(hub).host };
  const at = encodeURIComponent(revision ?? "main");
  const [listing, config] = await Promise.all([
    ask(asked, `${hub}/api/models/${reference}/revision/${at}?expand[]=siblings&expand[]=sha`, { name: "the list of files", limit: LARGEST_JSON }),
    ask(asked, `${hub}/${reference}/resolve/${at}/${CONFIG}`, { name: CONFIG, limit: LARGEST_JSON, mayLack: true }),
  ]);
  const listed = jsonIn(listing.bytes, "the list of files");
  const siblings = listed instanceof Map ? listed.get("siblings") : null;
  if (!Array.isArray(siblings)) throw new Unread("listing", "The Hub's list of files could not be read.");
  const names = siblings.map((one) => (one instanceof Map ? one.get("rfilename") : null)).filter((name) => typeof name === "string");
  const commit = config?.commit ?? listed.get("sha");
  if (typeof commit !== "string" || !COMMIT.test(commit)) throw new Unread("no commit", "The Hub doesn't say which commit it sent. Try again.");
  if ((listed.get("sha") ?? commit) !== commit) throw changedMeanwhile();
  refuseUnusual(names, config !== null);
  const parsed = configIn(config.bytes);
  const { header, size } = await readHeader(asked, `${hub}/${reference}/resolve/${encodeURIComponent(commit)}/${WEIGHTS}`);
  const tensors = checked(() => tensorsOf(header, dtypes, size));
  return { kind: "hub", reference, revision, commit, config: parsed, tensors, size, requests: asked.requests, bytes: asked.bytes };
}

async function readHeader(asked, url) {
  const first = await ask(asked, url, { name: WEIGHTS, from: 0, limit: FIRST });
  const length = boundedLength(first.bytes, first.size);
  const have = first.bytes.subarray(PREFIX, PREFIX + length);
  if (have.length === length) return { header: have, size: first.size };
  const rest = await ask(asked, url, { name: WEIGHTS, from: PREFIX + have.length, limit: length - have.length });
  if (rest.size !== first.size) throw changedMeanwhile();
  const header = new Uint8Array(length);
  header.set(have);
  header.set(rest.bytes, have.length);
  return { header, size: first.size };
}

// One request, bounded: the whole file, or `limit` bytes of it `from` a place on.
async function ask(asked, url, { name, limit, from = null, mayLack = false }) {
  asked.requests += 1;
  const headers = from === null ? {} : { Range: `bytes=${from}-${from + limit - 1}` };
  let response;
  try {
    response = await fetch(url, { headers, signal: asked.deadline, credentials: "omit", referrerPolicy: "no-referrer" });
  } catch (error) {
    throw unreached(error, asked.host);
  }
  if (response.redirected) asked.requests += 1;
  if (mayLack && response.status === 404 && response.headers.get("X-Error-Code") === "EntryNotFound") return null;
  try {
    if (from !== null && response.status === 200)
      throw new Unread("whole", `The server wanted to send all of ${name}, and this page reads only its beginning.`);
    if (response.status !== (from === null ? 200 : 206)) throw refused(response, name);
    const part = from === null ? null : sentPart(response, from, limit, name);
    const bytes = await bytesOf(response, limit, name, asked);
    asked.bytes += bytes.length;
    if (part && bytes.length !== part.length)
      throw new Unread("cut", `The server sent ${withCommas(bytes.length)} bytes of ${name} where ${withCommas(part.length)} were expected. Try again.`);
    return { bytes, commit: response.headers.get("X-Repo-Commit"), size: part?.size ?? null };
  } catch (error) {
    response.body?.cancel().catch(() => {});
    throw error;
  }
}

// How long the part that is sent is, and the whole file: the part must be the requested one, as far as the file goes.
function sentPart(response, from, limit, name) {
  const [, first, last, whole] = RANGE.exec(response.headers.get("Content-Range") ?? "") ?? [];
  const size = Number(whole);
  if (whole === "*") throw new Unread("no size", `The server doesn't say how large ${name} is, and its header can't be checked without that.`);
  if (Number(first) !== from || Number(last) !== Math.min(from + limit, size) - 1)
    throw new Unread("other part", `The server sent another part of ${name} than was requested. Try again later.`);
  return { length: Number(last) - from + 1, size };
}

async function bytesOf(response, limit, name, asked) {
  const parts = [];
  let length = 0;
  const reader = response.body.getReader();
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      length += part.value.length;
      if (length > limit) {
        reader.cancel();
        throw new Unread("too large", `${name} has more than ${withCommas(limit)} bytes, which is more than this page reads.`);
      }
      parts.push(part.value);
    }
  } catch (error) {
    if (error instanceof Unread) throw error;
    if (asked.deadline.aborted) throw slow();
    throw new Unread("cut", `The connection broke while ${name} was read. Try again.`);
  }
  const whole = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

function changedMeanwhile() {
  return new Unread("commit", "The model changed while it was read. Try again.");
}

function slow() {
  return new Unread("slow", `The Hub did not answer within ${SECONDS} seconds. Try again.`);
}

function unreached(error, host) {
  if (error.name === "TimeoutError" || error.name === "AbortError") return slow();
  if (navigator.onLine === false) return new Unread("offline", "This computer is not connected to a network.");
  return new Unread("unreached", `The browser got no answer from ${host} that this page may read: there is no network, something blocks the request, or the server does not allow it.`);
}

function refused(response, name) {
  const code = response.headers.get("X-Error-Code") ?? "";
  if (code === "GatedRepo") return new Unread("gated", "The model is gated: its files need an account that was given access.");
  if (code === "RepoNotFound") return new Unread("no model", "The Hub has no public model of this name: it is private, renamed, or misspelled.");
  if (code === "RevisionNotFound") return new Unread("no revision", "The model has no such revision.");
  if (response.status === 401 || response.status === 403) return new Unread("refused", "The Hub refuses access without an account: the model is private or gated, or there is none of this name.");
  if (response.status === 429) return new Unread("too many", "The Hub limits how much one network may ask, and the limit is reached. Try again in a few minutes.");
  if (response.status === 404) return new Unread("no file", `The Hub doesn't have ${name} of this model, or there is no public model of this name.`);
  return new Unread("status", `The Hub answered ${response.status} to the request for ${name}.`);
}

// ---- dropped files

// The same of files from the disk, of whose weights only the header is read.
export async function readFiles(files, dtypes) {
  const byName = new Map(files.map((file) => [file.name.replace(COPY, ""), file]));
  refuseUnusual([...byName.keys()], byName.has(CONFIG));
  const config = byName.get(CONFIG);
  if (config.size > LARGEST_JSON) throw new Unread("too large", `${CONFIG} has more than ${withCommas(LARGEST_JSON)} bytes, which is more than this page reads.`);
  const parsed = configIn(await slice(config, 0, config.size));
  const weights = byName.get(WEIGHTS);
  const length = boundedLength(await slice(weights, 0, PREFIX), weights.size);
  const header = await slice(weights, PREFIX, PREFIX + length);
  const tensors = checked(() => tensorsOf(header, dtypes, weights.size));
  const bytes = config.size + PREFIX + length;
  return { kind: "local", reference: FOLDER, revision: null, commit: null, config: parsed, tensors, size: weights.size, requests: 0, bytes };
}

async function slice(file, begin, end) {
  try {
    return new Uint8Array(await file.slice(begin, end).arrayBuffer());
  } catch {
    throw new Unread("unreadable", `${file.name} can't be read.`);
  }
}

// ---- both

function boundedLength(start, size) {
  const length = checked(() => headerLength(start, size));
  if (length > BigInt(LARGEST))
    throw new Unread("header too large", `${WEIGHTS} claims a header of ${withCommas(length)} bytes; this page reads at most ${withCommas(LARGEST)}.`);
  return Number(length);
}

function checked(read) {
  try {
    return read();
  } catch (error) {
    if (error instanceof BadHeader) throw new Unread("bad header", `${WEIGHTS} is not a valid safetensors file: ${error.message}.`);
    throw error;
  }
}

function jsonIn(bytes, name) {
  try {
    return parseBytes(bytes);
  } catch (error) {
    if (error instanceof NotJson) throw new Unread("not json", `${name} is not valid JSON: ${error.message}.`);
    throw error;
  }
}

function configIn(bytes) {
  const config = jsonIn(bytes, CONFIG);
  if (!(config instanceof Map)) throw new Unread("not json", `${CONFIG} doesn't hold a JSON object.`);
  if (config.has("auto_map")) throw new Unread("remote code", "The model brings its own code (auto_map in config.json), which this page doesn't run.");
  return config;
}

// What is in the way of an answer is known from the names of the files.
function refuseUnusual(names, hasConfig) {
  const has = (name) => names.includes(name);
  const ends = (suffix) => names.some((name) => name.endsWith(suffix));
  if (!hasConfig && has(ADAPTER)) throw new Unread("adapter", "This is a PEFT adapter: what its head is depends on its base model too.");
  if (!hasConfig) throw new Unread("no config", "There is no config.json, which says what the model is.");
  if (has(MODULES)) throw new Unread("modules", "This is a sentence-transformers model: its modules decide what follows the base model.");
  if (has(WEIGHTS)) return;
  if (has(ADAPTER)) throw new Unread("adapter", "This is a PEFT adapter: what its head is depends on its base model too.");
  if (has(INDEX)) throw new Unread("sharded", "The weights are in several files, and this page knows no structure of several files.");
  if (ends(".bin")) throw new Unread("bin", "The weights are in PyTorch's format (.bin), which this page doesn't read.");
  throw new Unread("no weights", `There is no ${WEIGHTS}, the file whose header this page reads.`);
}
