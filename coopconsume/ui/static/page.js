// The page: asks for the status of one group every few seconds, and shows it.

import { api, groups, open, session } from "./api.js";
import { at, clock, code, count, described, make, pager, short, span, table } from "./dom.js";
import { STATES, bar, chart, grid, legend, map, ranges, stateColours, strip } from "./draw.js";
import * as letters from "./letters.js";

const LIMIT = 50;
const GROUPS_EVERY = 10_000;
const rows = { start: 0, sort: "name", find: "" };
let group = null;
let found = null;
let cells = null;
let detail = null;
let asked = 0;

const cssOf = (name) => getComputedStyle(document.body).getPropertyValue(`--${name}`);

function banner(text) {
  at("banner").hidden = !text;
  at("banner").textContent = text;
}

function fresh(text, isStale) {
  at("fresh").textContent = text;
  at("fresh").classList.toggle("stale", isStale);
}

// -- which group

async function listGroups() {
  try {
    const { groups: all } = await groups();
    const names = all.map((one) => one.group);
    if (group && !names.includes(group)) all.unshift({ group, lag: null });
    at("groups").replaceChildren(...all.map((one) => make(
      "a", { href: `#${encodeURIComponent(one.group)}`, "aria-current": one.group === group ? "page" : null, title: one.verdict?.sentence },
      one.group, make("small", {}, one.lag === null ? "" : short(one.lag)),
    )));
    if (!group && all.length) choose(all[0].group);
    at("none").hidden = Boolean(group);
    at("none").firstElementChild.textContent = "The commit table has no groups yet. A group appears here when its first member joins.";
    if (!group) { banner(""); fresh("no groups", false); }
  } catch (error) {
    if (!group) { banner(error.message); fresh("", true); }
  }
  setTimeout(listGroups, group ? GROUPS_EVERY : 1000 * session.interval);
}

function choose(name) {
  if (name === group) return;
  group = name;
  found = null;
  rows.start = 0;
  at("main").hidden = true;
  banner("");
  fresh("reading…", false);
  document.title = `${name} · coopconsume`;
  at("partition-dialog").close();
  for (const link of at("groups").children) {
    if (link.hash === `#${encodeURIComponent(name)}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  letters.reset(name);
  update();
}

function fromAddress() {
  const name = decodeURIComponent(location.hash.slice(1)) || session.group;
  if (name) choose(name);
}

// -- the status

async function update() {
  if (!group) return;
  const turn = (asked += 1);
  const query = new URLSearchParams({ ...rows, limit: LIMIT });
  try {
    const next = await api(group, `status?${query}`);
    if (turn !== asked) return;
    show(next);
  } catch (error) {
    if (turn !== asked) return;
    banner(error.message);
    fresh(found ? `status of ${clock(found.at)}` : "no status", true);
  }
}

function show(next) {
  const since = next.errorSince ? ` (since ${clock(next.errorSince)})` : "";
  banner(next.error ? `${next.error}${since}; trying again.` : "");
  if (!next.group) {
    fresh(next.error ? "no status" : "reading…", Boolean(next.error));
    return;
  }
  // A reading that takes long may be of a broker or a table that does not answer.
  const isStale = Boolean(next.error) || next.age > 3 * session.interval + 5;
  fresh(isStale ? `status of ${clock(next.at)}` : `updated ${clock(next.at)}`, isStale);
  found = next;
  at("none").hidden = true;
  at("main").hidden = false;
  document.title = `${short(found.lag)} · ${found.group} · coopconsume`;
  showTitle();
  showVerdict();
  showCards();
  showCharts();
  showBlockedKeys();
  showBlockers();
  showDoubts();
  showMembers();
  showPartitions();
  showEvents();
  if (detail && at("partition-dialog").open) loadDetail();
}

function showTitle() {
  at("group").textContent = found.group;
  at("state").textContent = found.state;
  at("state").className = `pill ${found.state}`;
  const epoch = found.epoch === null ? "" : `epoch ${found.epoch}, generation ${found.generation} · `;
  const filter = found.filter ? ` · filter ${found.filter}` : "";
  at("place").textContent = `${epoch}${found.servers} · ${found.table}${filter}`;
  at("notes").replaceChildren(...found.notes.map((note) => make("li", {}, note)));
}

function showVerdict() {
  const { level, reason, sentence, command, records, others } = found.verdict;
  at("verdict").className = level;
  at("sentence").textContent = sentence;
  unlessShown("also", others.map((one) => one.sentence), (one) => make("li", {}, one));
  const links = records.map((one) => ["record", one]);
  if (reason === "decision") links.unshift(["letters", null]);
  if (command) links.push(["command", command]);
  unlessShown("next", links, ([kind, one]) => {
    if (kind === "command") return code(one);
    if (kind === "letters") return make("button", { onclick: letters.go }, "Dead letters");
    const key = one.key === null ? "" : ` · ${one.key}`;
    const name = `${one.topic}-${one.partition}@${one.offset}`;
    return make("button", { "data-record": name, onclick: () => openDetail(one) }, name + key);
  });
}

// Replaces the children of an element only if they change, so that no click and no focus is lost.
function unlessShown(id, list, child) {
  const [element, key] = [at(id), JSON.stringify(list)];
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  element.replaceChildren(...list.map(child));
}

function showCards() {
  const { oldest, slots, pace } = found;
  const { done, new: fresh_, doneIn } = pace || { done: 0, new: 0, doneIn: null };
  const rate = doneIn !== null ? `done in ${span(doneIn)}` : done || !found.lag || !pace ? "" : "no new commits";
  // A sum without them would look as if nothing was to be done.
  const left = found.unknown ? `unknown in ${count(found.unknown)} of ${count(found.partitions.length)} partitions` : rate;
  const list = [
    ["Not committed", count(found.lag), left, ""],
    ["Committed per second", short(Math.round(done * 10) / 10), "mean of 30 s", ""],
    ["New per second", short(Math.round(fresh_ * 10) / 10), "mean of 30 s", ""],
    ["Members", count(found.workers), slots ? `${count(slots)} slots` : "", ""],
    ["Pending", count(found.pending), "failed, not done", found.pending ? "warn" : ""],
    ["Parked", count(found.parked), "of these, undecided", found.parked ? "parked" : ""],
    ["Oldest blocker", oldest ? span(found.at - oldest.since) : "none", oldest ? oldest.partition : "", oldest && oldest.attempts ? "warn" : ""],
  ];
  at("cards").replaceChildren(...list.map(([name, value, more, kind]) => make(
    "div", { class: `card ${kind}` }, make("span", {}, name), make("b", {}, value), make("small", {}, more),
  )));
}

function showCharts() {
  const times = found.series.map((one) => one[0]);
  const column = (i) => found.series.map((one) => one[i]);
  legend(at("rate-legend"), [["committed offsets per second", cssOf("done")], ["new offsets per second", cssOf("new")]]);
  legend(at("lag-legend"), [["not committed", cssOf("strong")], ["failed", cssOf("pending")]]);
  // The first sample has no rate.
  chart(at("rates"), times.slice(1), [["done", column(2).slice(1)], ["new", column(3).slice(1)]]);
  chart(at("lags"), times, [["lag", column(1)], ["failing", column(4)]]);
}

function showBlockedKeys() {
  const { titles, numeric, rows: lines } = found.blockedKeys;
  at("blocked-keys-section").hidden = !lines.length;
  const more = found.blockedCount > lines.length ? `, ${count(lines.length)} of them below` : "";
  at("blocked-count").textContent = `${count(found.blockedCount)} blocked by a failed record, parked ones first${more}`;
  described("blocked-keys", {
    titles: ["", ...titles], numeric: [false, ...numeric],
    rows: lines.map((cells, i) => [blockedLinks(found.blockedPlaces[i], cells[titles.indexOf("state")]), ...cells.map((cell, j) => (
      titles[j] === "since" ? day(cell) : cell
    ))]),
  }, { key: JSON.stringify(lines) });
}

// A date above its time: both in one line make the table wider than a screen.
function day(time) {
  const [date, ...rest] = time.split(" ");
  return rest.length ? make("span", {}, `${date} `, make("br"), rest.join(" ")) : time;
}

function blockedLinks(place, state) {
  const name = `${place.topic}-${place.partition}@${place.offset}`;
  const letter = state === "parked" ? make("button", { "data-letter": name, onclick: () => letters.find(place, "blocked-said") }, "Letter") : null;
  return make("span", { class: "links" },
    make("button", { "data-decide": name, onclick: () => openChoices(place, state) }, "Decide…"),
    make("button", { "data-map": name, onclick: () => openDetail(place) }, "Map"), letter);
}

// The commands that decide on a record, each whole; a click selects one.
function openChoices(place, state) {
  at("decide-name").textContent = `${place.topic}-${place.partition}@${place.offset}`;
  const choices = Object.entries(found.choices).filter(([action]) => action !== "park" || state !== "parked");
  at("decide-choices").replaceChildren(...choices.flatMap(([action, meaning]) => [
    make("dt", {}, make("b", {}, action), ` ${meaning}`),
    make("dd", {}, code(`coopconsume records ${action} ${place.arguments}`)),
  ]));
  at("decide-dialog").showModal();
}

function showBlockers() {
  at("blocked").hidden = !found.blockers.rows.length;
  described("blockers", found.blockers);
}

function showDoubts() {
  const list = found.inDoubt.filter((one) => one.until === null || one.until > Date.now() / 1000);
  at("waits").hidden = !list.length;
  at("doubts").replaceChildren(...list.map((one) => {
    const left = one.until === null ? null : Math.max(0, one.until - Date.now() / 1000);
    const progress = make("progress", { max: one.seconds });
    if (left !== null) progress.value = one.seconds - left;
    const part = `${(one.first / 100).toFixed(0)}–${(one.end / 100).toFixed(0)} % of the key hashes`;
    return make("div", { class: "wait" }, make("span", {}, make("b", {}, one.partition), ` ${part}`), progress,
      left === null ? `up to ${span(one.seconds)}` : `${span(left)} left, until ${clock(one.until)}`);
  }));
}

function showMembers() {
  at("assignor").textContent = found.assignor;
  described("members", found.members, { empty: "There are no members." });
  at("claims").hidden = !found.claims.rows.length;
  described("claims", found.claims);
  const canvas = at("ranges");
  const width = canvas.parentElement.clientWidth - 36;
  const { size, every } = ranges(canvas, found.partitions, Math.max(found.owners.length, 1), width);
  canvas.onmousemove = (event) => {
    const one = found.partitions[Math.floor(event.offsetY / size) * every];
    if (!one) return;
    const place = (event.offsetX / width) * 1e4;
    const owner = one[4].find(([, first, end]) => first <= place && place < end);
    at("under").textContent = `${one[0]}-${one[1]}: ${(owner && found.owners[owner[0]]) || "no owner"}`;
  };
  const all = JSON.stringify([found.group, found.partitions.length, every]);
  if (canvas.dataset.key === all) return;
  canvas.dataset.key = all;
  at("under").textContent = `${count(found.partitions.length)} ${found.partitions.length === 1 ? "partition" : "partitions"}, ${every === 1 ? "one line each" : `a line for one of ${every}`}`;
}

function showPartitions() {
  const colours = stateColours();
  legend(at("map-legend"), STATES.map((name, i) => [name, colours[i]]));
  const canvas = at("grid");
  canvas.hidden = found.partitions.length <= 12;
  cells = canvas.hidden ? null : grid(canvas, found.partitions, canvas.parentElement.clientWidth - 36);
  const colour = [
    ["partition", "name"], ["key hashes", "side"], ["offsets, log start to end: most urgent state", ""], ["stable", "n"], ["end", "n"], ["not committed", "n"],
    ["gaps", "n"], ["pending", "n"], ["parked", "n"],
  ];
  table("partitions", colour, found.rows.map((one) => {
    const [owners, strip_] = [make("canvas"), make("canvas", { title: `${one.name}: ${count(one.logStart)} to ${count(one.end)}` })];
    bar(owners, one.owners, one.inDoubt, 110, 14);
    strip(strip_, one.map, 300, 14);
    return [
      make("button", { onclick: () => openDetail(one) }, one.name), owners, strip_, count(one.stable), count(one.end),
      count(one.lag), count(one.gaps), count(one.pending), count(one.parked),
    ];
  }), { named: true, empty: "No partition has such a name.", key: JSON.stringify([found.rows, matchMedia("(prefers-color-scheme: dark)").matches]) });
  pager("pager", rows.start, LIMIT, found.found, (next) => { rows.start = next; update(); });
}

function showEvents() {
  described("events", found.events, { empty: "The commit log has no rows on assignments." });
}

// -- one partition

function openDetail(one) {
  detail = { topic: one.topic, partition: one.partition };
  at("partition-name").textContent = `${one.topic}-${one.partition}`;
  loadDetail().then(() => at("partition-dialog").open || at("partition-dialog").showModal()).then(loadDetail);
}

async function loadDetail() {
  const wanted = detail;
  let one;
  try {
    one = await api(group, `partition?${new URLSearchParams(wanted)}`);
  } catch (error) {
    if (wanted === detail) at("partition-name").textContent = error.message;
    return;
  }
  if (wanted !== detail) return; // Another partition was opened meanwhile.
  at("partition-name").textContent = `${one.topic}-${one.partition}, stable offset ${count(one.stable)}`;
  const canvas = at("partition-map");
  canvas.hidden = !one.map;
  if (one.map) {
    const width = at("partition-axis").clientWidth;
    map(canvas, one.map, width);
    const colours = stateColours();
    legend(at("partition-legend"), STATES.map((name, i) => [`${name} ${count(one.map.totals[i])}`, colours[i]]));
    at("partition-axis").replaceChildren(
      make("span", {}, `offset ${count(one.map.first)}`), make("span", {}, `end ${count(one.map.end)}`),
    );
    zoomable(canvas, one.map, width);
  }
  described("partition-failed", one.failed);
  at("partition-failed").hidden = !one.failed.rows.length;
  described("partition-gaps", one.gaps);
  at("partition-gaps").hidden = !one.gaps.rows.length;
  at("partition-count").textContent = one.gapCount > one.gaps.rows.length ? `${count(one.gapCount)} gaps: zoom in to see all` : "";
}

function zoomable(canvas, shown, width) {
  const offset = (x) => shown.first + Math.floor((Math.min(Math.max(x, 0), width) / width) * (shown.end - shown.first));
  let from = null;
  canvas.onpointerdown = (event) => { from = event.offsetX; canvas.setPointerCapture(event.pointerId); };
  canvas.onpointerup = (event) => {
    if (from === null || Math.abs(event.offsetX - from) < 4) return;
    const [low, high] = [from, event.offsetX].sort((a, b) => a - b);
    detail = { ...detail, first: offset(low), end: Math.max(offset(high), offset(low) + 1) };
    loadDetail();
  };
  canvas.ondblclick = () => { detail = { topic: detail.topic, partition: detail.partition }; loadDetail(); };
}

// -- begin

at("sort").onchange = (event) => { rows.sort = event.target.value; rows.start = 0; update(); };
at("find").oninput = (event) => { rows.find = event.target.value; rows.start = 0; update(); };
at("grid").onclick = (event) => {
  const i = Math.floor(event.offsetY / cells.size) * cells.columns + Math.floor(event.offsetX / cells.size);
  const one = found.partitions[i];
  if (one) openDetail({ topic: one[0], partition: one[1] });
};
at("grid").onmousemove = (event) => {
  const i = Math.floor(event.offsetY / cells.size) * cells.columns + Math.floor(event.offsetX / cells.size);
  const one = found.partitions[i];
  at("grid").title = one ? `${one[0]}-${one[1]}: ${STATES[one[2]]}, ${count(one[3])} not committed` : "";
};
addEventListener("hashchange", fromAddress);
addEventListener("resize", () => found && show(found));

async function tick() {
  await update();
  setTimeout(tick, 1000 * session.interval);
}

async function begin() {
  try {
    await open();
  } catch (error) {
    banner(error.message);
    setTimeout(begin, 2000);
    return;
  }
  letters.begin(session.allowDecisions);
  fromAddress();
  listGroups();
  tick();
}

begin();
