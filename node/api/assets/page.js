// The page follows the node's clock: once a second the node sends its status; the page then requests the parts that are
// due and draws them together. Parts on the screen are due more often than others, and those behind a click only while
// they are open. The node may stop and start meanwhile.

import { $, element, show } from "./dom.js";
import { draw } from "./charts.js";
import { connectionsOf, graph, models, mostUsed, nodesOf } from "./graph.js";
import { showButtons } from "./owner.js";
import { showPeers } from "./peers.js";
import { rollouts } from "./rollouts.js";
import { samples } from "./samples.js";
import { accounts, headline, picture } from "./skills.js";
import { number, percent, size } from "./text.js";
import { drawSkills, lines, news, onChoice } from "./timeline.js";
import { showTrying } from "./try.js";
import {
  alarms,
  doing,
  faults,
  figures,
  join,
  notes,
  notesCount,
  settings,
  soon,
  swarm,
  swarmCount,
  title,
} from "./views.js";

const PEERS_SHOWN = 40; // until the reader asks for all: more than a reader takes in, and a long way to scroll on a phone
const OFF_SCREEN_FACTOR = 10; // parts off the screen are updated this many times less often
const RECONNECT_MS = 2000; // until the page connects again, where the browser does not do it by itself
const COPIED_MS = 2000;
const HISTORY = "history?points=250";

let live = false;
let another = null; // the status of another node, which answers here now
let seenSeconds = 0; // when the last status came
let allPeers = false;
let updates = 0; // statuses received from the node
let drawing = false;
const chosen = { curve: "mean", by: "time" }; // of the chart of skills
const pointed = { at: null, chosen: null, model: null }; // in the picture of links: ids under the pointer and chosen, a model
const answers = {}; // the newest ones, by address
const visible = new Set(); // names of the parts on the screen

/** Returns what shows an answer, as `described`, in the place of that name, or in another one. */
const shown =
  (answer, described, place = answer) =>
  () =>
    show($(place), ...described(answers[answer]));

// Every part of the page: an element of it, the answers it draws, and every how many updates it is due. All parts with
// the same answer share one request.
const PARTS = {
  status: { place: "headline", every: 1, draw: drawStatus },
  gains: { place: "skills", needs: ["gains"], every: 5, draw: drawGains },
  skills: {
    place: "chart-skills",
    needs: [HISTORY],
    every: 10,
    draw: drawHistory,
  },
  samples: { place: "samples", needs: ["samples"], every: 5, draw: shown("samples", samples) },
  graph: { place: "graph", needs: ["links", "peers"], every: 10, draw: drawGraph },
  figures: { place: "now", every: 1, draw: shown("status", figures, "now") },
  machine: { place: "chart-tokens", needs: [HISTORY], every: 10, draw: drawMachine },
  peers: { place: "peers", needs: ["peers"], every: 1, draw: drawPeers },
  swarm: { place: "swarm", needs: ["swarm"], every: 2, draw: drawSwarm },
  rollouts: { place: "rollouts", needs: ["rollouts"], every: 2, draw: shown("rollouts", rollouts) },
  settings: { place: "settings", every: 10, draw: shown("status", settings, "settings") },
  notes: { place: "notes", every: 1, draw: drawNotes },
};
const YOUNG_ROUNDS = 60; // until then the charts grow fast

/** Receives the status by server-sent events. The browser connects again by itself when the node is back. */
function listen() {
  const events = new EventSource("/api/v1/events");
  events.addEventListener("status", (event) => {
    const status = JSON.parse(event.data);
    live = isOurs(status.peer);
    another = live ? null : status;
    if (live) {
      answers.status = status;
      seenSeconds = Date.now() / 1000;
    }
    drawLink();
    if (live) update();
    else drawAnother();
  });
  events.addEventListener("samples", () => isDue("samples", 1) && refresh(["samples"]));
  events.onerror = () => {
    live = false;
    another = null;
    drawLink();
    if (answers.status) drawStatus();
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, RECONNECT_MS); // too many readers, or stopping
  };
}

/** Returns whether the page was opened for this node. The address keeps the first id, and so does a bookmark of it. */
function isOurs(peer) {
  if (location.hash === "") history.replaceState(null, "", `#${peer}`);
  return location.hash === `#${peer}`;
}

const isOpen = (name) => $(PARTS[name].place).closest("details:not([open])") === null;

function isDue(name, every) {
  const young =
    (name === "gains" || name === "skills") && (answers.status.round?.round ?? 0) < YOUNG_ROUNDS && updates % 3 === 0;
  return isOpen(name) && (young || updates % (every * (visible.has(name) ? 1 : OFF_SCREEN_FACTOR)) === 0);
}

/** Requests the parts that are due and draws them. */
async function update() {
  if (document.hidden || drawing) return;
  const due = Object.keys(PARTS).filter((name) => isDue(name, PARTS[name].every));
  if (updates === 0) drawStatus(); // the sentence does not wait for the rest
  updates += 1;
  drawing = true;
  try {
    await refresh(due);
  } finally {
    drawing = false;
  }
}

async function refresh(names) {
  const needed = new Set(names.flatMap((name) => PARTS[name].needs ?? []));
  await Promise.all([...needed].map(request));
  for (const name of names) if ((PARTS[name].needs ?? ["status"]).every((need) => need in answers)) PARTS[name].draw();
}

async function request(address) {
  if (!live) return; // whoever answers may be another node
  try {
    const response = await fetch(`/api/v1/${address}`, { cache: "no-store" });
    if (response.ok) answers[address] = await response.json();
    else if (response.status === 403) answers[address] = { refused: (await response.json()).error };
  } catch {
    // The node does not answer: `live` shows it, and the next update requests again.
  }
}

function drawLink() {
  const ended = !live && answers.status?.state === "stopping";
  const away = another ? "another node answers here now" : "the node does not answer; trying again";
  show($("link"), live ? "live" : ended && !another ? "ended" : away);
  const kind = live ? "yes" : "no";
  if ($("link").dataset.live !== kind) $("link").dataset.live = kind;
  if (!answers.status) return;
  showButtons(answers.status, live);
  showTrying(answers.status, live, answers.gains);
}

/** Says who answers in this node's place, and shows nothing of it. */
function drawAnother() {
  if (answers.status) drawStatus();
  const name = `${another.name || "a node"} (…${another.peer.slice(-5)})`;
  const link = element("a", { href: "/" }, "Show that node");
  show($("alarms"), element("p", { class: "bad" }, `Another node answers here now: ${name}. `, link));
}

function drawStatus() {
  const { status } = answers;
  const [name, subtitle] = title(status);
  show($("name"), name);
  show($("subtitle"), subtitle);
  if (document.title !== `${name} · starling`) document.title = `${name} · starling`;
  drawHeadline();
  show($("alarms"), ...alarms(status));
  show($("join"), ...join(status));
  show($("notes-count"), notesCount(status));
}

function drawHeadline() {
  const { status, gains } = answers;
  const isOver = !live && status.state === "stopping";
  const known = gains && gains.mean_now !== null;
  const told = { isOver, isPaused: live && Boolean(status.paused), news: news(answers[HISTORY]) };
  show($("headline"), ...headline(status.name || "This node", gains, status.waiting_for, told));
  show($("doing"), known || !live ? doing(status, { live, seen_seconds: seenSeconds }) : "");
  if (!known) show($("skills"), ...(isOver ? [] : soon(status)));
}

function drawGains() {
  drawHeadline();
  if (answers.gains.mean_now !== null) show($("skills"), ...picture(answers.gains));
  const explained = accounts(answers.gains);
  $("how").hidden = explained.length === 0;
  show($("accounts"), ...explained);
}

function drawHistory() {
  drawSkills(answers[HISTORY], chosen, answers.gains ?? null);
  drawHeadline();
}

function drawGraph() {
  const { links, peers } = answers;
  const used = Object.fromEntries(peers.peers.map((peer) => [peer.peer, peer.groups_used]));
  const [us, ...others] = nodesOf(links, used);
  show(
    $("links-count"),
    others.length === 0
      ? "nobody now"
      : `${number(others.filter(({ connected }) => connected).length)} of ${number(others.length)} known`,
  );
  const known = ({ peer }) => links.nodes.some((node) => node.peer === peer);
  for (const kind of ["at", "chosen"]) if (!known({ peer: pointed[kind] })) pointed[kind] = null;
  const shown = pointed.at ?? pointed.chosen;
  show($("graph"), graph(links, used, shown, pointed.model));
  showChoice([us, ...others]);
  show($("links-of"), shown === null ? "" : connectionsOf(links, used, shown));
  show(
    $("graph-models"),
    models([us, ...others], pointed.model),
    others.length === 0 ? "" : element("p", { class: "aside" }, mostUsed(others)),
  );
}

/** Nodes by name, to choose from without a mouse. */
function showChoice(nodes) {
  $("choose-node").parentElement.hidden = nodes.length < 3;
  const named = [...nodes].sort((one, other) => one.name.localeCompare(other.name));
  const options = named.map(({ id, name: called }) => element("option", { value: id }, called));
  show($("choose-node"), element("option", { value: "" }, "all"), ...options);
  $("choose-node").value = pointed.chosen ?? "";
}

function point(kind, id) {
  if (pointed[kind] === id || !answers.links || !answers.peers) return;
  pointed[kind] = id;
  drawGraph();
}

function drawMachine() {
  const { rounds, usage } = answers[HISTORY];
  const [ofRounds, ofUsage] = [{ gaps: rounds.gaps }, { gaps: usage.gaps }];
  const series = (timeline, ...names) => lines(timeline, ({ name }) => names.includes(name));
  draw($("chart-tokens"), series(rounds, "generated_tokens_per_second", "trained_tokens_per_second"), {
    ...ofRounds,
    label: "Tokens a second",
  });
  const held = ["learner_memory_bytes", "swarm_memory_bytes", "supervisor_memory_bytes", "device_used_memory_bytes"];
  draw($("chart-memory"), series(usage, ...held), { ...ofUsage, label: "Memory", format: size });
  draw($("chart-traffic"), series(usage, "sent_bytes_per_second", "received_bytes_per_second"), {
    ...ofUsage,
    label: "Traffic a second",
    format: size,
  });
  draw($("chart-device"), series(usage, "device_utilization"), { ...ofUsage, max: 1, label: "Use of the GPU", format: percent });
  draw($("chart-power"), series(usage, "device_power_watts"), { ...ofUsage, label: "Power of the GPU, watts" });
}

function drawPeers() {
  const known = answers.peers.peers;
  showPeers($("peers"), allPeers ? known : known.slice(0, PEERS_SHOWN), answers.rollouts?.words ?? {});
  $("peers-all").hidden = allPeers || known.length <= PEERS_SHOWN;
}

function drawSwarm() {
  show($("swarm-count"), swarmCount(answers.swarm));
  show($("swarm"), ...swarm(answers.swarm));
}

function drawNotes() {
  show($("fault"), ...faults(answers.status));
  show($("notes"), ...notes(answers.status));
}

/** Records which parts are on the screen, and refreshes those that appear on it or are opened. */
function watch() {
  const namesIn = new Map(); // element -> its parts
  const appear = (names) => {
    if (updates > 0) refresh(names.filter(isOpen));
  };
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const names = namesIn.get(target);
      const fresh = isIntersecting ? names.filter((name) => !visible.has(name)) : [];
      names.forEach((name) => (isIntersecting ? visible.add(name) : visible.delete(name)));
      if (fresh.length) appear(fresh);
    }
  });
  for (const [name, { place }] of Object.entries(PARTS)) {
    const part = $(place).closest("details, section");
    namesIn.set(part, [...(namesIn.get(part) ?? []), name]);
    watcher.observe(part);
  }
  for (const [part, names] of namesIn)
    if (part.tagName === "DETAILS") part.addEventListener("toggle", () => part.open && appear(names));
}

async function copy(button) {
  const text = $("join-line").textContent;
  try {
    await navigator.clipboard.writeText(text);
    show($("told"), "Copied.");
  } catch {
    getSelection().selectAllChildren($("join-line")); // the browser forbids it: the reader copies by hand
    show($("told"), "Selected: copy it by hand.");
  }
  button.dataset.done = "yes";
  setTimeout(() => delete button.dataset.done, COPIED_MS);
}

document.addEventListener("click", ({ target }) => target.id === "copy" && copy(target));
onChoice(chosen, () => HISTORY in answers && PARTS.skills.draw());
const nodeAt = ({ target }) => target.closest?.("[data-peer]")?.dataset.peer ?? null;
$("graph").addEventListener("pointerover", (event) => event.pointerType === "mouse" && point("at", nodeAt(event)));
$("graph").addEventListener("pointerleave", () => point("at", null));
$("graph").addEventListener("click", (event) => point("chosen", nodeAt(event)));
$("graph-models").addEventListener("click", ({ target }) => {
  const model = target.closest("[data-model]")?.dataset.model;
  if (model !== undefined) point("model", pointed.model === model ? null : model);
});
$("choose-node").addEventListener("change", ({ target }) => point("chosen", target.value || null));
$("peers-all").addEventListener("click", () => {
  allPeers = true;
  drawPeers();
});
document.addEventListener("visibilitychange", () => answers.status && update());
watch();
listen();
