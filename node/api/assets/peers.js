// The table of peers. Each peer may change every second, so only rows on the screen are updated at once, and one in ten
// of the other rows at each update: a search in the page, or a printout, is at most ten seconds old.

import { cells, element, head, nothing, show } from "./dom.js";
import { ago, number } from "./text.js";

const TURNS = 10;
const NEAR = "200px"; // above and below the screen: rows that scrolling may show next
const MS = 1000;
const USED = new Set(["used", "replayed"]);

let words = {}; // a sentence for each reason

// Names and models are what peers report of themselves.
const COLUMNS = [
  ["name", (peer) => peer.heartbeat?.name || `${peer.peer.slice(0, 6)}…${peer.peer.slice(-6)}`, ""],
  ["model", (peer) => peer.heartbeat?.model || peer.heartbeat?.phase || "–", ""],
  ["family", (peer) => peer.heartbeat?.family.slice(0, 8) ?? "–", ""],
  ["round", (peer) => number(peer.heartbeat?.round), "number"],
  ["link", (peer) => link(peer), ""],
  ["used", (peer) => `${number(peer.groups_used)} of ${number(peer.groups_announced)}`, "number"],
  ["fetched", (peer) => number(peer.groups_fetched), "number"],
  ["why not used", (peer) => reasons(peer), ""],
  ["reputation", (peer) => reputation(peer), "number"],
];

const rows = []; // {row, peer, seen}, in the order shown
const rowOf = new WeakMap();
let body = null;
let turn = 0;

const watcher = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      const entry = rowOf.get(target);
      entry.seen = isIntersecting;
      if (isIntersecting) fill(entry);
    }
  },
  { rootMargin: NEAR },
);

/** Shows `peers` in `place`; `reasonWords` has a sentence for each reason. */
export function showPeers(place, peers, reasonWords) {
  words = reasonWords;
  if (!peers.length) {
    keepRows(0);
    body = null;
    show(place, nothing("No peer is known yet. Others join with the address that starling up prints."));
    return;
  }
  if (body === null) {
    const described = element("tbody");
    show(place, element("table", { class: "folding peers" }, element("thead", {}, head(COLUMNS)), described));
    body = described.node;
  }
  keepRows(peers.length);
  turn = (turn + 1) % TURNS;
  peers.forEach((peer, index) => {
    const isNew = index === rows.length;
    if (isNew) addRow();
    const entry = rows[index];
    entry.peer = peer;
    if (isNew || entry.seen || index % TURNS === turn) fill(entry);
  });
}

function addRow() {
  const entry = { row: document.createElement("tr"), peer: null, seen: false };
  rows.push(entry);
  rowOf.set(entry.row, entry);
  body.append(entry.row);
  watcher.observe(entry.row);
}

/** Removes all rows after the first `count`. */
function keepRows(count) {
  for (const { row } of rows.splice(count)) {
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
  if (!peer.connected && peer.heartbeat && peer.heartbeat_age_seconds === null) return "left";
  if (!peer.connected)
    return `away${peer.heartbeat_age_seconds === null ? "" : `, last heartbeat ${ago(peer.heartbeat_age_seconds)} ago`}`;
  return peer.round_trip_seconds === null ? "connected" : `${number(MS * peer.round_trip_seconds, 1)} ms`;
}

function reputation(peer) {
  const kind = peer.reputation < 0.3 ? "bad" : peer.reputation < 0.7 ? "warn" : null;
  return element("span", { class: kind }, number(peer.reputation, 2));
}

/** The most frequent reasons why groups of a peer were not used; a tooltip explains each. */
function reasons(peer) {
  const counted = Object.entries(peer.outcomes).filter(([reason]) => !USED.has(reason));
  const frequent = counted.sort((one, other) => other[1] - one[1]).slice(0, 3);
  const shown = frequent.map(([reason, count], index) => {
    const text = `${index ? ", " : ""}${number(count)} × ${reason.replaceAll("_", " ")}`;
    return element("span", { title: words[reason] ?? null }, text);
  });
  return element("span", {}, peer.withdrawn ? `${peer.withdrawn}; ` : "", ...shown);
}
