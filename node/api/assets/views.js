// Pure functions from the API's answers to what the page shows: descriptions of elements, or numbers for charts.

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

/** Describes this node as tiles. A value that is not known yet is a dash. */
export function now(status) {
  const { round, swarm, checkpoint, evaluated, averaged, fault } = status;
  const clock = Date.now() / 1000;
  const kind = { training: "good", starting: null, recovering: "bad", stopping: "warn" }[status.state];
  const tiles = [
    tile("State", status.state, `up ${ago(status.uptime_seconds)}`, kind),
    tile("Round", number(round?.round), round ? `${number(round.seconds, 1)} s a round` : status.loading?.what ?? null),
    tile("Reward", number(round?.reward, 3), "mean of the last round"),
    tile("Generated", number(round?.tokens_per_second), `tokens/s, ${number(round?.tokens_generated_total)} in total`),
    tile("Trained on", number(trained(round)), "tokens/s"),
    tile("Peers", number(swarm?.connected_peers), swarm ? `${number(round?.foreign_groups_used_total ?? 0)} groups used` : null),
    tile("Effective sample", percent(round?.effective_sample_share), "share of the batch"),
    tile("Staleness", number(round?.staleness_mean, 1), "versions behind, mean"),
    tile("Memory", size(memory(status.usage)), "of all processes"),
    tile("Traffic", `${size(swarm?.received_bytes)} in`, `${size(swarm?.sent_bytes)} out`),
    tile("Checkpoint", checkpoint ? `round ${checkpoint.round}` : "none yet", checkpoint ? `${ago(clock - checkpoint.time_seconds)} ago` : null),
    ...(evaluated ? [tile("Held-out reward", number(evaluated.reward, 3), `round ${evaluated.round}; best ${number(evaluated.best_reward, 3)} at ${evaluated.best_round}`)] : []),
    tile("Averaged", averaged ? times(averaged.outer_steps) : "never", averaged ? `${percent(averaged.distance)} apart, ${ago(clock - averaged.time_seconds)} ago` : null),
  ];
  const wide = (title, text, kind) => tiles.push(tile(title, text, null, kind, "tile wide"));
  if (status.waiting_for) wide("Now", status.waiting_for, null);
  if (swarm?.alone_because) wide("Alone", swarm.alone_because, "warn");
  if (status.not_saved) {
    const { round: done, saved_round: saved, because } = status.not_saved;
    wide("Not saved", `rounds ${saved + 1} to ${done} are in memory alone: ${because}`, "bad");
  }
  if (status.damaged) {
    const { damaged, continues_from: from } = status.damaged;
    const names = damaged.map((each) => each.name).join(", ");
    wide("Damaged", `${names}, kept aside; ${from === null ? "no checkpoint was left" : `the run went on from round ${from}`}`, "bad");
  }
  if (status.clock) wide("Clock", status.clock, "bad");
  if (fault) wide("Last fault", `round ${fault.round}: ${fault.kind}: ${fault.detail}`, fault.fatal ? "bad" : "warn");
  return tiles;
}

const times = (count) => (count === 1 ? "once" : `${number(count)} times`);

const trained = (round) => (round ? round.tokens_trained / Math.max(round.seconds, 1e-9) : null);

const memory = (usage) =>
  usage ? (usage.supervisor_bytes ?? 0) + (usage.learner_bytes ?? 0) + (usage.swarm_bytes ?? 0) : null;

export function notes(status) {
  const newestFirst = status.notes.length ? [...status.notes].reverse() : ["No notes yet."];
  return newestFirst.map((note) => element("li", {}, note));
}

function card(title, ...inside) {
  return element("div", { class: "card" }, element("h3", {}, title), ...inside);
}

const counts = (by) => Object.entries(by).map(([name, count]) => `${name || "unknown"} ${number(count)}`).join(", ") || "–";

/** Describes the swarm as its heartbeats report it. */
export function swarm(answer) {
  const models = table(
    [
      ["model", (model) => (model.ours ? `${model.model} (ours)` : model.model), ""],
      ["family", (model) => model.family.slice(0, 8), ""],
      ["nodes", (model) => number(model.nodes), "number"],
      ["tokens/s", (model) => number(model.tokens_per_second), "number"],
      ["round", (model) => number(model.round_most), "number"],
      ["success", (model) => (model.success === null ? "–" : bar(model.success)), ""],
    ],
    answer.models,
  );
  const tasks = table(
    [
      ["task", (task) => task.task, ""],
      ["nodes", (task) => number(task.nodes), "number"],
      ["success", (task) => bar(task.success), ""],
      ["lowest – highest", (task) => `${percent(task.success_least)} – ${percent(task.success_most)}`, "number"],
      ["best", (task) => task.best_name || task.best_model, ""],
    ],
    answer.tasks,
  );
  const more = (left) => (left ? element("p", { class: "aside" }, `and ${number(left)} more`) : null);
  return [
    element(
      "div",
      { class: "columns" },
      card("Models", models, more(answer.models_left_out)),
      card("Tasks", tasks, more(answer.tasks_left_out)),
      card("Versions", counts(answer.software)),
      card("Phases", counts(answer.phases)),
    ),
  ];
}

export const swarmCount = (answer) =>
  `${number(answer.nodes)} nodes, ${number(answer.tokens_per_second)} tokens/s, ${number(answer.groups_shared)} groups shared`;

const GROUPS_SHOWN = 12;

/** Describes the outcomes of own and foreign rollouts, and why some were not used. */
export function rollouts(answer) {
  const last = answer.rounds.at(-1);
  if (last === undefined) return [nothing("No round is done yet.")];
  const sum = (of) => answer.rounds.reduce((total, round) => total + of(round), 0);
  const flow = table(
    [
      ["", (row) => row[0], ""],
      ["last round", (row) => number(row[1](last)), "number"],
      [`last ${answer.rounds.length} rounds`, (row) => number(sum(row[1])), "number"],
    ],
    [
      ["own groups generated", (round) => round.generated],
      ["informative ones among them", (round) => round.informative],
      ["shared with peers", (round) => round.shared],
      ["fetched from peers", (round) => round.fetched],
      ["used for the first time", (round) => round.used],
      ["used again", (round) => round.replayed],
    ],
  );
  const why = (rows, none) =>
    rows.length === 0
      ? element("p", { class: "aside" }, none)
      : table([["why", (row) => row.because, ""], ["times", (row) => number(row.count), "number"]], rows);
  const seen = [...answer.groups].reverse().slice(0, GROUPS_SHOWN);
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
      card("Why groups of peers were not used", why(answer.not_used, "All groups received were used.")),
      card("Why announcements were rejected", why(answer.announcements_not_taken, "No announcement was rejected.")),
      card("Groups of peers, newest first", seen.length ? groups : element("p", { class: "aside" }, "None received yet.")),
    ),
  ];
}

const lines = (timeline, wanted) =>
  timeline.series.filter(wanted).map((series) => ({
    name: series.task ?? series.name.replaceAll("_", " "),
    seconds: timeline.time_seconds,
    values: series.values,
  }));

/** The lines of each chart. */
export const history = {
  success: ({ rounds }) => lines(rounds, (series) => series.name === "success" && series.task !== null),
  heldOut: ({ evaluations }) => lines(evaluations, (series) => series.unit === "reward"),
  tokens: ({ rounds }) => lines(rounds, (series) => series.unit === "tokens/s"),
};
