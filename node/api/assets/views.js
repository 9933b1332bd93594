// What the page shows, from what the API answered. Pure: data in, elements or numbers out.

import { ago, bar, element, nothing, number, percent, size, table } from "./dom.js";

export function title(status) {
  const swarm = status.swarm === null ? "" : `, swarm ${status.swarm.swarm}`;
  return [status.name || "starling", `${status.model}${swarm}, version ${status.version}`];
}

function tile(title, value, aside = null, kind = null) {
  const inside = [element("dt", {}, title), element("dd", { class: kind }, value)];
  if (aside !== null) inside.push(element("div", { class: "aside" }, aside));
  return element("dl", { class: "tile" }, ...inside);
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
  const wide = (title, text, kind) => {
    const made = tile(title, text, null, kind);
    made.classList.add("wide");
    tiles.push(made);
  };
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

const MS = 1000;

/** One row a peer. Names and models are what strangers say of themselves; `words` say what a reason means. */
export function peers(peers, words) {
  if (!peers.length) return nothing("No peer is known yet. Others join with the address that starling up prints.");
  const columns = [
    ["name", (peer) => peer.heartbeat?.name || `${peer.peer.slice(0, 6)}…${peer.peer.slice(-6)}`, ""],
    ["model", (peer) => peer.heartbeat?.model ?? "–", ""],
    ["family", (peer) => peer.heartbeat?.family.slice(0, 8) ?? "–", ""],
    ["round", (peer) => number(peer.heartbeat?.round), "number"],
    ["link", (peer) => element("span", { class: peer.connected ? "good" : null }, link(peer)), ""],
    ["taken", (peer) => `${peer.groups_used} of ${peer.groups_received}`, "number"],
    ["given", (peer) => number(peer.groups_given), "number"],
    ["not used, why", (peer) => reasons(peer, words), ""],
    ["reputation", (peer) => reputation(peer), "number"],
  ];
  return table(columns, peers, (peer) => (peer.connected ? null : "away"));
}

function link(peer) {
  if (peer.banned_because) return `banned: ${peer.banned_because}`;
  if (!peer.connected) return `away${peer.heartbeat_age_seconds === null ? "" : `, heard ${ago(peer.heartbeat_age_seconds)} ago`}`;
  return peer.round_trip_seconds === null ? "connected" : `${number(MS * peer.round_trip_seconds, 1)} ms`;
}

function reputation(peer) {
  const kind = peer.reputation < 0.3 ? "bad" : peer.reputation < 0.7 ? "warn" : null;
  return element("span", { class: kind }, number(peer.reputation, 2));
}

const USED = new Set(["used", "replayed"]);

/** The most frequent reasons for which groups of a peer were not used; in full when pointed at. */
function reasons(peer, words) {
  const counted = Object.entries(peer.outcomes).filter(([reason]) => !USED.has(reason));
  const most = counted.sort((one, other) => other[1] - one[1]).slice(0, 3);
  const told = most.map(([reason, count], index) => {
    const text = `${index ? ", " : ""}${number(count)} × ${reason.replaceAll("_", " ")}`;
    return element("span", { title: words[reason] ?? null }, text);
  });
  return element("span", {}, ...told);
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
