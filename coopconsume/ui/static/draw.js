// Pictures: charts over time, maps of offsets, key ranges, and the grid of partitions.

import { clock, colour, make, short } from "./dom.js";

export const STATES = ["not committed", "done", "gap", "pending", "parked"];
const STATE_NAMES = ["open", "done", "gap", "pending", "parked"];
const SVG = "http://www.w3.org/2000/svg";

export function stateColours() {
  const style = getComputedStyle(document.body);
  const probe = make("i");
  document.body.append(probe);
  // A colour of the theme has to be resolved before a canvas can use it.
  const found = STATE_NAMES.map((name) => {
    probe.style.color = style.getPropertyValue(`--${name}`);
    return getComputedStyle(probe).color;
  });
  probe.remove();
  return found;
}

export function legend(element, items) {
  element.replaceChildren(...items.map(([text, colour]) => {
    const square = make("i");
    square.style.background = colour;
    return make("span", {}, square, text);
  }));
}

// Makes a canvas as sharp as the screen, and returns its context in CSS pixels.
export function context(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const found = canvas.getContext("2d");
  found.scale(ratio, ratio);
  return found;
}

const node = (tag, attributes, text = "") => {
  const found = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  found.textContent = text;
  return found;
};

function nice(most) {
  const size = 10 ** Math.floor(Math.log10(Math.max(most, 1)));
  return [1, 2, 5, 10].map((step) => step * size).find((step) => step >= most) || 1;
}

// Lines over time. `lines` are [class, values]; the first one is filled below.
export function chart(element, times, lines) {
  const [width, height, left, bottom] = [element.clientWidth || 500, 190, 46, 20];
  const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const top = nice(Math.max(...lines.flatMap(([, values]) => values), 1));
  const [first, last] = [times[0], times[times.length - 1]];
  const x = (time) => left + ((time - first) / Math.max(last - first, 1)) * (width - left - 8);
  const y = (value) => 8 + (1 - value / top) * (height - bottom - 8);
  for (const part of [0, 0.5, 1]) {
    svg.append(
      node("line", { class: "rule", x1: left, x2: width - 8, y1: y(part * top), y2: y(part * top) }),
      node("text", { x: left - 6, y: y(part * top) + 4, "text-anchor": "end" }, short(part * top)),
    );
  }
  if (times.length) {
    svg.append(
      node("text", { x: left, y: height - 4 }, clock(first)),
      node("text", { x: width - 8, y: height - 4, "text-anchor": "end" }, clock(last)),
    );
  }
  lines.forEach(([kind, values], i) => {
    if (values.length < 2) return;
    const path = values.map((value, j) => `${j ? "L" : "M"}${x(times[j]).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    if (!i) svg.append(node("path", { class: `area ${kind}`, d: `${path}L${x(last)} ${y(0)}L${x(first)} ${y(0)}Z` }));
    svg.append(node("path", { class: kind, d: path }));
  });
  if (times.length < 2) {
    svg.append(node("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "after the first readings"));
  }
  element.replaceChildren(svg);
}

// The most urgent state in each column, as a strip.
export function strip(canvas, states, width, height) {
  const draw = context(canvas, width, height);
  const colours = stateColours();
  const step = width / Math.max(states.length, 1);
  for (let i = 0; i < states.length; i += 1) {
    let end = i + 1;
    while (end < states.length && states[end] === states[i]) end += 1;
    draw.fillStyle = colours[Number(states[i])];
    draw.fillRect(i * step, 0, (end - i) * step, height);
    i = end - 1;
  }
  return draw;
}

// Adds up columns where there are more of them than pixels, so that none is between two pixels.
function narrowed({ worst, counts }, width) {
  const size = Math.ceil(worst.length / Math.max(width, 1));
  if (size < 2) return { worst, counts };
  const starts = Array.from({ length: Math.ceil(worst.length / size) }, (_, i) => i * size);
  return {
    worst: starts.map((i) => Math.max(...worst.slice(i, i + size))).join(""),
    counts: counts.map((row) => starts.map((i) => row.slice(i, i + size).reduce((sum, n) => sum + n, 0))),
  };
}

// The large map: shares of states above, and a strip of the most urgent ones below.
export function map(canvas, all, width) {
  const [height, low] = [130, 26];
  const found = narrowed(all, width);
  const draw = context(canvas, width, height + low + 6);
  const colours = stateColours();
  const columns = found.worst.length;
  const step = width / columns;
  for (let i = 0; i < columns; i += 1) {
    const total = found.counts.reduce((sum, row) => sum + row[i], 0) || 1;
    let base = height;
    // Whole pixels: between the fractions of two columns the paper would shine through.
    const [left, right] = [Math.floor(i * step), Math.floor((i + 1) * step)];
    for (const state of [1, 4, 3, 2, 0]) {
      const size = (found.counts[state][i] / total) * height;
      draw.fillStyle = colours[state];
      draw.fillRect(left, base - size, right - left, size);
      base -= size;
    }
    draw.fillStyle = colours[Number(found.worst[i])];
    draw.fillRect(left, height + 6, right - left, low);
  }
}

export function bar(canvas, owners, doubts, width, height) {
  const draw = context(canvas, width, height);
  parts(draw, owners, 0, width, height);
  draw.fillStyle = "rgb(0 0 0 / .45)";
  for (const [first, end] of doubts) {
    for (let x = (first / 1e4) * width; x < (end / 1e4) * width; x += 4) draw.fillRect(x, 0, 2, height);
  }
}

function parts(draw, owners, top, width, height) {
  for (const [number, first, end] of owners) {
    draw.fillStyle = colour(number);
    draw.fillRect((first / 1e4) * width, top, ((end - first) / 1e4) * width, height);
  }
}

const divisor = (a, b) => (b ? divisor(b, a % b) : a);

// One line for each partition; where there are many, lines get thinner, then one is drawn of several.
// The step has no divisor in common with the number of members, which often own partitions in turn.
export function ranges(canvas, partitions, members, width) {
  let every = Math.max(1, Math.ceil(partitions.length / 140));
  while (every > 1 && divisor(every, members) > 1) every += 1;
  const lines = partitions.filter((_, i) => i % every === 0);
  const size = Math.max(3, Math.min(18, Math.floor(420 / Math.max(lines.length, 1))));
  const gap = size > 4 ? 2 : 0;
  const draw = context(canvas, width, Math.max(size * lines.length, 1));
  draw.fillStyle = "rgb(128 128 128 / .18)";
  draw.fillRect(0, 0, width, size * lines.length);
  lines.forEach(([, , , , owners], i) => parts(draw, owners, i * size, width, size - gap));
  return { size, every };
}

// One square for each partition, in the colour of its most urgent state.
export function grid(canvas, partitions, width) {
  const size = partitions.length > 2000 ? 6 : partitions.length > 300 ? 10 : 18;
  const columns = Math.max(1, Math.floor(width / size));
  const draw = context(canvas, width, Math.ceil(partitions.length / columns) * size || 1);
  const colours = stateColours();
  partitions.forEach(([, , level], i) => {
    draw.fillStyle = colours[level];
    draw.fillRect((i % columns) * size, Math.floor(i / columns) * size, size - 1.5, size - 1.5);
  });
  return { size, columns };
}
