// Calls the page's own modules, for each line on stdin: `node look_modules.mjs MODULES`. A line is JSON: `module`, `call`
// and `with`, the arguments; or `folder`, whose checkpoint is read; or `hub`, an address, and `reference`, what is typed.
// Prints a line of JSON for each: the `value` or the `error`, with its `kind`, and the milliseconds of processors, which
// depend little on what else the computer does.
import { openAsBlob } from "node:fs";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const own = (name) => import(pathToFileURL(`${process.argv[2]}/${name}.mjs`).href);
const { readFiles, readRepository, referenceOf, Unread } = await own("hub");
const DTYPES = JSON.parse(process.argv[3]);

async function found(line) {
  if (line.hub) return (await readRepository(referenceOf(line.reference, line.hub), line.hub, DTYPES)).tensors;
  if (!line.folder) return (await own(line.module))[line.call](...line.with);
  const files = await Promise.all(["config.json", "model.safetensors"].map(async (name) => Object.assign(await openAsBlob(`${line.folder}/${name}`), { name })));
  return (await readFiles(files, DTYPES)).tensors;
}

for await (const text of createInterface({ input: process.stdin })) {
  const begun = process.cpuUsage();
  let told;
  try {
    told = { value: await found(JSON.parse(text)) };
  } catch (error) {
    if (!(error instanceof Unread)) throw error;
    told = { error: error.message, kind: error.kind };
  }
  const { user, system } = process.cpuUsage(begun);
  process.stdout.write(`${JSON.stringify({ ...told, milliseconds: (user + system) / 1000 })}\n`);
}
