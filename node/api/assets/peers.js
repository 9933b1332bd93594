// The table of peers. Each may say something new every second, so only rows on the screen follow at once; of the others
// every tenth at each look, so that a search of the page or a printed one is ten seconds old at most.

import { cells, element, head, nothing, show } from "./dom.js";
import { ago, number } from "./text.js";

const TURNS = 10;
const NEAR = "200px"; // below and above the screen, for who scrolls
const MS = 1000;
const USED = new Set(["used", "replayed"]);

let words = {}; // what a reason means

// Names and models are what strangers say of themselves.
const COLUMNS = [
  ["name", (peer) => peer.heartbeat?.name || `${peer.peer.slice(0, 6)}…${peer.peer.slice(-6)}`, ""],
  ["model", (peer) => peer.heartbeat?.model ?? "–", ""],
  ["family", (peer) => peer.heartbeat?.family.slice(0, 8) ?? "–", ""],
  ["round", (peer) => number(peer.heartbeat?.round), "number"],
  ["link", (peer) => element("span", { class: peer.connected ? "good" : null }, link(peer)), ""],
  ["taken", (peer) => `${peer.groups_used} of ${peer.groups_received}`, "number"],
  ["given", (peer) => number(peer.groups_given), "number"],
  ["not used, why", (peer) => reasons(peer), ""],
  ["reputation", (peer) => reputation(peer), "number"],
];

const rows = []; // {row, peer, seen}, in the order shown
const rowOf = new WeakMap();
let body = null;
let turn = 0;

const watcher = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      const each = rowOf.get(target);
      each.seen = isIntersecting;
      if (isIntersecting) fill(each);
    }
  },
  { rootMargin: NEAR },
);

/** Shows `peers` in `place`; `said` is what each reason means. */
export function showPeers(place, peers, said) {
  words = said;
  if (!peers.length) {
    forget(0);
    body = null;
    show(place, nothing("No peer is known yet. Others join with the address that starling up prints."));
    return;
  }
  if (body === null) {
    const described = element("tbody");
    show(place, element("table", { class: "folding peers" }, element("thead", {}, head(COLUMNS)), described));
    body = described.node;
  }
  forget(peers.length);
  turn = (turn + 1) % TURNS;
  peers.forEach((peer, index) => {
    const isNew = index === rows.length;
    if (isNew) add();
    const each = rows[index];
    each.peer = peer;
    if (isNew || each.seen || index % TURNS === turn) fill(each);
  });
}

function add() {
  const each = { row: document.createElement("tr"), peer: null, seen: false };
  rows.push(each);
  rowOf.set(each.row, each);
  body.append(each.row);
  watcher.observe(each.row);
}

function forget(kept) {
  for (const { row } of rows.splice(kept)) {
    watcher.unobserve(row);
    row.remove();
  }
}

function fill({ row, peer }) {
  row.className = peer.connected ? "" : "away";
  show(row, ...cells(COLUMNS, peer));
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

/** The most frequent reasons for which groups of a peer were not used; in full when pointed at. */
function reasons(peer) {
  const counted = Object.entries(peer.outcomes).filter(([reason]) => !USED.has(reason));
  const most = counted.sort((one, other) => other[1] - one[1]).slice(0, 3);
  const told = most.map(([reason, count], index) => {
    const text = `${index ? ", " : ""}${number(count)} × ${reason.replaceAll("_", " ")}`;
    return element("span", { title: words[reason] ?? null }, text);
  });
  return element("span", {}, ...told);
}
