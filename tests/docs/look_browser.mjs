// Uses the page "Look at a checkpoint" in Chromium: `node look_browser.mjs SITE PLAN`. The plan is JSON, a list of steps:
// `visit` opens the page with a query (or `page`, another one), `ask` fills in the form of the page that is open, `files`
// drops files into it; `width`, `theme`, `picture` and `axe` say how it is looked at, `open` opens what is folded, and
// `buttons` clicks all buttons that copy code. Prints a line of JSON for each step.
import { createRequire } from "node:module";
import { createServer } from "node:http";
import { existsSync, readFileSync, statSync } from "node:fs";
import { extname, join, resolve } from "node:path";

const require = createRequire(import.meta.url);
const { chromium } = require("playwright-core");
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const TYPES = { ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".mjs": "text/javascript", ".json": "application/json", ".svg": "image/svg+xml" };
const executablePath = process.env.CHROMIUM || ["chromium", "chromium-browser", "google-chrome"].flatMap((name) => process.env.PATH.split(":").map((folder) => join(folder, name))).find((path) => existsSync(path));
const [site, plan] = [resolve(process.argv[2]), JSON.parse(readFileSync(process.argv[3], "utf8"))];

const server = createServer((request, response) => {
  const file = join(site, decodeURIComponent(new URL(request.url, "http://site").pathname));
  if (!existsSync(file) || statSync(file).isDirectory()) return void response.writeHead(404).end();
  response.writeHead(200, { "content-type": TYPES[extname(file)] || "text/plain" }).end(readFileSync(file));
});
await new Promise((done) => server.listen(0, "127.0.0.1", done));
const root = `http://127.0.0.1:${server.address().port}`;
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"] });

let page;
let seen;

async function open({ visit, page: name = "look.html", width = 1280, theme = "light", offline = false }) {
  await page?.context().close();
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme: theme, reducedMotion: "reduce", permissions: ["clipboard-read", "clipboard-write"] });
  page = await context.newPage();
  seen = { console: [], requests: [] };
  page.on("pageerror", (error) => seen.console.push(String(error)));
  page.on("console", (message) => message.type() === "error" && seen.console.push(message.text()));
  page.on("response", async (response) => {
    const told = { url: response.url(), status: response.status(), bytes: 0 };
    seen.requests.push(told);
    told.bytes = await response.body().then((body) => body.length, () => 0);
  });
  if (offline) await page.route("**/*", (route) => route.request().url().startsWith(root) ? route.continue() : route.abort("internetdisconnected"));
  await page.goto(`${root}/${name}${visit}`, { waitUntil: "load" });
}

async function ask({ model, count, other }) {
  await page.fill("#look-model", model);
  await page.fill("#look-count", count ? String(count) : "");
  if (other !== undefined) await page.evaluate((text) => { document.getElementById("look-with").value = text; }, other);
  await page.evaluate(() => { const look = document.getElementById("look"); look.answers = undefined; look.dataset.state = "ready"; });
  await page.press("#look-model", "Enter");
}

for (const step of plan) {
  if (step.visit !== undefined) await open(step);
  if (step.ask) await ask(step.ask);
  if (step.files) await page.setInputFiles("#look-files", step.files);
  const begun = Date.now();
  const told = { name: step.name };
  if (step.ask || step.files || step.visit?.includes("model=")) {
    await page.waitForFunction(() => document.getElementById("look").answers, null, { timeout: 40_000, polling: 20 });
    told.answers = await page.evaluate(() => document.getElementById("look").answers);
    told.shown = await page.locator(".look-answers").innerText();
    told.milliseconds = Date.now() - begun;
    told.commands = await page.locator(".look-next code").evaluateAll((all) => all.map((one) => one.innerText));
    const fields = await page.evaluate(() => [...document.querySelectorAll("#look input:not([type=file])")].map((one) => one.value));
    told.whole = [await page.title(), await page.locator("#look").evaluate((one) => one.outerHTML), ...(step.ask ? [] : fields)].join(" ");
  }
  if (step.copy) {
    await page.click(".look-copy button >> nth=0");
    told.copied = await page.evaluate(() => navigator.clipboard.readText());
  }
  if (step.open) await page.evaluate(() => document.querySelectorAll("#look details").forEach((one) => { one.open = true; }));
  if (step.buttons) {
    told.buttons = [];
    for (const button of await page.locator("button.md-code__button[data-md-type=copy]").all()) {
      await button.evaluate((one) => { one.closest("details")?.setAttribute("open", ""); one.click(); });
      told.buttons.push(await page.evaluate(() => navigator.clipboard.readText()));
    }
  }
  if (step.axe) {
    await page.evaluate(AXE);
    const found = await page.evaluate(() => globalThis.axe.run({ resultTypes: ["violations"] }));
    told.axe = found.violations.map((one) => `${one.id} (${one.impact}): ${one.nodes[0].html.slice(0, 160)}`);
  }
  if (step.wide) {
    told.wider = {};
    told.scrolls = {};
    told.tall = {};
    for (const width of step.wide) {
      await page.setViewportSize({ width, height: 900 });
      await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
      told.wider[width] = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      told.scrolls[width] = await page.evaluate(() => Math.max(0, ...[...document.querySelectorAll(".look-picture")].map((one) => one.scrollWidth - one.clientWidth)));
      told.tall[width] = await page.evaluate(() => document.getElementById("look").scrollHeight);
      if (step.picture) await page.screenshot({ path: `${step.picture}-${width}.png`, fullPage: true });
    }
  }
  await page.waitForTimeout(step.settle ?? 0);
  Object.assign(told, { console: seen.console, requests: step.visit === undefined ? [] : seen.requests, scripts: await page.evaluate(() => globalThis.hostile ?? 0) });
  process.stdout.write(`${JSON.stringify(told)}\n`);
}
await browser.close();
server.close();
