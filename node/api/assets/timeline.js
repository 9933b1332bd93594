// The chart of skills, its choices and its marks, on the page and in reports, from the API's history. What computes is
// pure.

import { draw } from "./charts.js";
import { $, element, show } from "./dom.js";
import { key } from "./skills.js";
import { ago, capital, clock, counted, number, score } from "./text.js";

const LINES = 12; // those that changed most; more cannot be told apart
const MARKS_LISTED = 60;
const JUMP = 0.3; // of a reward, within a sixth of the chart: worth a sentence
const DONE = 0.9; // of a rise: where it ends
const SIXTH = 1 / 6;
const NEWS = { withdrawn: "", taken_back: " The weights from before it are back." }; // worth a sentence above everything
const NEWS_SECONDS = 3600;
// What happened: its sign, and what that means. What happens often stands on the axis, without a sign.
const KINDS = {
  came: ["▲", "peers came"],
  left: ["▽", "peers left"],
  withdrawn: ["◐", "learns less from a peer"],
  taken_back: ["↩", "averaging taken back"],
  loss: ["▼", "a task is being lost"],
  best: ["★", "best checkpoint"],
  adopted: ["⇓", "weights of peers taken over"],
  start: ["▸", "the node started"],
  restart: ["↻", "the learner started again"],
  paused: ["‖", "paused"],
  stopped: ["■", "the node stopped"],
  averaged: ["", "weights averaged"],
  rate: ["", "learning rate changed"],
  checkpoint: ["", "checkpoint"],
  gap: ["", "not training"],
};

/** The kinds of curves: title, which part of the history they are in, and which series. */
const CURVES = {
  mean: { title: "running mean", of: "rounds", name: "success", losses: "practice" },
  raw: { title: "each round", of: "rounds", name: "reward" },
  heldOut: { title: "held-out prompts", of: "evaluations", name: "reward", losses: "held-out" },
};

/** Draws the chart as `chosen` says, {curve, by}: a key of CURVES, and "time" or "step". `gains` are the API's, or null. */
export function drawSkills(history, chosen, gains) {
  const { lines: drawn, left, marks, moment, fallen, gaps } = skills(history, chosen.curve, chosen.by, gains);
  $("over-time").hidden = !history.rounds.time_seconds.length;
  document.querySelector("[data-curve=heldOut]").hidden = !history.evaluations.time_seconds.length;
  const label = `Reward by task, ${CURVES[chosen.curve].title}`;
  const moments = moment ? [moment, ...fallen] : fallen;
  draw($("chart-skills"), drawn, { max: 1, by: chosen.by, marks, moments, gaps, format: score, label });
  show($("moment"), ...(moment ? moment.said : []));
  showMarks(marks);
  const kinds = new Set([...marks.map(({ kind }) => kind), ...(gaps.length ? ["gap"] : [])]);
  show(
    $("signs"),
    ...Object.entries(KINDS)
      .filter(([kind]) => kinds.has(kind))
      .map(([kind, [sign, text]]) => element("span", {}, signed(kind, sign), ` ${text}`)),
    ...(left ? [element("span", {}, `${number(left)} tasks that changed less are not drawn`)] : []),
  );
}

/** Keeps `chosen` as the buttons of the chart say, and calls `redraw` for every other choice. */
export function onChoice(chosen, redraw) {
  const press = (button) => {
    for (const each of button.parentElement.children) each.setAttribute("aria-pressed", String(each === button));
  };
  for (const kind in chosen) press(document.querySelector(`[data-${kind}=${chosen[kind]}]`));
  document.addEventListener("click", ({ target }) => {
    const kind = Object.keys(chosen).find((each) => target.dataset?.[each]);
    if (!kind) return;
    chosen[kind] = target.dataset[kind];
    press(target);
    redraw();
  });
}

const signed = (kind, sign) => element("span", { class: `sign ${kind}`, "aria-hidden": "true" }, sign || (kind === "gap" ? "" : "|"));

/** Says what the newest marks tell that a person must know, in a paragraph; null where nothing of the last hour does. */
export function news(history) {
  const marks = history?.marks ?? [];
  const last = history?.rounds.time_seconds.at(-1) ?? 0;
  const mark = marks.findLast(({ kind, until_seconds: at }) => kind in NEWS && at > last - NEWS_SECONDS);
  return mark ? `${clock(mark.until_seconds)}: ${mark.text}.${NEWS[mark.kind]}` : null;
}

/** Returns {lines, marks, moment, fallen, gaps} for `draw`. */
function skills(history, curve, by, gains) {
  const { of, name, losses } = CURVES[curve];
  const timeline = history[of];
  const steps = timeline.series.find((series) => series.name === "round")?.values ?? [];
  const x = by === "step" ? steps : timeline.time_seconds;
  const keep = x.map((each) => each !== null && each !== undefined);
  const kept = (values) => values.filter((_, index) => keep[index]);
  const all = timeline.series
    .filter((series) => series.name === name && series.task !== null)
    .map((series) => ({ name: series.task, x: kept(x), values: kept(series.values) }));
  const lines = mostChanged(all);
  lines.sort((one, other) => (newest(other.values) ?? 0) - (newest(one.values) ?? 0));
  const moment = curve === "mean" ? jump(lines, history, by, gains) : null;
  const since = (loss) => (by === "step" ? loss.since_round : loss.since_seconds);
  const fallen = (gains?.losses ?? [])
    .filter(({ measured }) => measured === losses)
    .map((loss) => ({ line: loss.task, from: since(loss), to: Infinity, kind: "lost" }));
  return {
    lines,
    left: all.length - lines.length,
    marks: marks(history, lines[0]?.x ?? [], by),
    moment,
    fallen,
    gaps: by === "time" ? (timeline.gaps ?? []) : [],
  };
}

/** The other lines over time, such as bytes a second. */
export const lines = (timeline, wanted) =>
  timeline.series
    .filter((series) => wanted(series) && series.values.some((value) => value !== null))
    .map((series) => ({ name: label(series.name), x: timeline.time_seconds, values: series.values }));

const label = (name) =>
  name.replace(/_(bytes_per_second|memory_bytes|bytes|watts|per_second)$/, "").replaceAll("_", " ");

const present = (values) => values.filter((value) => value !== null && value !== undefined);
const newest = (values) => present(values).at(-1);

function mostChanged(all) {
  const span = ({ values }) => {
    const there = present(values);
    return there.length ? Math.max(...there) - Math.min(...there) : -1;
  };
  return [...all].sort((one, other) => span(other) - span(one)).slice(0, LINES);
}

/** Returns the marks as the chart takes them. What came before the first point stands at the chart's beginning. */
function marks(history, xs, by) {
  if (!xs.length) return [];
  return (history.marks ?? [])
    .map((mark) => ({
      kind: mark.kind,
      sign: KINDS[mark.kind]?.[0] ?? "•",
      text: `${clock(mark.time_seconds, { withSeconds: true })} ${mark.text}`,
      x: at(mark, by),
    }))
    .filter(({ x }) => x <= xs.at(-1))
    .map((mark) => ({ ...mark, x: Math.max(mark.x, xs[0]) }));
}

const at = (mark, by) => (by === "step" ? mark.round : mark.time_seconds);

/** Lists what the signs of the chart stand for, the newest first, to be read without a pointer. */
function showMarks(marks) {
  $("marks-of").hidden = marks.length === 0;
  const newestFirst = [...marks].reverse();
  const left = newestFirst.length - MARKS_LISTED;
  show(
    $("marks"),
    ...newestFirst
      .slice(0, MARKS_LISTED)
      .map(({ kind, sign, text }) => element("li", {}, signed(kind, sign), ` ${text}`)),
    ...(left > 0 ? [element("li", {}, `and ${number(left)} earlier ones`)] : []),
  );
}

/**
 * Finds the greatest rise of one line within a sixth of the chart, and says it in words with the last peers that came
 * meanwhile or up to a sixth before. A rise with which peers came is preferred. Null where no line rose by JUMP.
 */
function jump(lines, history, by, gains) {
  const found = [];
  const sixth = lines.length ? (lines[0].x.at(-1) - lines[0].x[0]) * SIXTH : 0;
  for (const { name, x, values } of lines) {
    let best = null;
    for (let from = 0, to = 0; to < x.length; to += 1) {
      while (x[to] - x[from] > sixth) from += 1;
      const low = lowest(values, from, to);
      const rise = low === null || values[to] === null ? 0 : values[to] - values[low];
      if (rise >= JUMP && rise > (best?.rise ?? 0)) best = { rise, low, to };
    }
    if (best) found.push(rising(name, x, values, best));
  }
  const withPeers = found.filter((each) => cameWith(each, history, by, sixth).length);
  const best = (withPeers.length ? withPeers : found).reduce((a, b) => (b.rise > (a?.rise ?? 0) ? b : a), null);
  return best && { ...best, ...said(best, history, by, sixth, gains) };
}

/** A rise ends where most of it is done, so that a peer that came later has no part in it. */
function rising(line, x, values, { rise, low, to }) {
  let end = low;
  while (end < to && !(values[end] !== null && values[end] >= values[low] + DONE * rise)) end += 1;
  return { line, rise, from: x[low], to: x[end], low: values[low], high: values[end] };
}

const cameWith = ({ from, to }, history, by, sixth) =>
  (history.marks ?? []).filter(
    (mark) => mark.kind === "came" && at(mark, by) <= to && at(mark, by) >= from - Math.max(sixth, to - from),
  );

function lowest(values, from, to) {
  let found = null;
  for (let index = from; index <= to; index += 1) {
    if (values[index] !== null && (found === null || values[index] < values[found])) found = index;
  }
  return found;
}

/** Returns {kind, said}: whose the rise is, as the bars have it, for its colour; and the sentence. */
function said(rise, history, by, sixth, gains) {
  const { line, low, high, from, to } = rise;
  const inWords = (span) => (by === "step" ? counted(Math.round(span), "round") : ago(span));
  const came = cameWith(rise, history, by, sixth);
  const when = (mark) => (at(mark, by) < from ? `${inWords(from - at(mark, by))} before` : "meanwhile");
  const told = came.length
    ? ` ${capital(
        came
          .slice(-2)
          .map((mark) => `${mark.text} ${when(mark)}`)
          .join("; "),
      )}.`
    : "";
  const gain = gains?.tasks.find(({ task }) => task === line);
  const kind = gain && gain.from_others > gain.from_itself ? "others" : "itself";
  const text = ` from ${score(low)} to ${score(high)} within ${inWords(to - from)}.${told}`;
  return { kind, said: [key(kind, `${line} rose`), text] };
}
