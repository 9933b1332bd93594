// The page lives by the node's own clock: once a second the node tells its status, the page asks for what is on the
// screen, and draws it all at once. What is off the screen follows every tenth time. The node may go away and come back.

import { $, show } from "./dom.js";
import { draw } from "./charts.js";
import { showPeers } from "./peers.js";
import { history as series, notes, now, rollouts, swarm, swarmCount, title } from "./views.js";

const PEERS_SHOWN = 40; // until all are asked for: more than anybody reads at once, and on a phone a long way to scroll
const OFF_SCREEN = 10; // times less often
const LOST_MS = 2000; // until asking again, where the browser does not do it by itself

let live = false;
let allPeers = false;
let looks = 0; // of the node at itself
let drawing = false;
const said = {}; // the newest answers, by part
const seen = new Set(); // parts on the screen

// Every part of the page: the element that is to be on the screen, the address, and at every how many looks it is asked.
const PARTS = {
  status: { place: "now", every: 1, draw: drawStatus },
  history: { place: "chart-success", address: "/api/v1/history?points=250", every: 10, draw: drawCharts },
  peers: { place: "peers", address: "/api/v1/peers", every: 1, draw: drawPeers },
  swarm: { place: "swarm", address: "/api/v1/swarm", every: 2, draw: drawSwarm },
  rollouts: { place: "rollouts", address: "/api/v1/rollouts", every: 2, draw: () => show($("rollouts"), ...rollouts(said.rollouts)) },
  notes: { place: "notes", every: 1, draw: () => show($("notes"), ...notes(said.notes)) },
};

/** Status comes by server-sent events; a browser connects again by itself when the node is back. */
function listen() {
  const events = new EventSource("/api/v1/events");
  events.addEventListener("status", (event) => {
    said.status = said.notes = JSON.parse(event.data);
    setLive(true);
    look();
  });
  events.onerror = () => {
    setLive(false);
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, LOST_MS); // refused: too many readers, or stopping
  };
}

/** Asks for what is due and draws it. */
async function look() {
  if (document.hidden || drawing) return;
  const due = Object.keys(PARTS).filter((name) => looks % (PARTS[name].every * (seen.has(name) ? 1 : OFF_SCREEN)) === 0);
  if (looks === 0) drawStatus(); // the numbers do not wait for the rest
  looks += 1;
  drawing = true;
  try {
    await refresh(due);
  } finally {
    drawing = false;
  }
}

async function refresh(names) {
  await Promise.all(names.map(ask));
  for (const name of names) if (name in said) PARTS[name].draw();
}

async function ask(name) {
  const { address } = PARTS[name];
  if (!address) return; // it comes by itself
  try {
    const answer = await fetch(address, { cache: "no-store" });
    if (answer.ok) said[name] = await answer.json();
  } catch {
    // The node is away: `live` says so, and the next look asks again.
  }
}

function setLive(is) {
  if (is === live && is) return;
  live = is;
  $("link").textContent = live ? "live" : "the node does not answer; trying again";
  $("link").dataset.live = live ? "yes" : "no";
}

function drawStatus() {
  const [name, subtitle] = title(said.status);
  show($("name"), name);
  show($("subtitle"), subtitle);
  if (document.title !== `${name} · starling`) document.title = `${name} · starling`;
  show($("now"), ...now(said.status));
}

function drawCharts() {
  draw($("chart-success"), series.success(said.history), { most: 1 });
  draw($("chart-tokens"), series.tokens(said.history));
}

function drawPeers() {
  const known = said.peers.peers;
  show($("peers-count"), `${known.filter((peer) => peer.connected).length} connected, ${known.length} known`);
  showPeers($("peers"), allPeers ? known : known.slice(0, PEERS_SHOWN), said.rollouts?.words ?? {});
  $("peers-all").hidden = allPeers || known.length <= PEERS_SHOWN;
}

function drawSwarm() {
  show($("swarm-count"), swarmCount(said.swarm));
  show($("swarm"), ...swarm(said.swarm));
}

/** Marks which parts are on the screen, and brings up to date what comes onto it. */
function watch() {
  const namesIn = new Map(); // section -> its parts
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const names = namesIn.get(target);
      if (!isIntersecting) names.forEach((name) => seen.delete(name));
      else if (!names.every((name) => seen.has(name))) {
        names.forEach((name) => seen.add(name));
        if (looks > 0) refresh(names);
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
document.addEventListener("visibilitychange", () => said.status && look());
watch();
listen();
