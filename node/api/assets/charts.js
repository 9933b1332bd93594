// Lines over time as one SVG: paths, a few grid lines, and a legend with the values at the pointer, or else the newest
// values. A chart is redrawn only when its data change; its size comes from an observer, so nothing is measured.

const NS = "http://www.w3.org/2000/svg";
const COLORS = ["#3b7ddd", "#d9822b", "#2e9e62", "#b04fc0", "#c9423b", "#7a8599", "#1aa3a3", "#9c8412"];
const LEFT_PX = 40; // room for the numbers
const BELOW_PX = 20; // room for the times
const ABOVE_PX = 8;
const LABEL_PX = 90; // width of a time, with the space beside it
const DAY_SECONDS = 86400;
const STEPS_SECONDS = [1, 5, 15, 30, 60, 120, 300, 600, 1200, 3600, 7200, 21600, 43200, DAY_SECONDS];

const charts = new Map(); // place -> its chart

/**
 * Draws `series`, [{name, seconds: [Unix time, ascending], values: [number or null]}], all over the same times, into
 * `place`. The axis begins at 0 and ends at `max`, where that is given.
 */
export function draw(place, series, { max = null } = {}) {
  const chart = charts.get(place) ?? newChart(place);
  const times = series[0]?.seconds ?? [];
  const newest = `${times[0]} ${times.at(-1)} ${series.map(({ name }) => name).join()}`;
  if (newest === chart.newest) return;
  Object.assign(chart, { series, times, max, newest });
  redraw(chart);
}

function newChart(place) {
  const chart = { series: [], times: [], max: null, newest: null, width: 0, height: 0, pointer: null };
  chart.svg = drawing("svg", { role: "img", "aria-label": "lines over time; the legend below shows their values" });
  chart.legend = document.createElement("div");
  chart.legend.className = "legend";
  place.replaceChildren(chart.svg, chart.legend);
  charts.set(place, chart);
  new ResizeObserver(([{ contentRect }]) => {
    Object.assign(chart, { width: contentRect.width, height: contentRect.height });
    redraw(chart);
  }).observe(chart.svg);
  chart.svg.addEventListener("pointermove", (event) => onPointer(chart, event.offsetX));
  chart.svg.addEventListener("pointerleave", () => onPointer(chart, null));
  return chart;
}

function redraw(chart) {
  const { series, times, width, height } = chart;
  chart.pointer = null;
  if (!times.length || width <= LEFT_PX) {
    chart.svg.replaceChildren();
    chart.legend.replaceChildren();
    return;
  }
  const highest = chart.max ?? Math.max(...series.flatMap(({ values }) => values.map((value) => value ?? 0)));
  const [step, top] = roundSteps(highest);
  const [first, last] = [times[0], times.at(-1)];
  const x = (seconds) => LEFT_PX + ((seconds - first) / Math.max(last - first, 1e-9)) * (width - LEFT_PX - 1);
  const y = (value) => height - BELOW_PX - (value / top) * (height - BELOW_PX - ABOVE_PX);
  const inside = [];
  for (let value = 0; value <= top * 1.001; value += step) {
    inside.push(drawing("path", { class: "grid", d: `M${LEFT_PX} ${y(value)}H${width}` }));
    inside.push(label(short(value), { x: LEFT_PX - 6, y: y(value) + 4, "text-anchor": "end" }));
  }
  for (const [seconds, text] of marks(first, last, Math.max(1, Math.floor((width - LEFT_PX) / LABEL_PX)))) {
    const anchor = x(seconds) > width - 20 ? "end" : x(seconds) < LEFT_PX + 20 ? "start" : "middle";
    inside.push(label(text, { x: x(seconds), y: height - 4, "text-anchor": anchor }));
  }
  series.forEach(({ values }, index) =>
    inside.push(drawing("path", { class: "line", stroke: COLORS[index % COLORS.length], d: path(times, values, x, y) })),
  );
  chart.cursor = drawing("path", { class: "cursor" });
  chart.x = x;
  chart.svg.replaceChildren(...inside, chart.cursor);
  chart.legend.replaceChildren(...series.map(({ name }, index) => legendEntry(name, COLORS[index % COLORS.length])));
  updateLegend(chart);
}

/** A line with gaps where there is no value. */
function path(times, values, x, y) {
  let command = "M";
  let d = "";
  values.forEach((value, index) => {
    if (value === null) {
      command = "M";
      return;
    }
    d += `${command}${x(times[index]).toFixed(1)} ${y(value).toFixed(1)}`;
    if (command === "M") d += "h0"; // a single value is a dot
    command = "L";
  });
  return d;
}

function legendEntry(name, color) {
  const entry = document.createElement("span");
  const sample = drawing("svg", { class: "sample", width: 14, height: 8, "aria-hidden": "true" });
  sample.append(drawing("path", { class: "line", stroke: color, d: "M0 4H14" }));
  entry.append(sample, ` ${name} `, document.createElement("b"));
  return entry;
}

function onPointer(chart, offset) {
  if (!chart.times.length || chart.x === undefined) return;
  const { times, x } = chart;
  chart.pointer = offset === null ? null : nearest(times.map(x), offset);
  const d = chart.pointer === null ? "" : `M${x(times[chart.pointer])} ${ABOVE_PX}V${chart.height - BELOW_PX}`;
  chart.cursor.setAttribute("d", d);
  updateLegend(chart);
}

/** Writes each line's value at the pointer, or else its newest value, into the legend. */
function updateLegend({ series, legend, pointer }) {
  series.forEach(({ values }, index) => {
    const value = pointer === null ? values.findLast((each) => each !== null) : values[pointer];
    legend.children[index].lastChild.textContent = value === null || value === undefined ? "–" : short(value);
  });
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

/** Returns at most `max` round times between two times, with their texts. */
function marks(first, last, max) {
  const wanted = (last - first) / max;
  const step = STEPS_SECONDS.find((each) => each >= wanted) ?? DAY_SECONDS * Math.ceil(wanted / DAY_SECONDS);
  const offset = new Date(1000 * first).getTimezoneOffset() * 60;
  const style = step < 60 ? { timeStyle: "medium" } : step < DAY_SECONDS ? { timeStyle: "short" } : { dateStyle: "short" };
  const format = new Intl.DateTimeFormat(undefined, style);
  const found = [];
  for (let each = Math.ceil((first - offset) / step) * step + offset; each <= last; each += step) {
    found.push([each, format.format(1000 * each)]);
  }
  return found;
}

/** Formats a value with three digits; k, M and G stand for thousands. */
function short(value) {
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= unit) return `${Number((value / unit).toPrecision(3))} ${name}`;
  }
  return `${Number(value.toPrecision(3))}`;
}

function drawing(tag, attributes) {
  const made = document.createElementNS(NS, tag);
  for (const name in attributes) made.setAttribute(name, attributes[name]);
  return made;
}

function label(text, attributes) {
  const made = drawing("text", attributes);
  made.textContent = text;
  return made;
}
