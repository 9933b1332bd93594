// What the page shows, from what the API answered. Pure: data in, descriptions of elements or numbers out.

import { bar, element, nothing, table } from "./dom.js";
import { ago, number, percent, size } from "./text.js";

export function title(status) {
  const swarm = status.swarm === null ? "" : `, swarm ${status.swarm.swarm}`;
  return [status.name || "starling", `${status.model}${swarm}, version ${status.version}`];
}

function tile(title, value, aside = null, kind = null, width = "tile") {
  const below = aside === null ? null : element("div", { class: "aside" }, aside);
  return element("dl", { class: width }, element("dt", {}, title), element("dd", { class: kind }, value), below);
}

/** This node, as tiles. What is not known yet is a dash. */
export function now(status) {
  const { round, swarm, checkpoint, averaged, fault } = status;
  const clock = Date.now() / 1000;
  const kind = { training: "good", starting: null, recovering: "bad", stopping: "warn" }[status.state];
  const tiles = [
    tile("State", status.state, `up ${ago(status.uptime_seconds)}`, kind),
    tile("Round", number(round?.round), round ? `${number(round.seconds, 1)} s a round` : status.loading?.what ?? null),
    tile("Reward", number(round?.reward, 3), "mean of the last round"),
    tile("Generated", number(round?.tokens_per_second), `tokens/s, ${number(round?.tokens_generated_total)} in all`),
    tile("Learnt from", number(trained(round)), "tokens/s"),
    tile("Peers", number(swarm?.connected_peers), swarm ? `${number(round?.foreign_groups_used_total ?? 0)} groups taken` : null),
    tile("Effective sample", percent(round?.effective_sample_share), "share of the batch"),
    tile("Staleness", number(round?.staleness_mean, 1), "versions behind, mean"),
    tile("Memory", size(memory(status.usage)), "of all its processes"),
    tile("Traffic", `${size(swarm?.received_bytes)} in`, `${size(swarm?.sent_bytes)} out`),
    tile("Checkpoint", checkpoint ? `round ${checkpoint.round}` : "none yet", checkpoint ? `${ago(clock - checkpoint.time_seconds)} ago` : null),
    tile("Averaged", averaged ? `${averaged.outer_steps} times` : "never", averaged ? `${percent(averaged.distance)} apart, ${ago(clock - averaged.time_seconds)} ago` : null),
  ];
  const wide = (title, text, kind) => tiles.push(tile(title, text, null, kind, "tile wide"));
  if (status.waiting_for) wide("Now", status.waiting_for, null);
  if (swarm?.alone_because) wide("Alone", swarm.alone_because, "warn");
  if (fault) wide("Last fault", `round ${fault.round}: ${fault.kind}: ${fault.detail}`, fault.fatal ? "bad" : "warn");
  return tiles;
}

const trained = (round) => (round ? round.tokens_trained / Math.max(round.seconds, 1e-9) : null);

const memory = (usage) =>
  usage ? (usage.supervisor_bytes ?? 0) + (usage.learner_bytes ?? 0) + (usage.swarm_bytes ?? 0) : null;

export function notes(status) {
  const said = status.notes.length ? [...status.notes].reverse() : ["Nothing to tell."];
  return said.map((note) => element("li", {}, note));
}

function card(title, ...inside) {
  return element("div", { class: "card" }, element("h3", {}, title), ...inside);
}

const counts = (by) => Object.entries(by).map(([name, count]) => `${name || "unknown"} ${number(count)}`).join(", ") || "–";

/** The swarm as far as heartbeats tell. */
export function swarm(told) {
  const models = table(
    [
      ["model", (model) => (model.ours ? `${model.model} (ours)` : model.model), ""],
      ["family", (model) => model.family.slice(0, 8), ""],
      ["nodes", (model) => number(model.nodes), "number"],
      ["tokens/s", (model) => number(model.tokens_per_second), "number"],
      ["round", (model) => number(model.round_most), "number"],
      ["success", (model) => (model.success === null ? "–" : bar(model.success)), ""],
    ],
    told.models,
  );
  const tasks = table(
    [
      ["task", (task) => task.task, ""],
      ["nodes", (task) => number(task.nodes), "number"],
      ["success", (task) => bar(task.success), ""],
      ["from – to", (task) => `${percent(task.success_least)} – ${percent(task.success_most)}`, "number"],
      ["best", (task) => task.best_name || task.best_model, ""],
    ],
    told.tasks,
  );
  const more = (left) => (left ? element("p", { class: "aside" }, `and ${number(left)} more`) : null);
  return [
    element(
      "div",
      { class: "columns" },
      card("Models", models, more(told.models_left_out)),
      card("Tasks", tasks, more(told.tasks_left_out)),
      card("Versions", counts(told.software)),
      card("What they are doing", counts(told.phases)),
    ),
  ];
}

export const swarmCount = (told) =>
  `${number(told.nodes)} nodes, ${number(told.tokens_per_second)} tokens/s, ${number(told.groups_shared)} groups shared`;

const GROUPS_SHOWN = 12;

/** What became of rollouts, ours and others', and why what was not used was not. */
export function rollouts(told) {
  const last = told.rounds.at(-1);
  if (last === undefined) return [nothing("No round is done yet.")];
  const sum = (of) => told.rounds.reduce((total, round) => total + of(round), 0);
  const flow = table(
    [
      ["", (row) => row[0], ""],
      ["last round", (row) => number(row[1](last)), "number"],
      [`last ${told.rounds.length} rounds`, (row) => number(sum(row[1])), "number"],
    ],
    [
      ["own groups generated", (round) => round.generated],
      ["of them informative", (round) => round.informative],
      ["shared with others", (round) => round.shared],
      ["fetched from others", (round) => round.fetched],
      ["used for the first time", (round) => round.used],
      ["used again", (round) => round.replayed],
    ],
  );
  const why = (rows, none) =>
    rows.length === 0
      ? element("p", { class: "aside" }, none)
      : table([["why", (row) => row.because, ""], ["times", (row) => number(row.count), "number"]], rows);
  const seen = [...told.groups].reverse().slice(0, GROUPS_SHOWN);
  const groups = table(
    [
      ["from", (group) => group.name || `${group.peer.slice(0, 6)}…`, ""],
      ["task", (group) => group.task, ""],
      ["reward", (group) => `${number(group.reward_mean, 2)} ± ${number(group.reward_spread, 2)}`, "number"],
      ["outcome", (group) => element("span", { title: group.detail }, group.because), ""],
    ],
    seen,
  );
  return [
    element(
      "div",
      { class: "columns" },
      card("Flow", flow),
      card("Why groups of others were not used", why(told.not_used, "All that came were used.")),
      card("Announcements not taken", why(told.announcements_not_taken, "None.")),
      card("Groups of others, newest first", seen.length ? groups : element("p", { class: "aside" }, "None was seen yet.")),
    ),
  ];
}

const lines = (timeline, wanted) =>
  timeline.series.filter(wanted).map((series) => ({
    name: series.task ?? series.name.replaceAll("_", " "),
    seconds: timeline.time_seconds,
    values: series.values,
  }));

/** The charts' lines. */
export const history = {
  success: ({ rounds }) => lines(rounds, (series) => series.name === "success" && series.task !== null),
  tokens: ({ rounds }) => lines(rounds, (series) => series.unit === "tokens/s"),
};
