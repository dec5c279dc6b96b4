// Elements and texts. Everything that comes from a group is set as text, never parsed as HTML.

const MEMBERS = ["#56b4e9", "#e69f00", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"];

// The colour of an owner of key ranges; those that the list of owners does not have are grey.
export const colour = (number) => (number === null || number < 0 ? "#888888" : MEMBERS[number % MEMBERS.length]);

export const at = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) found.addEventListener(name.slice(2), value);
    else if (value === true) found.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) found.setAttribute(name, value);
  }
  found.append(...children.filter((child) => child !== null && child !== undefined));
  return found;
}

// Replaces rows only if they changed, so that a selection and a scroll position stay. With `named`,
// the first cells name the rows and stay as long as they are the same: no click or focus is lost.
export function table(id, heads, rows, { empty = "", key = JSON.stringify(rows), named = false } = {}) {
  const element = at(id);
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  const head = make("tr", {}, ...heads.map(([text, kind]) => make("th", { class: kind }, text)));
  const body = rows.map((cells) => make("tr", {}, ...cells.map((cell, i) => {
    const shown = cell instanceof Node ? cell : cell === null || cell === undefined ? "–" : String(cell);
    return make("td", { class: heads[i][1], "data-title": heads[i][0] }, shown);
  })));
  if (!rows.length && empty) body.push(make("tr", {}, make("td", { colspan: heads.length, class: "quiet" }, empty)));
  const before = named ? [...element.querySelectorAll("tbody tr")] : [];
  if (before.length === body.length && body.every((row, i) => row.cells[0].textContent === before[i].cells[0].textContent)) {
    body.forEach((row, i) => [...row.cells].slice(1).forEach((cell, j) => before[i].cells[j + 1].replaceWith(cell)));
    return;
  }
  element.replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
}

// A table as `admin.tables` describes it: a text for each value, or an owner with its letter.
export function described(id, { titles, numeric, rows }, more = {}) {
  table(id, titles.map((title, i) => [title, numeric[i] || FIGURES.includes(title) ? "n" : TEXTS.includes(title) ? "text" : NAMES.includes(title) ? "name" : ""]), rows.map((cells) => (
    cells.map((cell, i) => (
      cell instanceof Node ? cell : typeof cell === "object" ? swatch(cell) : PILLS.includes(titles[i]) ? make("span", { class: `pill ${cell}` }, cell) : cell
    ))
  )), { key: JSON.stringify(rows), ...more });
}

// A command whose options are not divided at their hyphens.
export const code = (text) => make("code", { title: text }, ...text.split(" ").flatMap((word, i) => [i ? " " : "", make("span", { class: "word" }, word)]));

const TEXTS = ["key", "error", "by", "member", "standalone claim of", "reason", "value", "record", "partition"];
const NAMES = ["", "age", "blocks for", "due in", "when", "since", "given up"];
// Figures that come as text, such as "at least 78".
const FIGURES = ["records behind", "has"];
const PILLS = ["state", "status"];

function swatch({ owner, letter }) {
  const square = make("i", { class: "swatch" });
  square.style.background = colour(owner);
  return make("span", {}, square, ` ${letter}`);
}

export const count = (n) => (n === null || n === undefined ? "–" : n.toLocaleString("en-US"));

export function short(n) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(n) >= size) return `${(n / size).toFixed(n < 10 * size ? 1 : 0)} ${unit}`;
  }
  return Number.isInteger(n) ? String(n) : n.toFixed(1);
}

export function span(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const s = Math.max(0, seconds);
  // In its largest unit, as in the tables of the server.
  const [unit, size] = [["d", 86400], ["h", 3600], ["min", 60]].find((one) => s >= 2 * one[1]) ?? ["s", 1];
  return `${Math.round(s / size)} ${unit}`;
}

// In UTC, as in tables, logs and messages of the server.
export const clock = (seconds) => `${new Date(seconds * 1000).toISOString().slice(11, 19)} UTC`;

export function pager(id, start, limit, total, go) {
  const element = at(id);
  // The buttons stay while nothing changes, so that no click is lost.
  const key = JSON.stringify([start, limit, total]);
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  element.replaceChildren();
  if (total <= limit) return;
  const last = Math.min(start + limit, total);
  element.append(
    make("button", { disabled: start === 0, onclick: () => go(Math.max(0, start - limit)) }, "‹ Back"),
    `${count(start + 1)}–${count(last)} of ${count(total)}`,
    make("button", { disabled: last >= total, onclick: () => go(start + limit) }, "Next ›"),
  );
}
