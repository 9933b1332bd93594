// The page follows the node's clock: once a second the node sends its status; the page then requests the parts that are
// on the screen and draws them together. Other parts follow every tenth time. The node may stop and start meanwhile.

import { $, show } from "./dom.js";
import { draw } from "./charts.js";
import { showPeers } from "./peers.js";
import { history as series, notes, now, rollouts, swarm, swarmCount, title } from "./views.js";

const PEERS_SHOWN = 40; // until the reader asks for all: more than a reader takes in, and a long way to scroll on a phone
const OFF_SCREEN_FACTOR = 10; // parts off the screen are updated this many times less often
const RECONNECT_MS = 2000; // until the page connects again, where the browser does not do it by itself

let live = false;
let allPeers = false;
let updates = 0; // statuses received from the node
let drawing = false;
const answers = {}; // the newest ones, by part
const onScreen = new Set(); // names of the parts on the screen

// Every part of the page: an element of it, the address to request, and every how many updates it is requested.
const PARTS = {
  status: { place: "now", every: 1, draw: drawStatus },
  history: { place: "chart-success", address: "/api/v1/history?points=250", every: 10, draw: drawCharts },
  peers: { place: "peers", address: "/api/v1/peers", every: 1, draw: drawPeers },
  swarm: { place: "swarm", address: "/api/v1/swarm", every: 2, draw: drawSwarm },
  rollouts: { place: "rollouts", address: "/api/v1/rollouts", every: 2, draw: () => show($("rollouts"), ...rollouts(answers.rollouts)) },
  notes: { place: "notes", every: 1, draw: () => show($("notes"), ...notes(answers.notes)) },
};

/** Receives the status by server-sent events. The browser connects again by itself when the node is back. */
function listen() {
  const events = new EventSource("/api/v1/events");
  events.addEventListener("status", (event) => {
    answers.status = answers.notes = JSON.parse(event.data);
    setLive(true);
    update();
  });
  events.onerror = () => {
    setLive(false);
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, RECONNECT_MS); // too many readers, or stopping
  };
}

/** Requests the parts that are due and draws them. */
async function update() {
  if (document.hidden || drawing) return;
  const interval = (name) => PARTS[name].every * (onScreen.has(name) ? 1 : OFF_SCREEN_FACTOR);
  const due = Object.keys(PARTS).filter((name) => updates % interval(name) === 0);
  if (updates === 0) drawStatus(); // the numbers do not wait for the rest
  updates += 1;
  drawing = true;
  try {
    await refresh(due);
  } finally {
    drawing = false;
  }
}

async function refresh(names) {
  await Promise.all(names.map(request));
  for (const name of names) if (name in answers) PARTS[name].draw();
}

async function request(name) {
  const { address } = PARTS[name];
  if (!address) return; // the node sends this part by itself
  try {
    const response = await fetch(address, { cache: "no-store" });
    if (response.ok) answers[name] = await response.json();
  } catch {
    // The node does not answer: `live` shows it, and the next update requests again.
  }
}

function setLive(is) {
  if (is === live && is) return;
  live = is;
  $("link").textContent = live ? "live" : "the node does not answer; trying again";
  $("link").dataset.live = live ? "yes" : "no";
}

function drawStatus() {
  const [name, subtitle] = title(answers.status);
  show($("name"), name);
  show($("subtitle"), subtitle);
  if (document.title !== `${name} · starling`) document.title = `${name} · starling`;
  show($("now"), ...now(answers.status));
}

function drawCharts() {
  draw($("chart-success"), series.success(answers.history), { max: 1 });
  draw($("chart-tokens"), series.tokens(answers.history));
  const heldOut = series.heldOut(answers.history);
  $("figure-held-out").hidden = heldOut[0].seconds.length === 0;
  draw($("chart-held-out"), heldOut, { max: 1 });
}

function drawPeers() {
  const known = answers.peers.peers;
  show($("peers-count"), `${known.filter((peer) => peer.connected).length} connected, ${known.length} known`);
  showPeers($("peers"), allPeers ? known : known.slice(0, PEERS_SHOWN), answers.rollouts?.words ?? {});
  $("peers-all").hidden = allPeers || known.length <= PEERS_SHOWN;
}

function drawSwarm() {
  show($("swarm-count"), swarmCount(answers.swarm));
  show($("swarm"), ...swarm(answers.swarm));
}

/** Records which parts are on the screen, and refreshes those that appear on it. */
function watch() {
  const namesIn = new Map(); // section -> its parts
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const names = namesIn.get(target);
      if (!isIntersecting) names.forEach((name) => onScreen.delete(name));
      else if (!names.every((name) => onScreen.has(name))) {
        names.forEach((name) => onScreen.add(name));
        if (updates > 0) refresh(names);
      }
    }
  });
  for (const [name, { place }] of Object.entries(PARTS)) {
    const section = $(place).closest("section");
    namesIn.set(section, [...(namesIn.get(section) ?? []), name]);
    watcher.observe(section);
  }
}

$("peers-all").addEventListener("click", () => {
  allPeers = true;
  drawPeers();
});
document.addEventListener("visibilitychange", () => answers.status && update());
watch();
listen();
