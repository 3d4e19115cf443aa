// The atlas can be filtered and sorted, and wide tables scrolled with the keyboard, and buttons of code blocks are no landmarks;
// without this script the tables are as they are written.
"use strict";

function build(page) {
  const heads = (table) => [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  const tables = [...page.querySelectorAll("table")].filter((table) =>
    table.tHead && table.tBodies[0] && ["class", "family", "pooling"].every((name) => heads(table).includes(name)));
  if (tables.length < 2 || page.querySelector(".table-tools")) return;
  tables.forEach(breakable);

  const heading = (table) => {
    let above = table.closest(".md-typeset__scrollwrap") || table;
    while (above && above.tagName !== "H2") above = above.previousElementSibling;
    return above;
  };
  const sections = tables.map((table) => ({ table, heading: heading(table), rows: [...table.tBodies[0].rows] }));
  const names = heads(tables[0]);
  const value = (row, column) => {
    const cell = row.cells[names.indexOf(column)];
    return cell ? cell.textContent.split(/[:(]/)[0].trim() : "";
  };
  const values = (column) =>
    [...new Set(sections.flatMap((one) => one.rows.map((row) => value(row, column))))].filter(Boolean).sort();
  const tasks = sections.map((one) => one.heading ? one.heading.firstChild.textContent.trim() : "");

  const tools = document.createElement("form");
  tools.className = "table-tools";
  tools.setAttribute("role", "search");
  tools.setAttribute("aria-label", "Filter the classes");
  const text = Object.assign(document.createElement("input"), { type: "search", placeholder: "Class, family or formula" });
  text.setAttribute("aria-label", "Class, family or formula");
  const choice = (label, options) => {
    const found = document.createElement("select");
    found.setAttribute("aria-label", label);
    found.append(new Option(`Any ${label}`, ""), ...options.map((option) => new Option(option, option)));
    return found;
  };
  const task = choice("task", tasks.filter(Boolean));
  const chosen = Object.fromEntries(["pooling", "family"].map((column) => [column, choice(column, values(column))]));
  const count = document.createElement("output");
  tools.append(text, task, ...Object.values(chosen), count);
  const first = sections[0].heading || sections[0].table;
  first.before(tools);
  tools.addEventListener("submit", (event) => event.preventDefault());

  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    sections.forEach((one, at) => {
      let some = 0;
      for (const row of one.rows) {
        const fits = (!task.value || task.value === tasks[at]) &&
          Object.entries(chosen).every(([column, field]) => !field.value || field.value === value(row, column)) &&
          words.every((word) => row.textContent.toLowerCase().includes(word));
        row.hidden = !fits;
        some += fits ? 1 : 0;
      }
      const whole = one.table.closest(".md-typeset__scrollwrap") || one.table;
      whole.hidden = some === 0;
      if (one.heading) one.heading.hidden = some === 0;
      shown += some;
    });
    count.textContent = `${shown} of ${sections.reduce((sum, one) => sum + one.rows.length, 0)} classes`;
  };
  [text, task, ...Object.values(chosen)].forEach((field) => field.addEventListener("input", filter));
  sections.forEach(sortable);
  filter();
}

// Long names are broken where a reader would: of classes before "For", others behind a hyphen, formulas behind "(".
const NAME = /(?<=\w)(?=For[A-Z])/, WORD = /(?<=[_-])(?=\w)/, FORMULA = /(?<=\()(?=\w)/;

function breakable(table) {
  for (const row of table.tBodies[0].rows)
    [NAME, WORD, WORD, FORMULA, NAME].forEach((between, at) => {
      const cell = row.cells[at];
      if (cell) breakText((cell.querySelector("code") || cell).firstChild, between);
    });
}

function breakText(text, between) {
  if (!text || text.nodeType !== Node.TEXT_NODE) return;
  const parts = text.data.split(between);
  text.replaceWith(...parts.flatMap((part, at) => at ? [document.createElement("wbr"), part] : [part]));
}

function sortable(section) {
  [...section.table.tHead.rows[0].cells].forEach((cell, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...cell.childNodes);
    cell.append(button);
    button.addEventListener("click", () => {
      const order = cell.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      for (const other of cell.parentNode.cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", order);
      const value = (row) => row.cells[at] ? row.cells[at].textContent : "";
      const sorted = [...section.rows].sort((one, other) => value(one).localeCompare(value(other), "en", { numeric: true }));
      section.table.tBodies[0].append(...(order === "ascending" ? sorted : sorted.reverse()));
    });
  });
}

// A table that scrolls can be reached and scrolled with the keyboard. The theme wraps the tables when it starts.
function reachable() {
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap")) {
    const scrolls = wrap.scrollWidth > wrap.clientWidth;
    if (scrolls === wrap.hasAttribute("tabindex")) continue;
    if (!scrolls) {
      wrap.removeAttribute("tabindex");
      continue;
    }
    wrap.tabIndex = 0;
    wrap.setAttribute("role", "group");
    wrap.setAttribute("aria-label", "Table");
  }
}

// The theme gives each block of code a `nav` for its button: no place to go to, and all have the same name.
function plain() {
  for (const nav of document.querySelectorAll("nav.md-code__nav:not([role])")) nav.setAttribute("role", "none");
}

function start() {
  document.querySelectorAll("article").forEach(build);
  document.querySelectorAll("article h1").forEach((title) => breakText(title.firstChild, NAME));
  new MutationObserver(() => { reachable(); plain(); }).observe(document.body, { childList: true, subtree: true });
  addEventListener("resize", reachable);
  addEventListener("load", reachable);
  reachable();
  plain();
}
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start); else start();
