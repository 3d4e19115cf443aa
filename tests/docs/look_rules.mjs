// Answers as the page does, for each line on stdin: `node look_rules.mjs MODULES STORE`. A line is JSON: `folder` of a
// checkpoint, and `wanted`, the number of classes or null. Prints a line of JSON for each.
import { openAsBlob } from "node:fs";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [modules, store] = process.argv.slice(2);
const own = (name) => import(pathToFileURL(`${modules}/${name}.mjs`).href);
const { answerOn } = await own("answer");
const { readFiles, Unread } = await own("hub");
const { NotKnown } = await own("structure");
const { textOf } = await own("template");
const load = async (name) => textOf(await openAsBlob(`${store}/${name}`));
const words = JSON.parse(await load("words.json.gz"));

for await (const line of createInterface({ input: process.stdin })) {
  const { folder, wanted } = JSON.parse(line);
  const files = await Promise.all(["config.json", "model.safetensors"].map(async (name) => Object.assign(await openAsBlob(`${folder}/${name}`), { name })));
  let told;
  try {
    told = await answerOn(await readFiles(files, words.dtypes), wanted, words, load);
  } catch (error) {
    if (!(error instanceof Unread || error instanceof NotKnown)) throw error;
    told = { unknown: error.kind, sentence: error.message };
  }
  process.stdout.write(`${JSON.stringify(told)}\n`);
}
