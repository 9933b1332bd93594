// Pure functions from the API's answers to what stands behind the page's clicks, and to the small parts around the
// pictures: descriptions of elements.

import { bar, card, element, table } from "./dom.js";
import { ago, capital, clock, counted, number, percent, score, size } from "./text.js";

export function title(status) {
  const swarm =
    status.swarm === null ? "" : ` in ${status.swarm.private ? "the private cluster" : "swarm"} ${status.swarm.swarm}`;
  return [status.name || "starling", `${status.model}${swarm}`];
}

/** What the node does now, in words; after its end, when it was last seen. */
export function doing(status, { live, seen_seconds }) {
  if (!live)
    return status.state === "stopping"
      ? `It ended at ${clock(seen_seconds)}. This is its last state.`
      : `It has not answered since ${clock(seen_seconds)}.`;
  const { round, uptime_seconds: up, paused } = status;
  if (paused)
    return `Paused since ${clock(paused.since)}${paused.because ? `: ${paused.because}` : ""}${paused.until ? `, until ${clock(paused.until)}` : ""}.`;
  const rate = round ? `, ${number(round.tokens_per_second)} tokens a second` : "";
  return `${capital(status.waiting_for || status.state)}. Up ${ago(up)}${rate}.`;
}

/** Describes what happens until the first result is there, in the order in which it does; what is done is marked. */
export function soon({ ready, round }) {
  const at = round ? 2 : ready ? 1 : 0;
  const steps = [
    ["The model is loaded"],
    ["It answers its first questions, and the answers are scored"],
    ["The first result stands here", "about a minute after the start with a built-in model, later with a large one"],
  ];
  return [
    element(
      "ol",
      { class: "soon" },
      ...steps.map(([text, aside], index) =>
        element(
          "li",
          { class: index < at ? "done" : index === at ? "now" : null, "aria-current": index === at ? "step" : null },
          text,
          aside ? element("span", { class: "aside" }, aside) : null,
        ),
      ),
    ),
  ];
}

/** Describes what the owner must know at once: it stands above everything else. */
export function alarms({ not_saved: unsaved, damaged, clock: wrong, hangs, nothing_learnt: idle, reward_falls: falls }) {
  const said = [];
  if (unsaved) {
    said.push(
      `Not saved: rounds ${unsaved.saved_round + 1} to ${unsaved.round} are in memory alone: ${unsaved.because}`,
    );
  }
  if (damaged) {
    const from = damaged.continues_from;
    const then = from === null ? "no checkpoint was left" : `the run went on from round ${number(from)}`;
    said.push(`Damaged: ${damaged.damaged.map(({ name }) => name).join(", ")}, kept aside; ${then}`);
  }
  if (idle) said.push(capital(idle));
  if (falls) said.push(capital(falls));
  if (hangs) said.push(`Hangs: ${hangs}`);
  if (wrong) said.push(`Clock: ${wrong}`);
  return said.map((text) => element("p", { class: "bad" }, text));
}

const row = (title, value, aside = "", kind = null) => ({ title, value, aside, kind });

/** Describes all figures of this node, grouped. A value that is not known yet is a dash. */
export function figures(status) {
  const { round, swarm, checkpoint, evaluated, averaged, usage, engine, donors, stages } = status;
  const now = Date.now() / 1000;
  const device = usage?.device ?? null;
  const groups = {
    Node: [
      row(
        "state",
        status.state,
        `up ${ago(status.uptime_seconds)}`,
        { recovering: "bad", stopping: "warn" }[status.state],
      ),
      row("doing", status.waiting_for || "–"),
      row("round", number(round?.round), round ? `${number(round.seconds, 1)} s each` : (status.loading?.what ?? "")),
      row(
        "checkpoint",
        checkpoint ? `round ${number(checkpoint.round)}` : "none yet",
        checkpoint ? `${ago(now - checkpoint.time_seconds)} ago, ${size(checkpoint.size_bytes)}` : "",
      ),
    ],
    Learning: [
      row("reward", score(round?.reward), "mean of the last round"),
      row(
        "held-out reward",
        score(evaluated?.reward),
        evaluated
          ? `round ${number(evaluated.round)}; best ${score(evaluated.best_reward)} at ${number(evaluated.best_round)}`
          : "not measured",
      ),
      row(
        "generated",
        `${number(round?.tokens_per_second)} tokens/s`,
        `${number(round?.tokens_generated_total)} in all`,
      ),
      row("trained on", `${number(trained(round))} tokens/s`),
      row(
        "learning rate",
        round?.learning_rate?.toExponential(1) ?? "–",
        round?.found_rate ? `since round ${number(round.found_rate.since_round)}: ${round.found_rate.because}` : "",
      ),
      row("effective sample", percent(round?.effective_sample_share), "of the batch"),
      row("staleness", number(round?.staleness_mean, 1), "versions behind, mean"),
    ],
    Others: [
      row("peers", number(swarm?.connected_peers), "connected"),
      row("groups learnt from", number(round?.foreign_groups_used_total), "of peers"),
      row("groups offered", number(round?.groups_offered_total)),
      row(
        "weights averaged",
        averaged ? times(averaged.outer_steps) : "never",
        averaged ? `${ago(now - averaged.time_seconds)} ago, ${number(100 * averaged.distance, 2)} % apart` : "",
      ),
      row("traffic", `${size(swarm?.received_bytes)} in`, `${size(swarm?.sent_bytes)} out`),
    ],
    Machine: [
      row(
        "memory",
        size(memory(usage)),
        usage
          ? `learner ${size(usage.learner_bytes)}, swarm ${size(usage.swarm_bytes)}, supervisor ${size(usage.supervisor_bytes)}`
          : "",
      ),
      row("blob store", size(swarm?.store_bytes), "on disk"),
      ...(device ? gpu(device) : [row("device", status.ready?.device ?? "–", status.ready?.dtype ?? "")]),
      ...(engine ? [row("engine", engine.backend, ...engineState(engine))] : []),
    ],
    ...(stages?.own_layers ? { Layers: [row("this machine", layersText(0, stages.own_layers), stages.waits), ...stages.stages.map(stageRow), ...stages.away.map(awayRow)] } : {}),
    ...(donors?.donors.length ? { Donors: donors.donors.map((donor) => donorRow(donor, donors.groups)) } : {}),
  };
  const lists = Object.entries(groups).map(([name, rows]) =>
    element("div", { class: "group" }, element("h3", {}, name), list(rows)),
  );
  return [element("div", { class: "groups" }, ...lists)];
}

const list = (rows) =>
  element(
    "dl",
    {},
    ...rows.map(({ title, value, aside, kind }) =>
      element(
        "div",
        {},
        element("dt", {}, title),
        element(
          "dd",
          {},
          element("b", { class: kind }, value),
          aside ? element("span", { class: "aside" }, ` ${aside}`) : null,
        ),
      ),
    ),
  );

function engineState({ backend, configured, running, losses }) {
  if (backend !== configured) return [`instead of ${configured}`, "warn"];
  if (!running) return ["is started again", "warn"];
  return [losses ? `lost ${times(losses)}` : ""];
}

function donorRow({ name, peer, state, groups, groups_done: done, share, tokens_per_second: rate, because }, launched) {
  const title = name || peer.slice(-8);
  if (state !== "generated") return row(title, state, because, { lost: "warn", dropped: "bad" }[state]);
  const late = done === groups ? "" : `, ${number(done)} in time`;
  return row(title, `${number(groups)} of ${number(launched)} groups`, `${percent(share)} of tokens, ${number(rate)} tokens/s${late}`);
}

const layersText = (first, last) => `${number(first + 1)} to ${number(last)}`;

function stageRow({ name, peer, first, last, sent_bytes: sent, received_bytes: received, computed_tokens: tokens, computed_seconds: seconds, because, checked_seconds: checked, off }) {
  if (!peer) return row("nobody", layersText(first, last), because, "warn");
  const rate = seconds ? `${number(tokens / seconds)} tokens/s, ` : "";
  const check = checked ? `checked at ${clock(checked)}, ${percent(off)} of what may be rounding` : "not checked";
  return row(name || peer.slice(-8), layersText(first, last), `${rate}${size(sent)} to it, ${size(received)} back, ${check}`);
}

function awayRow({ name, peer, since_seconds: since, because }) {
  return row(name || peer.slice(-8), `away for ${ago(Date.now() / 1000 - since)}`, because, "warn");
}

function gpu({ name, memory_used_bytes, memory_total_bytes, utilization_share, power_watts, power_limit_watts }) {
  return [
    row("device", name),
    row("its memory", size(memory_used_bytes), `of ${size(memory_total_bytes)}`),
    row("its use", percent(utilization_share)),
    row("its power", `${number(power_watts)} W`, power_limit_watts ? `of ${number(power_limit_watts)} W` : ""),
  ];
}

const times = (count) => (count === 1 ? "once" : `${number(count)} times`);

const trained = (round) => (round ? round.tokens_trained / Math.max(round.seconds, 1e-9) : null);

const memory = (usage) =>
  usage ? (usage.supervisor_bytes ?? 0) + (usage.learner_bytes ?? 0) + (usage.swarm_bytes ?? 0) : null;

export function notes(status) {
  const newestFirst = status.notes.length ? [...status.notes].reverse() : ["No notes yet."];
  return newestFirst.map((note) => element("li", {}, note));
}

export const notesCount = (status) =>
  [counted(status.notes.length, "note"), status.fault ? "a fault" : null].filter(Boolean).join(", ");

/** Describes from whom the node learns less for now, the learner's last fault, and how a process last ended. */
export function faults({ fault, withdrawn, learner_process: learner, swarm_process: swarm }) {
  const ends = [
    ["learner", learner],
    ["swarm process", swarm],
  ].filter(([, { last_end: end }]) => end);
  return [
    ...withdrawn.map(({ sentence }) => element("p", {}, sentence)),
    fault
      ? element(
          "p",
          { class: fault.fatal ? "bad" : "warn" },
          `Last fault, round ${number(fault.round)}: ${fault.kind}: ${fault.detail}`,
        )
      : null,
    ...ends.map(([name, { last_end: end, restarts }]) =>
      element("p", { class: "warn" }, `The ${name} was started again ${times(restarts)}; it last ended so: ${end}`),
    ),
  ].filter((part) => part !== null);
}

export function settings(status) {
  const { ready } = status;
  const rows = [
    row("model", status.model),
    row("family", ready?.family ?? "–"),
    row("parameters", number(ready?.parameters), ready ? `${number(ready.trainable_parameters)} of them trained` : ""),
    row("device", ready?.device ?? "–", ready?.dtype ?? ""),
    row("tasks", ready?.tasks.join(", ") ?? "–"),
    row("rows decoded side by side", number(ready?.rows)),
    row("tokens of one pass", number(ready?.batch_tokens)),
    row("home", status.home),
    row("peer id", status.peer),
    row("version", status.version),
  ];
  return [
    list(rows),
    element("p", { class: "aside" }, "All settings: ", element("code", {}, "starling config show"), "."),
  ];
}

/** Describes how another machine joins: a line to copy, and the same as a QR code. */
export function join(status) {
  const { join: how, swarm } = status;
  const reach = swarm?.reach;
  const unreached = reach?.is_out_of_reach ? element("p", { class: "aside" }, `Reach: ${reach.in_words}`) : null;
  const said = swarm?.alone_because ? `Alone: ${swarm.alone_because}` : swarm?.other_swarm;
  const alone = said ? element("p", { class: "warn" }, said) : null;
  if (!how || !how.commands.length)
    return [alone, unreached, how?.hint ? element("p", { class: "aside" }, how.hint) : null].filter(Boolean);
  const line = how.commands[0];
  return [
    alone,
    unreached,
    element("h3", {}, "Another machine joins with"),
    element(
      "div",
      { class: "line" },
      element("code", { id: "join-line" }, line),
      element("button", { type: "button", id: "copy" }, "Copy"),
    ),
    how.hint ? element("p", { class: "aside" }, how.hint) : null,
    how.qr
      ? element(
          "details",
          { class: "plain" },
          element("summary", {}, "As a QR code"),
          element("img", {
            src: `/api/v1/join.svg?of=${hash(line)}`,
            alt: "QR code of the line above",
            width: 200,
            height: 200,
            loading: "lazy",
          }),
        )
      : null,
  ].filter((part) => part !== null);
}

/** A short number that changes with the text, so that the browser loads another picture for another line. */
const hash = (text) => [...text].reduce((sum, character) => (sum * 31 + character.codePointAt(0)) % 1000003, 7);

const counts = (by) =>
  Object.entries(by)
    .map(([name, count]) => `${name || "unknown"} ${number(count)}`)
    .join(", ") || "–";

/** Describes the swarm as its heartbeats report it. */
export function swarm(answer) {
  const models = table(
    [
      ["model", (model) => (model.ours ? `${model.model} (ours)` : model.model), ""],
      ["family", (model) => model.family.slice(0, 8), ""],
      ["nodes", (model) => number(model.nodes), "number"],
      ["tokens/s", (model) => number(model.tokens_per_second), "number"],
      ["round", (model) => number(model.round_most), "number"],
      ["reward", (model) => (model.success === null ? "–" : bar(model.success)), ""],
    ],
    answer.models,
  );
  const tasks = table(
    [
      ["task", (task) => task.task, ""],
      ["nodes", (task) => number(task.nodes), "number"],
      ["reward", (task) => bar(task.success), ""],
      ["lowest – highest", (task) => `${score(task.success_least)} – ${score(task.success_most)}`, "number"],
      ["best", (task) => task.best_name || task.best_model, ""],
    ],
    answer.tasks,
  );
  const more = (left) => (left ? element("p", { class: "aside" }, `and ${number(left)} more`) : null);
  return [
    element("p", { class: "aside" }, "What nodes say of themselves in their heartbeats; nobody checks it."),
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
  `${counted(answer.nodes, "node")}, ${number(answer.tokens_per_second)} tokens/s, ${number(answer.groups_offered)} groups offered`;
