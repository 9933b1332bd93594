// Lines over time or steps as one SVG: paths, a few grid lines, marks of what happened, and a legend with the values at
// the point that is read, or else the newest values. A point is read by pointer, by tap, and by the arrow keys. A chart is
// redrawn only when its data change; its size comes from an observer, so nothing is measured.

import { clock, short } from "./text.js";

const DRAWING = "http://www.w3.org/2000/svg";
const COLOURS = 6; // classes c0 to c5 of the style sheet; further lines are dashed
const LEFT_PX = 34; // room for the numbers
const BELOW_PX = 22; // room for the times
const ABOVE_PX = 10;
const ROW_PX = 15; // of signs of what happened, above the lines, in two rows
const TEXTS = 8; // of one sign, at most
const APART_PX = 26; // signs that are closer than this are drawn as one
const NEAR_PX = 9; // of a sign, within which a point is read with it
const LEAP = 10; // points, by the keys that turn pages
const LABEL_PX = 80; // width of a time, with the space beside it
const DAY_SECONDS = 86400;
const STEPS_SECONDS = [1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 43200, DAY_SECONDS];

const charts = new Map(); // place -> its chart

/**
 * Draws `lines`, [{name, x: [ascending], values: [number or null]}], into `place`.
 *
 * `max` is the end of the axis, which begins at 0; `by` is "time" (x in Unix seconds) or "step"; `marks` are
 * [{x, kind, sign, text}], with kind the class of a sign; `moments` are [{line, from, to, kind}], stretches of a line to
 * emphasize; `gaps` are [from, to], where nothing was done and each line breaks; `format` writes a value in the legend.
 */
export function draw(
  place,
  lines,
  { max = null, by = "time", marks = [], moments = [], gaps = [], format = short, label = "" } = {},
) {
  const chart = charts.get(place) ?? newChart(place);
  const ends = [
    Math.min(...lines.map(({ x }) => x[0] ?? Infinity)),
    Math.max(...lines.map(({ x }) => x.at(-1) ?? -Infinity)),
  ];
  const names = lines.map(({ name }) => name);
  const newest = JSON.stringify([ends, by, label, names, marks.length, marks.at(-1)?.x, gaps.length, moments]);
  if (newest === chart.newest) return;
  (place.closest("figure") ?? place).hidden = ends[1] < ends[0]; // nothing is recorded: no empty frame
  const xs = [...new Set(lines.flatMap(({ x }) => x))].sort((one, other) => one - other);
  if (by !== chart.by) chart.pointer = null;
  Object.assign(chart, { lines, ends, max, by, marks, moments, gaps, format, newest, label, xs });
  redraw(chart);
}

function newChart(place) {
  const chart = {
    lines: [],
    ends: [Infinity, -Infinity],
    marks: [],
    gaps: [],
    xs: [],
    max: null,
    newest: null,
    width: 0,
    height: 0,
    pointer: null,
  };
  chart.svg = drawn("svg", { role: "slider", tabindex: 0, "aria-label": "nothing is recorded yet", "aria-valuenow": 0 });
  chart.legend = document.createElement("ul");
  chart.legend.className = "legend";
  place.replaceChildren(chart.svg, chart.legend);
  charts.set(place, chart);
  new ResizeObserver(([{ contentRect }]) => {
    Object.assign(chart, { width: contentRect.width, height: contentRect.height });
    redraw(chart);
  }).observe(chart.svg);
  for (const kind of ["pointermove", "pointerdown"])
    chart.svg.addEventListener(kind, ({ clientX }) => onPointer(chart, clientX));
  // A finger leaves where it was lifted: what it pointed at stays, until another place is tapped.
  chart.svg.addEventListener("pointerleave", ({ pointerType }) => pointerType === "mouse" && read(chart, null));
  chart.svg.addEventListener("blur", () => read(chart, null));
  chart.svg.addEventListener("keydown", (event) => onKey(chart, event));
  return chart;
}

function redraw(chart) {
  const { lines, width, height, marks } = chart;
  const [first, last] = chart.ends;
  chart.x = undefined;
  if (last < first || width <= LEFT_PX) {
    chart.svg.replaceChildren();
    chart.legend.replaceChildren();
    return;
  }
  const x = (at) => LEFT_PX + ((at - first) / Math.max(last - first, 1e-9)) * (width - LEFT_PX - 2);
  const placed = signs(marks, x);
  const above = ABOVE_PX + ROW_PX * placed.rows;
  const highest = chart.max ?? Math.max(...lines.flatMap(({ values }) => values.map((value) => value ?? 0)));
  const [step, top] = roundSteps(highest);
  const y = (value) => height - BELOW_PX - (Math.min(value, top) / top) * (height - BELOW_PX - above);
  const inside = [];
  for (let value = 0; value <= top * 1.001; value += step) {
    inside.push(drawn("path", { class: "grid", d: `M${LEFT_PX} ${y(value).toFixed(1)}H${width}` }));
    inside.push(written(short(value), { x: LEFT_PX - 6, y: y(value) + 4, "text-anchor": "end" }));
  }
  const most = Math.max(1, Math.floor((width - LEFT_PX) / LABEL_PX));
  for (const [at, text] of chart.by === "time" ? roundTimes(first, last, most) : roundCounts(first, last, most)) {
    const anchor = x(at) > width - 24 ? "end" : x(at) < LEFT_PX + 20 ? "start" : "middle";
    inside.push(written(text, { x: x(at), y: height - 5, "text-anchor": anchor }));
  }
  for (const [from, to] of chart.gaps) {
    const [left, right] = [Math.max(LEFT_PX, x(from)), Math.min(width, x(to))];
    if (right > left)
      inside.push(drawn("rect", { class: "gap", x: left, y: above, width: right - left, height: height - BELOW_PX - above }));
  }
  inside.push(...placed.groups.map((group) => sign(group, above, height)));
  inside.push(...emphasis(chart, x, y));
  lines.forEach(({ x: xs, values }, index) => {
    const attributes = { class: `line ${lineClass(index)}`, "data-line": index };
    inside.push(drawn("path", { ...attributes, d: path(xs, values, x, y, chart.gaps) }));
  });
  chart.cursor = drawn("path", { class: "cursor" });
  chart.dots = lines.map((_, index) => drawn("path", { class: `dot ${lineClass(index)}` }));
  Object.assign(chart, { x, y, above });
  chart.svg.replaceChildren(...inside, chart.cursor, ...chart.dots);
  chart.svg.setAttribute("aria-label", `${chart.label || "lines over time"}; arrow keys read a point`);
  chart.svg.setAttribute("aria-valuemax", chart.xs.length - 1);
  chart.at = document.createElement("li");
  chart.at.className = "at";
  chart.entries = lines.map(({ name }, index) => legendEntry(chart, name, index));
  chart.legend.replaceChildren(chart.at, ...chart.entries);
  read(chart, chart.pointer);
}

const lineClass = (index) => `c${index % COLOURS}${index >= COLOURS ? " dashed" : ""}`;

/**
 * Returns the signs with the places where they stand. Signs of one kind that would overlap are one, with all their
 * texts; those of different kinds stand in two rows. Checkpoints are many: they stand on the axis, without a sign.
 */
function signs(marks, x) {
  const groups = [];
  const ends = [-Infinity, -Infinity]; // of the last sign of each row
  for (const mark of marks) {
    const at = x(mark.x);
    const near = groups.findLast((group) => group.kind === mark.kind && at - group.at < APART_PX);
    if (near) {
      near.texts.push(mark.text);
      continue;
    }
    const row = mark.sign === "" ? null : at - ends[0] >= APART_PX + 8 || ends[0] <= ends[1] ? 0 : 1;
    if (row !== null) ends[row] = at;
    groups.push({ at, row, kind: mark.kind, sign: mark.sign, texts: [mark.text] });
  }
  return { groups, rows: Math.max(0, ...groups.map(({ row }) => (row === null ? 0 : row + 1))) };
}

function sign({ at, row, kind, sign: symbol, texts }, above, height) {
  const made = drawn("g", { class: `mark ${kind}` });
  const [x, low] = [at.toFixed(1), height - BELOW_PX];
  if (row === null) made.append(drawn("path", { d: `M${x} ${low - 5}v5`, class: "stroke" }));
  else {
    const top = (row + 1) * ROW_PX;
    const text = symbol + (texts.length > 1 ? ` ${texts.length}` : "");
    made.append(drawn("path", { d: `M${x} ${top}V${low}`, class: "stroke" }));
    made.append(written(text, { x, y: top - 4, "text-anchor": at < LEFT_PX + 10 ? "start" : "middle" }));
  }
  const title = drawn("title", {});
  title.textContent = [
    ...texts.slice(0, TEXTS),
    ...(texts.length > TEXTS ? [`and ${texts.length - TEXTS} more`] : []),
  ].join("\n");
  made.append(title);
  return made;
}

/** Stretches of lines, such as the one in which a line rose most, drawn broad under it. */
function emphasis({ moments, lines, gaps }, x, y) {
  return moments.flatMap(({ line, from, to, kind }) => {
    const { x: xs, values } = lines.find(({ name }) => name === line) ?? { x: [], values: [] };
    const within = values.map((value, index) => (xs[index] >= from && xs[index] <= to ? value : null));
    return [drawn("path", { class: `line moment ${kind}`, d: path(xs, within, x, y, gaps) })];
  });
}

/** A line that breaks where there is no value, and where nothing was done. */
function path(xs, values, x, y, gaps) {
  let command = "M";
  let d = "";
  let before = -Infinity; // x of the former point
  values.forEach((value, index) => {
    if (value === null || value === undefined) {
      command = "M";
      return;
    }
    if (gaps.some(([from, to]) => before <= from && to <= xs[index])) command = "M";
    before = xs[index];
    d += `${command}${x(xs[index]).toFixed(1)} ${y(value).toFixed(1)}`;
    if (command === "M") d += "h0"; // a single value is a dot
    command = "L";
  });
  return d;
}

function legendEntry(chart, name, index) {
  const entry = document.createElement("li");
  const sample = drawn("svg", { class: "sample", width: 16, height: 8, "aria-hidden": "true" });
  sample.append(drawn("path", { class: `line ${lineClass(index)}`, d: "M0 4H16" }));
  const called = document.createElement("span");
  called.textContent = name;
  entry.append(sample, called, document.createElement("b"));
  const emphasize = (on) => {
    chart.svg.classList.toggle("dimmed", on);
    chart.svg.querySelector(`[data-line="${index}"]`)?.classList.toggle("chosen", on);
  };
  entry.addEventListener("pointerenter", () => emphasize(true));
  entry.addEventListener("pointerleave", () => emphasize(false));
  return entry;
}

function onPointer(chart, clientX) {
  if (chart.x === undefined) return;
  const { ends, width, xs, gaps } = chart;
  const offset = clientX - chart.svg.getBoundingClientRect().left - LEFT_PX;
  const at = ends[0] + Math.max(0, Math.min(1, offset / (width - LEFT_PX - 2))) * (ends[1] - ends[0]);
  read(chart, inGap(at, gaps) ? at : xs[nearest(xs, at)]);
}

function onKey(chart, event) {
  const { xs, pointer } = chart;
  const index = pointer === null ? xs.length : nearest(xs, pointer);
  const to = {
    ArrowLeft: index - 1,
    ArrowDown: index - 1,
    ArrowRight: index + 1,
    ArrowUp: index + 1,
    PageDown: index - LEAP,
    PageUp: index + LEAP,
    Home: 0,
    End: xs.length - 1,
  }[event.key];
  if (event.key === "Escape") read(chart, null);
  if (to === undefined || !xs.length) return;
  event.preventDefault();
  read(chart, xs[Math.max(0, Math.min(xs.length - 1, to))]);
}

const inGap = (at, gaps) => gaps.some(([from, to]) => from < at && at < to);

/** Shows the values at `at`, a value of x, or the newest ones where it is null. */
function read(chart, at) {
  const { lines, entries, xs, gaps, marks, by, format, ends, svg, dots, cursor } = chart;
  chart.pointer = at === null ? null : Math.max(ends[0], Math.min(ends[1], at));
  if (chart.x === undefined) return;
  const isIdle = at !== null && inGap(at, gaps);
  const shown = chart.pointer ?? ends[1];
  const near = at === null ? [] : marks.filter(({ x }) => Math.abs(chart.x(x) - chart.x(shown)) < NEAR_PX);
  const when = by === "time" ? clock(shown, { withSeconds: true, withDay: ends[1] - ends[0] > DAY_SECONDS }) : `round ${short(shown)}`;
  const said = [`${at === null ? "newest, " : ""}${when}${isIdle ? ", not training" : ""}`, ...near.slice(0, 2).map(({ text }) => text)];
  chart.at.textContent = said.join(" · ");
  const texts = lines.map(({ name, x, values }, index) => {
    const point = at === null ? values.findLastIndex((each) => each !== null && each !== undefined) : nearest(x, shown);
    const value = isIdle ? null : (values[point] ?? null);
    const d = at === null || value === null ? "" : `M${chart.x(x[point])} ${chart.y(value)}h0`;
    dots[index].setAttribute("d", d);
    entries[index].lastChild.textContent = format(value);
    return `${name} ${format(value)}`;
  });
  cursor.setAttribute("d", at === null ? "" : `M${chart.x(shown)} ${chart.above}V${chart.height - BELOW_PX}`);
  svg.setAttribute("aria-valuenow", nearest(xs, shown));
  svg.setAttribute("aria-valuetext", [...said, ...texts].join(", "));
}

function nearest(sorted, wanted) {
  const after = sorted.findIndex((each) => each >= wanted);
  if (after === -1) return sorted.length - 1;
  return after > 0 && wanted - sorted[after - 1] < sorted[after] - wanted ? after - 1 : after;
}

/** Returns a round step, of which about four fit on the axis, and the end of the axis. */
function roundSteps(highest) {
  if (!(highest > 0) || !Number.isFinite(highest)) return [1, 1];
  const power = 10 ** Math.floor(Math.log10(highest / 4));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each * 4 >= highest * 0.999);
  return [step, step * Math.ceil((highest / step) * 0.999)];
}

/** Returns at most `most` round times between two times, with their texts. */
function roundTimes(first, last, most) {
  const wanted = (last - first) / most;
  const step = STEPS_SECONDS.find((each) => each >= wanted) ?? DAY_SECONDS * Math.ceil(wanted / DAY_SECONDS);
  const offset = new Date(1000 * first).getTimezoneOffset() * 60;
  const found = [];
  for (let each = Math.ceil((first - offset) / step) * step + offset; each <= last; each += step) {
    const text =
      step < DAY_SECONDS ? clock(each, { withSeconds: step < 60 }) : clock(each, { withDay: true }).slice(5, 10);
    found.push([each, text]);
  }
  return found;
}

function roundCounts(first, last, most) {
  const [step] = roundSteps(((last - first) / Math.min(most, 8)) * 4);
  const whole = Math.max(1, Math.round(step));
  const found = [];
  for (let each = Math.ceil(first / whole) * whole; each <= last; each += whole) found.push([each, short(each)]);
  return found;
}

function drawn(tag, attributes) {
  const made = document.createElementNS(DRAWING, tag);
  for (const name in attributes) made.setAttribute(name, attributes[name]);
  return made;
}

function written(text, attributes) {
  const made = drawn("text", attributes);
  made.textContent = text;
  return made;
}
