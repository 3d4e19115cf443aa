// Looks at the built site in a real browser, and at its HTML: `node scripts/site/check_site.mjs SITE`.
//
// Needs npm's playwright-core, axe-core and html-validate, here or on NODE_PATH, and a Chromium (CHROMIUM names it).
// Prints what is wrong, one line each, and exits with 1 if anything is: serious findings of axe, pages that are wider
// than the window, errors in the console, requests to other hosts, an atlas that can't be filtered, invalid HTML. Without
// these programs it says so and exits with 0, or with 1 if CI is set: there, a check that never runs would look like one
// that passes.
import { createRequire } from "node:module";
import { createServer } from "node:http";
import { existsSync, readFileSync, readdirSync, statSync } from "node:fs";
import { extname, join, relative, resolve } from "node:path";

const require = createRequire(import.meta.url);
const executablePath = process.env.CHROMIUM || ["chromium", "chromium-browser", "google-chrome"].flatMap((name) => process.env.PATH.split(":").map((folder) => join(folder, name))).find((path) => existsSync(path));
const PACKAGES = ["playwright-core", "axe-core", "html-validate"];
const missing = PACKAGES.filter((name) => { try { return !require.resolve(`${name}/package.json`); } catch { return true; } });
const reason = missing.length ? `npm's ${missing.join(", ")} not found, here or on NODE_PATH` : executablePath ? "" : "no Chromium found";
if (reason) {
  console.log(`the site was not looked at: ${reason}`);
  process.exit(process.env.CI ? 1 : 0);
}
const { chromium } = require("playwright-core");
const { HtmlValidate } = require("html-validate");
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const WIDTHS = [390, 768, 1280, 1920];
const THEMES = ["light", "dark"];
const EVERY = 14; // of the pages of the atlas, which are made alike: 30 of them
const AT_ONCE = 3;
const TYPES = { ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".mjs": "text/javascript", ".json": "application/json", ".svg": "image/svg+xml", ".png": "image/png" };
// What the theme writes, and what is a matter of taste.
const RULES = {
  extends: ["html-validate:standard"],
  rules: {
    "long-title": "off", "no-inline-style": "off", "require-sri": "off", "no-trailing-whitespace": "off",
    "void-style": "off", "no-raw-characters": "off", "attribute-boolean-style": "off", "attr-quotes": "off",
    "doctype-style": "off", "no-implicit-button-type": "off", "prefer-native-element": "off", "element-permitted-content": "error",
  },
};

const site = resolve(process.argv[2]);
const wrong = [];

function* pages(folder) {
  for (const name of readdirSync(folder).sort()) {
    const path = join(folder, name);
    if (statSync(path).isDirectory()) yield* pages(path);
    else if (name.endsWith(".html")) yield relative(site, path);
  }
}

async function validate(names) {
  const validator = new HtmlValidate(RULES);
  for (const name of names) {
    const report = await validator.validateFile(join(site, name));
    for (const result of report.results)
      for (const one of result.messages)
        if (one.severity === 2) wrong.push(`${name}:${one.line}: ${one.ruleId}: ${one.message}`);
  }
}

function serve() {
  const server = createServer((request, response) => {
    const path = join(site, decodeURIComponent(new URL(request.url, "http://site").pathname));
    const file = existsSync(path) && statSync(path).isDirectory() ? join(path, "index.html") : path;
    if (!existsSync(file)) return void response.writeHead(404).end();
    response.writeHead(200, { "content-type": TYPES[extname(file)] || "text/plain" }).end(readFileSync(file));
  });
  return new Promise((done) => server.listen(0, "127.0.0.1", () => done(server)));
}

// The atlas can be filtered, and no other page has the form for it.
async function useFilter(page, name, report) {
  const forms = await page.locator(".table-tools").count();
  if (forms !== (name === "atlas.html" ? 1 : 0)) return void report(`${forms} forms to filter classes`);
  if (forms === 0) return;
  const shown = () => page.locator("article tbody tr:not([hidden])", { has: page.locator("td a[href^='atlas/']") }).count();
  const all = await shown();
  await page.fill(".table-tools input", "BertForSequenceClassification");
  const some = await shown();
  const said = await page.textContent(".table-tools output");
  if (some === 0 || some >= all || !said.startsWith(`${some} of `)) report(`the filter shows ${some} of ${all} classes and says "${said}"`);
  await page.fill(".table-tools input", "");
}

async function look(browser, root, name, colorScheme) {
  const context = await browser.newContext({ viewport: { width: WIDTHS[0], height: 900 }, colorScheme, reducedMotion: "reduce" });
  const page = await context.newPage();
  let where = `${name}, ${colorScheme}`;
  page.on("pageerror", (error) => wrong.push(`${where}: ${error}`));
  page.on("console", (message) => message.type() === "error" && wrong.push(`${where}: ${message.text()}`));
  page.on("request", (request) => request.url().startsWith(root) || request.url().startsWith("blob:") || wrong.push(`${where}: asks ${request.url()}`));
  await page.goto(`${root}/${name}`, { waitUntil: "load" });
  await page.evaluate(AXE);
  await useFilter(page, name, (problem) => wrong.push(`${where}: ${problem}`));
  for (const width of WIDTHS) {
    where = `${name} at ${width} px, ${colorScheme}`;
    await page.setViewportSize({ width, height: 900 });
    await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
    const wider = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    if (wider > 0) wrong.push(`${where}: the page is ${wider} px wider than the window`);
    const found = await page.evaluate(() => globalThis.axe.run({ resultTypes: ["violations"] }));
    for (const one of found.violations)
      if (["serious", "critical"].includes(one.impact))
        wrong.push(`${where}: ${one.id}: ${one.help}: ${one.nodes.length} places, such as ${one.nodes[0].html.replace(/\s+/g, " ").slice(0, 160)}`);
  }
  await context.close();
}

const all = [...pages(site)];
const classes = all.filter((name) => name.startsWith("atlas/"));
const looked = [...all.filter((name) => !name.startsWith("atlas/")), ...classes.filter((_, at) => at % EVERY === 0)];
const chosen = process.argv.length > 3 ? process.argv.slice(3) : looked;
await validate(process.argv.length > 3 ? chosen : all);
const server = await serve();
const options = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const browser = await chromium.launch({ executablePath, args: options });
const root = `http://127.0.0.1:${server.address().port}`;
const looks = chosen.flatMap((name) => THEMES.map((theme) => [name, theme]));
await Promise.all(Array.from({ length: AT_ONCE }, async () => {
  for (let next = looks.shift(); next; next = looks.shift()) await look(browser, root, ...next);
}));
await browser.close();
server.close();
console.log([...wrong, `${chosen.length} pages in ${WIDTHS.length} widths and ${THEMES.length} themes: ${wrong.length} findings`].join("\n"));
process.exitCode = wrong.length ? 1 : 0;
