// Draws what a report or a comparison holds: the sentence and the picture of gains, the chart of skills, other charts.

import { draw } from "./charts.js";
import { $, element, show } from "./dom.js";
import { accounts, headline, picture } from "./skills.js";
import { number, score, short, size } from "./text.js";
import { CURVES, showMarks, signsOf, skills } from "./timeline.js";

const FORMATS = { score, size, short };
const { name, gains, history, charts, ended } = JSON.parse($("facts").textContent);
const chosen = { curve: "mean", by: "step" };

if (gains) {
  show($("headline"), ...headline(name, gains, "no round is recorded", ended ? "ended" : "now"));
  show($("skills"), ...picture(gains));
  show($("accounts"), ...accounts(gains));
}

function drawSkills() {
  const { lines, left, marks, moment } = skills(history, chosen.curve, chosen.by);
  draw($("chart-skills"), lines, {
    max: 1,
    by: chosen.by,
    marks,
    moment,
    format: score,
    label: `Reward by task, ${CURVES[chosen.curve].title}`,
  });
  show($("moment"), moment ? moment.text : "");
  showMarks(marks);
  const signs = signsOf(marks).map(([kind, sign, text]) =>
    element("span", {}, element("span", { class: `sign ${kind}`, "aria-hidden": "true" }, sign), ` ${text}`),
  );
  show(
    $("signs"),
    ...signs,
    ...(left ? [element("span", {}, `${number(left)} tasks that changed less are not drawn`)] : []),
  );
}

if (history) {
  drawSkills();
  document.querySelector("[data-curve=heldOut]").hidden = !history.evaluations.time_seconds.length;
  document.addEventListener("click", ({ target }) => {
    const kind = ["curve", "by"].find((each) => target.dataset?.[each]);
    if (!kind) return;
    chosen[kind] = target.dataset[kind];
    for (const each of target.parentElement.children) each.setAttribute("aria-pressed", String(each === target));
    drawSkills();
  });
}

for (const [id, { lines, format, ...options }] of Object.entries(charts))
  draw($(id), lines, { ...options, format: FORMATS[format] });
