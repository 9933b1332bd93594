// Who is connected to whom, as a picture: this node in the middle, its connections on rings around it, and outside them
// those that it knows from others. The layout is a pure function of who is there: peers of one model stand side by
// side, and the same peers always stand in the same places.

import { element } from "./dom.js";
import { counted, listed, number } from "./text.js";

export const SIZE = 440; // of the picture, in its own units
const MIDDLE = SIZE / 2;
const NAMED = 14; // with more nodes, names would overlap
const MODELS = 7; // named; the others are counted
const RING = { first: 74, apart: 26, spacing: 19 }; // units; spacing: between two nodes of one ring
const NAMED_RING = 128;
const LINKS = 1500; // drawn at most; more would be a blot
const MANY_PEERS = 60;
const MANY = 200; // links between others, of which then only the chosen node's can be seen

/**
 * Returns where each node stands: [{id, name, model, connected, x, y, radius}], this node first. `peers` are
 * [{id, name, model, connected, used}].
 */
export function layout(us, peers) {
  const order = [...peers].sort(
    (one, other) => other.connected - one.connected || compare(one.model, other.model) || compare(one.id, other.id),
  );
  const here = order.filter((peer) => peer.connected);
  const away = order.filter((peer) => !peer.connected);
  const named = order.length <= NAMED;
  const { placed, beyond } = rings(here, named ? NAMED_RING : RING.first, named);
  const others = rings(away, beyond + (here.length ? 10 : 0), named && !here.length).placed;
  const outermost = Math.max(NAMED_RING, ...[...placed, ...others].map(({ ring }) => ring));
  const room = named ? 1 : Math.min(1, (MIDDLE - 12) / outermost);
  const nodes = [...placed, ...others].map(({ peer, ring, angle }) => ({
    ...peer,
    angle,
    x: MIDDLE + ring * room * Math.cos(angle),
    y: MIDDLE + ring * room * Math.sin(angle),
    radius: named ? 9 : Math.max(3.5, 6.5 * room),
  }));
  return [
    {
      ...us,
      connected: true,
      us: true,
      angle: 0,
      x: MIDDLE,
      y: MIDDLE,
      radius: named ? 15 : 12,
    },
    ...nodes,
  ];
}

const compare = (one, other) => (one < other ? -1 : one > other ? 1 : 0);

/** Places peers on rings, each of which has as many as fit; the rings are filled in proportion. */
function rings(peers, first, single) {
  const sizes = [];
  for (let left = peers.length, ring = first; left > 0; ring += RING.apart) {
    const fits = single ? left : Math.floor((2 * Math.PI * ring) / RING.spacing);
    sizes.push({ ring, count: Math.min(left, fits) });
    left -= fits;
  }
  const begin = single && peers.length === 2 ? 0 : -Math.PI / 2; // two stand side by side, as wide screens are
  // Neighbours in the order, which share a model, stand at neighbouring angles on all rings.
  const slots = sizes.flatMap(({ ring, count }, index) =>
    Array.from({ length: count }, (_, place) => ({
      ring,
      angle: ((place + (index % 2) / 2) / count) * 2 * Math.PI + begin,
    })),
  );
  slots.sort((one, other) => one.angle - other.angle || one.ring - other.ring);
  return { placed: peers.map((peer, index) => ({ peer, ...slots[index] })), beyond: first + RING.apart * sizes.length };
}

/**
 * Describes the picture. `known` is the API's answer about links, `used` the number of groups learnt from, by peer.
 * `chosen` is the id of the node whose connections stand out, `model` the model whose nodes do; null for none.
 */
export function graph(known, used, chosen = null, model = null) {
  const [us, ...peers] = nodesOf(known, used);
  const nodes = layout(us, peers);
  const at = new Map(nodes.map((node) => [node.id, node]));
  const between = known.links.filter(([one, other]) => one !== 0 && other !== 0).slice(0, LINKS);
  const chords = (wanted) =>
    between
      .filter(([, , certainty]) => wanted(certainty))
      .map(([one, other]) => chord(at.get(known.nodes[one].peer), at.get(known.nodes[other].peer)))
      .join("") || "M0 0";
  const ofChosen = linksOf(known, chosen);
  const most = Math.max(1, ...peers.map((peer) => peer.used));
  const [own, ...rest] = nodes;
  const crowded = peers.length > MANY_PEERS; // then only those that were learnt from
  const spokes = rest
    .filter(({ connected, used: learnt }) => connected && (learnt > 0 || !crowded))
    .map((node) => spoke(own, node, node.used / most));
  const named = peers.length <= NAMED;
  const many = between.length > MANY ? " many" : "";
  return element(
    "svg",
    { class: "graph", viewBox: boundsOf(nodes, named), role: "img", "aria-label": inWords(us, peers, between.length) },
    element("path", { class: `link one${many}`, d: chords((certainty) => certainty === 2) }),
    element("path", { class: `link${many}`, d: chords((certainty) => certainty < 2) }),
    element("path", {
      class: "link chosen",
      d: ofChosen.map((id) => chord(at.get(chosen), at.get(id))).join("") || "M0 0",
    }),
    element("g", {}, ...spokes),
    element("g", {}, ...[...rest, own].map((node) => dot(node, named, chosen, ofChosen, model))),
  );
}

/** The part of the picture that has something on it, with room for names. */
function boundsOf(nodes, named) {
  if (!named) return `0 0 ${SIZE} ${SIZE}`;
  const ys = nodes.map(({ y }) => y);
  const top = Math.min(...ys) - 40;
  return `0 ${top.toFixed(0)} ${SIZE} ${(Math.max(...ys) + 40 - top).toFixed(0)}`;
}

/** Returns the nodes as `layout` takes them, this node first. */
export const nodesOf = (known, used) =>
  known.nodes.map(({ peer, name, model, connected }) => ({
    id: peer,
    name: name || `${peer.slice(0, 6)}…${peer.slice(-4)}`,
    model: model || "unknown model",
    connected,
    used: used[peer] ?? 0,
  }));

/** A curve that bends towards the middle, so that neighbours' links do not hide under the ring. */
function chord(one, other) {
  const bend = (a, b) => ((a + b) / 2 + MIDDLE) / 2;
  const place = (x, y) => `${x.toFixed(1)} ${y.toFixed(1)}`;
  const middle = place(bend(one.x, other.x), bend(one.y, other.y));
  return `M${place(one.x, one.y)}Q${middle} ${place(other.x, other.y)}`;
}

const spoke = (own, node, share) =>
  element("path", {
    class: node.used > 0 ? "spoke used" : "spoke",
    "stroke-width": (node.used > 0 ? 1.2 + 3.8 * share : 1).toFixed(1),
    d: `M${own.x} ${own.y}L${node.x.toFixed(1)} ${node.y.toFixed(1)}`,
  });

/** Returns the ids of the nodes that are connected to the node `id`. */
export function linksOf(known, id) {
  const index = known.nodes.findIndex(({ peer }) => peer === id);
  if (index < 0) return [];
  const others = known.links.filter(([one, other]) => one === index || other === index);
  return others.map(([one, other]) => known.nodes[one === index ? other : one].peer);
}

/** Describes in a sentence to whom the node `id` is connected. */
export function connectionsOf(known, used, id) {
  const nodes = nodesOf(known, used);
  const node = nodes.find((each) => each.id === id);
  if (!node) return "";
  const others = new Set(linksOf(known, id));
  const names = nodes.filter((each) => others.has(each.id)).map(({ name: called }) => called);
  const what = `${node.name}, ${node.model}${node === nodes[0] ? "" : `; ${state(node)}`}`;
  return `${what}; ${counted(names.length, "connection")} known${names.length ? `: ${listed(names, 12)}` : ""}.`;
}

function dot(node, named, chosen, ofChosen, model) {
  const isFar = chosen !== null && node.id !== chosen && !ofChosen.includes(node.id);
  const isOut = isFar || (model !== null && node.model !== model);
  const learnt = node.used > 0 ? "learnt" : "";
  const kind = ["node", node.us ? "us" : learnt, node.connected ? "" : "away", isOut ? "out" : ""];
  const [cx, cy] = [node.x.toFixed(1), node.y.toFixed(1)];
  const circle = element("circle", { class: kind.filter(Boolean).join(" "), cx, cy, r: node.radius.toFixed(1) });
  const title = element("title", {}, `${node.name}, ${node.model}${node.us ? " (this node)" : `; ${state(node)}`}`);
  return element("g", { "data-peer": node.id }, title, circle, named || node.us || node.id === chosen ? name(node) : null);
}

const state = ({ connected, used }) =>
  `${connected ? "connected" : "known, not connected"}; ${counted(used, "group")} learnt from`;

function name({ us, name: called, x, y, angle, radius }) {
  const short = called.length > 16 ? `${called.slice(0, 15)}…` : called;
  if (us) return element("text", { class: "name us", x, y: y + radius + 15, "text-anchor": "middle" }, short);
  const [dx, dy] = [Math.cos(angle), Math.sin(angle)];
  const anchor = Math.abs(dx) < 0.5 ? "middle" : dx > 0 ? "start" : "end";
  const attributes = {
    class: "name",
    x: (x + dx * (radius + 5)).toFixed(1),
    y: (y + dy * (radius + 14) + 4).toFixed(1),
  };
  return element("text", { ...attributes, "text-anchor": anchor }, short);
}

function inWords(us, peers, links) {
  const connected = peers.filter((peer) => peer.connected);
  const names = connected.length
    ? `: ${listed(
        connected.map((peer) => peer.name),
        12,
      )}`
    : "";
  const known = `It knows ${number(peers.length)}, with ${counted(links, "connection")} among them.`;
  return `${us.name} is connected to ${counted(connected.length, "peer")}${names}. ${known}`;
}

/** Describes in a sentence from whom most was learnt, since a picture of many has no room for names. */
export function mostUsed(peers) {
  const most = peers.filter(({ used }) => used > 0).sort((one, other) => other.used - one.used);
  if (!most.length) return "Lines are connections. Nothing has been learnt from a peer yet.";
  const named = most.slice(0, 3).map(({ name, used }) => `${name} (${counted(used, "group")})`);
  return `Green: learnt from, the broader the more. Most from ${listed(named)}.`;
}

/** Describes which models are trained, and by how many nodes; a click on one, `chosen`, shows its nodes. */
export function models(nodes, chosen) {
  const counts = new Map();
  for (const { model } of nodes) counts.set(model, (counts.get(model) ?? 0) + 1);
  const ranked = [...counts].sort(([one, some], [other, more]) => more - some || compare(one, other));
  const left = ranked.slice(MODELS);
  const rest = left.reduce((sum, [, count]) => sum + count, 0);
  return element(
    "ul",
    { class: "models" },
    ...ranked.slice(0, MODELS).map(([model, count]) => element("li", {}, entry(model, count, chosen))),
    left.length ? element("li", {}, `${counted(left.length, "other model")} ${number(rest)}`) : null,
  );
}

const entry = (model, count, chosen) =>
  element(
    "button",
    { type: "button", "data-model": model, "aria-pressed": String(model === chosen) },
    `${model} `,
    element("b", {}, number(count)),
  );
