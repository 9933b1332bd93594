// Figures as text, in one format wherever the page shows them: a point before decimals, a narrow space between
// thousands, never a comma. A value that is not known is a dash.

const NARROW = "\u202f"; // a narrow space that does not break
const DASH = "–";
const formats = new Map(); // making a format takes longer than using it a thousand times

const absent = (value) => value === null || value === undefined || Number.isNaN(value);

export function number(value, digits = 0) {
  if (absent(value)) return DASH;
  if (!formats.has(digits)) {
    formats.set(digits, new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  }
  return formats.get(digits).format(value).replaceAll(",", NARROW).replace("-", "−");
}

/** A reward or another value from 0 to 1. */
export const score = (value) => number(value, 2);

/** A change of a reward, with its sign. */
export const change = (value) =>
  absent(value) ? DASH : `${value >= 0.005 ? "+" : value <= -0.005 ? "−" : "±"}${number(Math.abs(value), 2)}`;

export const percent = (share) => (absent(share) ? DASH : `${number(100 * share)} %`);

export function size(bytes) {
  if (absent(bytes)) return DASH;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(bytes) < 999.5) return `${number(bytes, bytes < 9.95 && unit !== "B" ? 1 : 0)} ${unit}`;
    bytes /= 1000;
  }
  return `${number(bytes, 1)} TB`;
}

export function ago(seconds) {
  if (absent(seconds)) return DASH;
  if (seconds < 60) return `${number(Math.max(0, seconds))} s`;
  if (seconds < 3600) return `${number(seconds / 60)} min`;
  return seconds < 172800 ? `${number(seconds / 3600, 1)} h` : `${number(seconds / 86400)} d`;
}

/** A time of day, 24 hours, by the reader's clock. */
export function clock(seconds, { withSeconds = false, withDay = false } = {}) {
  const at = new Date(1000 * seconds);
  const two = (value) => String(value).padStart(2, "0");
  const day = withDay ? `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}` : "";
  const time = `${two(at.getHours())}:${two(at.getMinutes())}${withSeconds ? `:${two(at.getSeconds())}` : ""}`;
  return day ? `${day} ${time}` : time;
}

/** Formats a value of an axis with three digits; k, M and G stand for thousands. */
export function short(value) {
  if (absent(value)) return DASH;
  for (const [unit, name] of [
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    if (Math.abs(value) >= unit) return `${Number((value / unit).toPrecision(3))} ${name}`;
  }
  return `${Number(value.toPrecision(3))}`;
}

/** "a", "a and b", "a, b and c"; beyond `most` names, the count of the others. */
export function listed(names, most = 3) {
  const shown = names.slice(0, most);
  const left = names.length - shown.length;
  const all = left ? [...shown, `${number(left)} more`] : shown;
  return all.length < 2 ? all.join("") : `${all.slice(0, -1).join(", ")} and ${all.at(-1)}`;
}

export const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
