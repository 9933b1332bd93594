// Asks the node, keeps what it last said, and draws it once a second. The node may go away and come back meanwhile.

import { $, show } from "./dom.js";
import { draw } from "./charts.js";
import { history as series, notes, now, peers, rollouts, swarm, swarmCount, title } from "./views.js";

const DRAW_MS = 1000;
const POLL_MS = { peers: 1000, swarm: 2000, rollouts: 2000, history: 5000 };

const PEERS_SHOWN = 40; // until all are asked for: more than anybody reads at once, and each costs work every second

const said = { status: null, peers: null, swarm: null, rollouts: null, history: null };
let live = false;
let allPeers = false;

/** Status comes by server-sent events; a browser connects again by itself when the node is back. */
function listen() {
  const events = new EventSource("/api/v1/events");
  events.addEventListener("status", (event) => {
    said.status = JSON.parse(event.data);
    live = true;
  });
  events.onerror = () => {
    live = false;
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, 2000); // refused: too many readers, or stopping
  };
}

async function poll(what) {
  try {
    const answer = await fetch(`/api/v1/${what}`, { cache: "no-store" });
    if (answer.ok) said[what] = await answer.json();
  } catch {
    // The node is away: `live` says so, and the next poll asks again.
  }
  setTimeout(poll, document.hidden ? 10 * POLL_MS[what] : POLL_MS[what], what);
}

function render() {
  $("link").textContent = live ? "live" : "the node does not answer; trying again";
  $("link").dataset.live = live ? "yes" : "no";
  if (said.status !== null) {
    const [name, subtitle] = title(said.status);
    $("name").textContent = name;
    $("subtitle").textContent = subtitle;
    document.title = `${name} · starling`;
    show($("now"), ...now(said.status));
    show($("notes"), ...notes(said.status));
  }
  if (said.peers !== null) {
    $("peers-count").textContent = `${said.peers.peers.filter((peer) => peer.connected).length} connected, ${said.peers.peers.length} known`;
    const known = said.peers.peers;
    show($("peers"), peers(allPeers ? known : known.slice(0, PEERS_SHOWN), said.rollouts?.words ?? {}));
    $("peers-all").hidden = allPeers || known.length <= PEERS_SHOWN;
  }
  if (said.swarm !== null) {
    $("swarm-count").textContent = swarmCount(said.swarm);
    show($("swarm"), ...swarm(said.swarm));
  }
  if (said.rollouts !== null) show($("rollouts"), ...rollouts(said.rollouts));
  if (said.history !== null) {
    draw($("chart-success"), series.success(said.history), { range: [0, 1] });
    draw($("chart-tokens"), series.tokens(said.history));
  }
}

$("peers-all").addEventListener("click", () => {
  allPeers = true;
  render();
});
listen();
Object.keys(POLL_MS).forEach(poll);
setInterval(() => document.hidden || render(), DRAW_MS);
