// What this node can do, what it could before it learnt from others, what it has from whom, and what it lost: sentences
// and a picture. Pure functions of the gains that the API computes; all values are mean rewards from 0 to 1.

import { element, table } from "./dom.js";
import { capital, change, counted, listed, number, score } from "./text.js";

const ROWS = 10; // tasks in the picture; the others follow behind a click
const LEAST = 0.005; // a smaller change is none in two digits
const TASKS_OF_PEER = 2; // named beside a peer in the table
const TASKS_NAMED = 3; // in a sentence
const WORTH = 0.1; // gained on one task from one peer: worth a word in the sentence

/**
 * Describes the sentences above the picture. `gains` is the API's answer, or null; `news` is what else a person
 * must know.
 */
export function headline(name, gains, doing, { isOver = false, isPaused = false, news = null } = {}) {
  if (!gains || gains.mean_now === null) {
    const state = isOver ? "ended before its first result" : isPaused ? "is paused before its first result" : "is starting";
    return [
      element("p", { class: "headline" }, `${name} ${state}.`),
      element("p", { class: "lead" }, doing ? `${capital(doing)}.` : "Its first round follows."),
    ];
  }
  const { mean_now: now, change: by } = gains;
  const isAlone = gains.others_since_round === null;
  const before = score(isAlone ? gains.mean_first : gains.mean_before);
  const moved = by === null ? "stands at" : `${by > 0 ? "rose" : "fell"} from ${before} to`;
  return [
    element(
      "p",
      { class: "headline" },
      `${name} ${moved} `,
      element("strong", { class: by === null ? null : isAlone ? "itself" : "others" }, score(now)),
      `${isAlone ? " by itself" : " with others"}${isPaused ? ", and is paused" : ""}.`,
    ),
    news === null ? null : element("p", { class: "lead news" }, news),
    element("p", { class: "lead" }, ...sources(gains)),
    element("p", { class: "lead" }, ...losses(gains)),
  ].filter((part) => part !== null);
}

/** Where the gain came from. The colours are those of the picture, so the sentence is its legend too. */
function sources(gains) {
  const { others_since_round: since, mean_first, mean_now, from_others, from_itself, not_attributed, tasks } = gains;
  const over = ` Mean reward over ${counted(tasks.length, "task")}, from 0 to 1.`;
  if (gains.change === null) {
    const beyond = tasks.filter((task) => task.change !== null).map((task) => `${task.task} ${change(task.change)}`);
    const but = beyond.length ? ` but for ${listed(beyond, TASKS_NAMED)}` : "";
    return [`The change${since === null ? "" : ` since round ${number(since)}`} may be chance${but}.${over}`];
  }
  if (since === null)
    return [key("itself", change(mean_now - mean_first)), ` it learnt by itself, and nothing from others yet.${over}`];
  const named = gains.peers
    .filter(({ gain }) => gain >= LEAST)
    .map((peer) => `${peer.name ?? "other peers"}${mainly(peer)}`);
  const unknown =
    Math.abs(not_attributed) < LEAST
      ? []
      : [", ", key("unknown", change(not_attributed)), " is not attributed to anybody"];
  return [
    ...part("others", from_others, tasks, ` it has from ${named.length ? listed(named) : "others"}`, "What it has from others"),
    ", ",
    ...part("itself", from_itself, tasks, " it learnt by itself", "what it learnt by itself"),
    ...unknown,
    `, since round ${number(since)}, when it first learnt from others.${over}`,
  ];
}

/** One source in the sentence. Where its gains and losses weigh the same, a sign before zero would say nothing. */
function part(kind, gain, tasks, said, what) {
  if (Math.abs(gain) >= LEAST) return [key(kind, change(gain)), said];
  const moved = tasks.some((task) => task.change !== null && Math.abs(task[`from_${kind}`]) >= LEAST);
  return moved ? [`${what} and what it lost weigh the same`] : [key(kind, kind === "others" ? "Nothing" : "nothing"), said];
}

/** The task on which this node gained most from a peer, where that is most of it. */
function mainly({ by_task: byTask }) {
  const [most] = Object.entries(byTask).sort((one, other) => other[1] - one[1]);
  return most && most[1] >= WORTH ? ` (${most[0]} ${change(most[1])})` : "";
}

export const key = (kind, text) => element("span", { class: `key ${kind}` }, text);

/** What fell. The numbers beside the bars are of the same computation: the two never contradict each other. */
function losses({ losses: lost, tasks }) {
  if (!lost.length) {
    const fallen = tasks.filter(({ change: by }) => by < 0).map(({ task }) => task);
    return fallen.length
      ? [key("lost", "Lower than before"), `: ${listed(fallen)}.`]
      : ["It has forgotten nothing that it could do."];
  }
  const greedy = ({ measured }) => (measured === "held-out" ? " (greedy answers)" : "");
  const named = lost
    .slice(0, 2)
    .map((loss) => `${loss.task}${greedy(loss)} fell from ${score(loss.best)} to ${score(loss.now)}`);
  const left = lost.length - named.length;
  return [key("lost", "Lost"), `: ${named.join("; ")}${left > 0 ? `; ${counted(left, "other task")} fell too` : ""}.`];
}

/** Describes a bar for each task: what it could alone, what was added by itself and by others, what was lost again. */
export function picture(gains) {
  if (!gains || !gains.tasks.length) return [];
  const sorted = gains.tasks
    .filter(({ now }) => now !== null)
    .sort((one, other) => other.now - one.now || (one.task < other.task ? -1 : 1));
  const sampled = gains.losses.filter(({ measured }) => measured === "practice"); // as the bars are
  const best = new Map(sampled.map((loss) => [loss.task, loss.best])); // a smaller fall than a loss is noise
  const isAlone = gains.others_since_round === null; // then all of the change is its own, since it began
  const own = ({ first, now }) =>
    isAlone ? { before: first, from_itself: now - first, from_others: 0, not_attributed: 0 } : {};
  const withBest = (task) => ({ ...task, ...own(task), best: best.get(task.task) ?? task.now });
  const rows = (tasks) => element("ul", { class: "skills" }, ...tasks.map(withBest).map(row));
  const rest = sorted.slice(ROWS);
  return [
    rows(sorted.slice(0, ROWS)),
    scale(),
    rest.length
      ? element("details", { class: "plain" }, element("summary", {}, counted(rest.length, "more task")), rows(rest))
      : null,
    legend(sorted.map(withBest), isAlone),
  ].filter((part) => part !== null);
}

/**
 * Returns the parts of a bar as [kind, from, width]; `best` is what was lost, or else what is now. Losses within the
 * gain make its parts narrower in proportion. A gain that may be chance (`by` is null) is drawn as none.
 */
export function parts({ before, now, best, from_itself, from_others, not_attributed, change: by }) {
  const start = Math.min(before ?? 0, now);
  const gained = [
    ["itself", from_itself],
    ["others", from_others],
    ["unknown", not_attributed],
  ].map(([kind, gain]) => [kind, by === null ? 0 : Math.max(0, gain)]);
  const sum = gained.reduce((total, [, gain]) => total + gain, 0);
  const drawn = [["alone", 0, start]];
  let at = start;
  for (const [kind, gain] of gained) {
    const width = sum > 0 ? ((now - start) * gain) / sum : 0;
    drawn.push([kind, at, width]);
    at += width;
  }
  if (sum === 0) drawn[0] = ["alone", 0, now];
  drawn.push(["lost", now, Math.max(0, best - now) >= LEAST ? best - now : 0]);
  return drawn;
}

function row(task) {
  const { before, now, best, from_others, from_itself, change: by, turns } = task;
  const from = task.peers.filter(({ gain }) => gain >= LEAST).map(({ name }) => name ?? "other peers");
  const lost = best - now >= LEAST ? `, ${score(best - now)} below its best` : "";
  const whose = from.length ? ` with ${listed(from)}` : " with others";
  const moved = by === null ? "the change may be chance" : `${change(from_itself)} by itself, ${change(from_others)}${whose}`;
  const said = `: ${score(before)} before others, ${moved}${lost}; now`;
  return element(
    "li",
    { title: said.slice(2, -5) + (turns ? `. Conversations: ${turns}` : "") },
    element("span", { class: "task" }, task.task),
    element("span", { class: "said" }, said),
    element(
      "svg",
      { class: "skill", width: "100%", height: 16, "aria-hidden": "true" },
      ...parts(task).map(rect),
      tip(now),
    ),
    element("b", {}, score(now)),
    element(
      "span",
      { class: by < 0 ? "delta bad" : "delta", title: by === null ? "the change may be chance" : "" },
      by === null ? "≈" : change(by),
    ),
  );
}

const share = (value) => `${(100 * Math.max(0, Math.min(1, value))).toFixed(1)}%`;

const rect = ([kind, from, width]) =>
  element("rect", { class: kind, x: share(from), y: 2, width: share(width), height: 12 });

const tip = (at) => element("rect", { class: "tip", x: share(Math.min(at, 0.995)), y: 0, width: 2, height: 16 });

const scale = () =>
  element(
    "p",
    { class: "scale", "aria-hidden": "true" },
    ...["0", "mean reward", "1"].map((text) => element("span", {}, text)),
  );

const KINDS = {
  alone: "before others",
  itself: "learnt by itself",
  others: "learnt with answers of others",
  unknown: "not attributed",
  lost: "lost again",
};

function legend(tasks, isAlone) {
  const there = new Set(
    tasks
      .flatMap(parts)
      .filter(([, , width]) => width >= LEAST)
      .map(([kind]) => kind),
  );
  const shown = Object.keys(KINDS).filter((kind) => there.has(kind));
  return element(
    "p",
    { class: "keys", "aria-hidden": "true" },
    ...shown.map((kind) =>
      element("span", {}, sample(kind), ` ${kind === "alone" && isAlone ? "when it began" : KINDS[kind]}`),
    ),
  );
}

const sample = (kind) =>
  element("svg", { class: "skill", width: 12, height: 12 }, element("rect", { class: kind, width: 12, height: 12 }));

/** Describes how the gains are computed, by task and by peer. */
export function accounts(gains) {
  if (!gains || gains.mean_now === null) return [];
  const byTask = table(
    [
      ["task", (task) => task.task, ""],
      ["first", (task) => score(task.first), "number"],
      ["before others", (task) => score(task.before), "number"],
      ["by itself", (task) => beyondChance(task, task.from_itself), "number"],
      ["with others", (task) => beyondChance(task, task.from_others), "number"],
      ["not attributed", (task) => beyondChance(task, task.not_attributed), "number"],
      ["now", (task) => score(task.now), "number"],
      ["best", (task) => score(task.best), "number"],
    ],
    gains.tasks,
  );
  const byPeer = table(
    [
      ["from", (peer) => peer.name ?? peer.peer, ""],
      ["gain", (peer) => change(peer.gain), "number"],
      ["groups", (peer) => number(peer.groups), "number"],
      ["most of it on", (peer) => mostOf(peer.by_task), ""],
    ],
    gains.peers,
  );
  const paragraph = (text) => (text ? element("p", {}, text) : null);
  return [
    paragraph(gains.sentence),
    paragraph(gains.how),
    paragraph(gains.limits),
    gains.error > 0
      ? paragraph(`The whole change has an error of ±${number(gains.error, 3)} by chance (one standard deviation).`)
      : null,
    element("div", { class: "scrolled" }, byTask),
    gains.peers.length ? element("div", { class: "scrolled" }, byPeer) : null,
    ...gains.losses.map(({ sentence }) => element("p", { class: "bad" }, sentence)),
  ].filter((part) => part !== null);
}

/** A part of a task's change; without a sign where the whole of it may be chance. */
const beyondChance = (task, part) => (task.change === null ? "≈" : change(part));

function mostOf(byTask) {
  const most = Object.entries(byTask)
    .sort((one, other) => other[1] - one[1])
    .filter(([, gain]) => gain >= LEAST);
  return (
    listed(
      most.map(([task, gain]) => `${task} ${change(gain)}`),
      TASKS_OF_PEER,
    ) || "–"
  );
}
