// Makes elements from descriptions, which are plain data. A new description is compared with the former one, never with
// the page itself, and only the differences are applied: selections and scroll positions stay, and nothing is measured.
// Text is inserted as text, never as markup, because strangers wrote much of it.

import { score } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "g", "rect", "path", "circle", "text", "title"]);
const shown = new WeakMap(); // place -> the descriptions of its children

export const $ = (id) => document.getElementById(id);

/** Describes an element, as in element("td", {class: "number"}, "3"). Null attributes and children are left out. */
export function element(tag, attributes = {}, ...children) {
  return {
    tag,
    attributes,
    children: children.filter((child) => child !== null && child !== undefined).map(described),
  };
}

/** Shows `children` in `place`, which no other code may change. */
export function show(place, ...children) {
  const next = children.map(described);
  if (!shown.has(place)) place.replaceChildren(); // removes what the HTML file has there
  agree(place, shown.get(place) ?? [], next);
  shown.set(place, next);
}

const described = (child) => (typeof child === "object" ? child : { text: String(child) });

function agree(place, before, next) {
  next.forEach((wanted, index) => {
    const old = before[index];
    if (old === undefined) place.append(made(wanted));
    else if (old.tag !== wanted.tag) old.node.replaceWith(made(wanted));
    else change(old, wanted);
  });
  for (const old of before.slice(next.length)) old.node.remove();
}

function change(old, wanted) {
  wanted.node = old.node;
  if (wanted.tag === undefined) {
    if (old.text !== wanted.text) wanted.node.data = wanted.text;
    return;
  }
  for (const name in { ...old.attributes, ...wanted.attributes }) {
    const value = wanted.attributes[name] ?? null;
    if (value === (old.attributes[name] ?? null)) continue;
    if (value === null) wanted.node.removeAttribute(name);
    else wanted.node.setAttribute(name, value);
  }
  agree(wanted.node, old.children, wanted.children);
}

function made(wanted) {
  if (wanted.tag === undefined) return (wanted.node = document.createTextNode(wanted.text));
  const { tag, attributes, children } = wanted;
  wanted.node = DRAWN.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const name in attributes) if (attributes[name] !== null) wanted.node.setAttribute(name, attributes[name]);
  wanted.node.append(...children.map(made));
  return wanted.node;
}

/**
 * Describes a table; `columns` are [title, (row) => text, description or null, "number" or ""].
 * On a narrow screen each row becomes a block with the titles before the values.
 */
export function table(columns, rows) {
  const body = rows.map((row) => element("tr", {}, ...cells(columns, row)));
  return element("table", { class: "folding" }, element("thead", {}, head(columns)), element("tbody", {}, ...body));
}

export const head = (columns) =>
  element("tr", {}, ...columns.map(([title, , kind]) => element("th", { class: kind || null, scope: "col" }, title)));

export const cells = (columns, row) =>
  columns.map(([title, of, kind]) => element("td", { class: kind || null, "data-title": title }, of(row)));

export const card = (title, ...inside) => element("div", { class: "card" }, element("h3", {}, title), ...inside);

export const nothing = (why) => element("p", { class: "empty" }, why);

/** Describes a reward from 0 to 1 as a bar with its value. */
export function bar(share) {
  const width = Math.round(Math.max(0, Math.min(1, share)) * 60);
  const drawn = element(
    "svg",
    { class: "bar", width: 60, height: 9, "aria-hidden": "true" },
    element("rect", { width, height: 9, rx: 2 }),
  );
  return element("span", { class: "share" }, drawn, ` ${score(share)}`);
}
