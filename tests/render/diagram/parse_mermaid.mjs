// Reads a flowchart from stdin with Mermaid's own parser and prints its nodes and edges as JSON.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { readFileSync } from "node:fs";

const require = createRequire(import.meta.url);
const { JSDOM } = require("jsdom");
const dom = new JSDOM("<body></body>");
globalThis.window = dom.window;
globalThis.document = dom.window.document;
const file = require.resolve("mermaid").replace(/[^/]*$/, "mermaid.core.mjs");
const { default: mermaid } = await import(pathToFileURL(file));
const text = readFileSync(0, "utf8");
await mermaid.parse(text);
const diagram = await mermaid.mermaidAPI.getDiagramFromText(text);
const nodes = Object.fromEntries([...diagram.db.getVertices()].map(([id, vertex]) => [id, vertex.text]));
const edges = diagram.db.getEdges().map((edge) => [edge.start, edge.end]);
console.log(JSON.stringify({ nodes, edges }));
