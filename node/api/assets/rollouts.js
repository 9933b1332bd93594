// What this node did with rollout groups, its own and those of peers, and why some were not used. Pure functions.

import { card, element, nothing, table } from "./dom.js";
import { number, score } from "./text.js";

const GROUPS_SHOWN = 12;

export function rollouts(answer) {
  const last = answer.rounds.at(-1);
  if (last === undefined) return [nothing("No round is done yet.")];
  const sum = (of) => answer.rounds.reduce((total, round) => total + of(round), 0);
  const flow = table(
    [
      ["groups", (row) => row[0], ""],
      ["last round", (row) => number(row[1](last)), "number"],
      [`last ${answer.rounds.length} rounds`, (row) => number(sum(row[1])), "number"],
    ],
    [
      ["own groups generated", (round) => round.generated],
      ["informative ones among them", (round) => round.informative],
      ["offered to peers", (round) => round.offered],
      ["fetched from peers", (round) => round.fetched],
      ["used for the first time", (round) => round.used],
      ["used again", (round) => round.replayed],
    ],
  );
  const why = (rows, none) =>
    rows.length === 0
      ? element("p", { class: "aside" }, none)
      : table(
          [
            ["why", (row) => row.because, ""],
            ["times", (row) => number(row.count), "number"],
          ],
          rows,
        );
  const nothingUnused = sum((round) => round.fetched)
    ? "Every group fetched from peers was used."
    : "No group of a peer was fetched.";
  const seen = [...answer.groups].reverse().slice(0, GROUPS_SHOWN);
  const groups = table(
    [
      ["from", (group) => group.name || `${group.peer.slice(0, 6)}…`, ""],
      ["task", (group) => group.task, ""],
      ["reward", (group) => `${score(group.reward_mean)} ± ${score(group.reward_spread)}`, "number"],
      ["outcome", (group) => element("span", { title: group.detail }, group.because), ""],
    ],
    seen,
  );
  return [
    element(
      "div",
      { class: "columns" },
      card("Flow", flow),
      card(
        "Groups of peers, newest first",
        seen.length ? groups : element("p", { class: "aside" }, "None fetched yet."),
      ),
      card("Why groups of peers were not used", why(answer.not_used, nothingUnused)),
      card("Why announcements were rejected", why(answer.announcements_not_taken, "No announcement was rejected.")),
    ),
  ];
}
