// Elements from data. Text goes in as text, never as markup: much of it was written by strangers.

export const $ = (id) => document.getElementById(id);

/** element("td", {class: "number"}, "3"): attributes that are null are left out, children are nodes or text. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Shows `children` in `place`. What is there already stays: a selection, a scrolled table, and the work of drawing. */
export function show(place, ...children) {
  agree(place, children);
}

function agree(place, wanted) {
  let shown = place.firstChild;
  for (const next of wanted) {
    if (shown === null) {
      place.append(next);
    } else if (shown.nodeName !== next.nodeName) {
      const old = shown;
      shown = shown.nextSibling;
      old.replaceWith(next);
    } else {
      if (next.nodeType === Node.TEXT_NODE) {
        if (shown.data !== next.data) shown.data = next.data;
      } else {
        agreeOnAttributes(shown, next);
        agree(shown, [...next.childNodes]);
      }
      shown = shown.nextSibling;
    }
  }
  while (shown !== null) {
    const old = shown;
    shown = shown.nextSibling;
    old.remove();
  }
}

function agreeOnAttributes(shown, next) {
  for (const name of shown.getAttributeNames()) if (!next.hasAttribute(name)) shown.removeAttribute(name);
  for (const { name, value } of next.attributes) if (shown.getAttribute(name) !== value) shown.setAttribute(name, value);
}

/**
 * A table; `columns` are [title, (row) => text, node or null, "number" or ""].
 * On a narrow screen each row becomes a block with the titles before the values.
 */
export function table(columns, rows, rowClass = () => null) {
  const head = columns.map(([title, , kind]) => element("th", { class: kind || null, scope: "col" }, title));
  const body = rows.map((row) => {
    const cells = columns.map(([title, of, kind]) => element("td", { class: kind || null, "data-title": title }, of(row)));
    return element("tr", { class: rowClass(row) }, ...cells);
  });
  const whole = [element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body)];
  return element("table", { class: "folding" }, ...whole);
}

export const nothing = (why) => element("p", { class: "empty" }, why);

/** A share of 1 as a bar with its percentage. Widths are set through the style object, which the CSP allows. */
export function bar(share) {
  const drawn = element("span", { class: "bar", "aria-hidden": "true" });
  drawn.style.width = `${Math.round(Math.max(0, Math.min(1, share)) * 60)}px`;
  return element("span", { class: "share" }, drawn, ` ${percent(share)}`);
}

export const percent = (share) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(0)} %`);

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (bytes < 1000) return `${bytes < 10 && unit !== "B" ? bytes.toFixed(1) : Math.round(bytes)} ${unit}`;
    bytes /= 1000;
  }
  return `${bytes.toFixed(1)} TB`;
}

export function number(value, digits = 0) {
  if (value === null || value === undefined) return "–";
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function ago(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} d`;
}
