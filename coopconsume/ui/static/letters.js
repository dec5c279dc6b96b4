// Dead letters: list, details, and decisions that are confirmed after a dry run.

import { api } from "./api.js";
import { at, count, described, make, pager } from "./dom.js";

const LIMIT = 50;
let group = null;
let start = 0;
let asked = 0;
let shown = [];
const chosen = new Map();

const NO_TABLE = { titles: [], numeric: [], rows: [] };
const idOf = (one) => JSON.stringify([one.topic, one.partition, one.offset, one.commit]);

export function reset(next) {
  if (next === group) return;
  group = next;
  asked += 1;
  start = 0;
  chosen.clear();
  show({ count: 0, letters: [], statuses: {}, table: NO_TABLE }, "Press Show to read the dead letters.");
}

function show(found, empty) {
  shown = found.letters;
  const statuses = Object.entries(found.statuses).map(([name, n]) => `${count(n)} ${name}`);
  at("letters-count").textContent = statuses.join(", ");
  const all = make("input", { type: "checkbox", "aria-label": "all on this page", onchange: (event) => {
    for (const one of shown) choose(one, event.target.checked);
    show(found, empty);
  } });
  all.checked = shown.length > 0 && shown.every((one) => chosen.has(idOf(one)));
  const { titles, numeric, rows } = found.table;
  described("letters", {
    titles: [all, ...titles], numeric: [false, ...numeric], rows: rows.map((cells, i) => row(shown[i], cells)),
  }, { empty, key: String(Math.random()) });
  pager("letters-pager", start, LIMIT, found.count, (next) => { start = next; load(); });
  for (const name of ["replay", "discard"]) at(name).disabled = !chosen.size;
}

function row(one, cells) {
  const name = cells[0];
  const box = make("input", { type: "checkbox", "aria-label": name, onchange: (event) => {
    choose(one, event.target.checked);
    for (const name of ["replay", "discard"]) at(name).disabled = !chosen.size;
  } });
  box.checked = chosen.has(idOf(one));
  return [box, make("button", { onclick: () => open(one) }, name), ...cells.slice(1)];
}

function choose(one, isChosen) {
  if (isChosen) chosen.set(idOf(one), one);
  else chosen.delete(idOf(one));
}

export async function load() {
  const query = new URLSearchParams({
    reason: at("reason").value, key: at("key").value, settled: at("settled").checked, start, limit: LIMIT,
  });
  const turn = (asked += 1);
  at("letters-count").textContent = "reading…";
  let found = { count: 0, letters: [], statuses: {}, table: NO_TABLE };
  let empty = "There are no such dead letters.";
  try {
    found = await api(group, `letters?${query}`);
  } catch (error) {
    empty = error.message;
  }
  if (turn === asked) show(found, empty); // Otherwise other letters were asked for meanwhile.
}

async function open(one) {
  try {
    const whole = await api(group, `letter?${new URLSearchParams(one)}`);
    at("letter-name").textContent = whole.name;
    described("letter-facts", whole.facts);
    at("letter-value").textContent = whole.value ?? "none";
    at("letter-trace").textContent = whole.trace || "none";
    at("letter-dialog").showModal();
  } catch (error) {
    at("letters-count").textContent = error.message;
  }
}

// Opens the newest letter of a record; an element says if there is none.
export async function find(place, said) {
  try {
    const [newest] = (await api(group, `letters-of?${new URLSearchParams(place)}`)).letters;
    at(said).textContent = newest ? "" : `${place.topic}-${place.partition}@${place.offset} has no dead letter.`;
    if (newest) await open(newest);
  } catch (error) {
    at(said).textContent = error.message;
  }
}

async function decide(action) {
  const of = group;
  const letters = [...chosen.values()];
  try {
    const plan = await api(of, "decide", { action, letters });
    if (!(await confirmed(action, plan))) return;
    const said = { reason: at("decision-reason").value, by: at("decision-by").value };
    const done = await api(of, "decide", { action, letters, ...said, confirmed: { parked: plan.parked, passed: plan.passed } });
    at("decision-reason").value = "";
    chosen.clear();
    await load();
    at("letters-count").textContent = `${action === "replay" ? "Replayed" : "Discarded"}: ${count(done.parked + done.passed)}.`;
  } catch (error) {
    at("letters-count").textContent = error.message;
  }
}

function confirmed(action, plan) {
  const dialog = at("confirm-dialog");
  const [verb, parked, passed] = action === "replay"
    ? ["Replay", "will be retried before the key continues", "will be written again, to the end of the partition"]
    : ["Discard", "will be marked as done, and the key continues", "will be discarded"];
  const records = (n, kind) => `${count(n)} ${kind}record${n === 1 ? "" : "s"}`;
  const effects = [[plan.parked, "parked ", parked], [plan.passed, "passed ", passed]]
    .filter(([n]) => n).map(([n, kind, effect]) => `${records(n, kind)} ${effect}.`);
  at("confirm-title").textContent = `${verb} ${records(plan.parked + plan.passed, "")} of ${group}?`;
  at("confirm-text").textContent = effects.length
    ? `${effects.join(" ")} This cannot be undone.`
    : "There is no decision to make on these records any more.";
  at("confirm-yes").textContent = verb;
  at("confirm-yes").disabled = !(plan.parked + plan.passed);
  dialog.showModal();
  return new Promise((answer) => {
    const end = (is) => { dialog.onclose = null; dialog.close(); answer(is); };
    at("confirm-yes").onclick = () => end(true);
    at("confirm-no").onclick = () => end(false);
    dialog.onclose = () => answer(false);
  });
}

// Shows the dead letters, as a link to them does.
export function go() {
  at("letters-section").scrollIntoView({ behavior: "smooth" });
  at("load").click();
}

export function begin(allowDecisions) {
  at("decisions").hidden = !allowDecisions;
  const again = () => { start = 0; chosen.clear(); load(); };
  at("load").onclick = again;
  for (const name of ["reason", "key"]) at(name).onchange = again;
  at("settled").onchange = again;
  at("replay").onclick = () => decide("replay");
  at("discard").onclick = () => decide("discard");
}
