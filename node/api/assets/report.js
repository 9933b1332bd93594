// Draws what a report or a comparison holds: the sentence and the picture of gains, the chart of skills, other charts.

import { draw } from "./charts.js";
import { $, show } from "./dom.js";
import { accounts, headline, picture } from "./skills.js";
import { score, short, size } from "./text.js";
import { drawSkills, news, onChoice } from "./timeline.js";

const FORMATS = { score, size, short };
const { name, gains, history, charts, ended } = JSON.parse($("facts").textContent);
const chosen = { curve: "mean", by: "step" };

if (gains) {
  show($("headline"), ...headline(name, gains, "no round is recorded", { isOver: ended, news: news(history) }));
  show($("skills"), ...picture(gains));
  show($("accounts"), ...accounts(gains));
  $("how").hidden = false;
}

if (history) {
  const drawn = () => drawSkills(history, chosen, gains);
  drawn();
  onChoice(chosen, drawn);
}

for (const [id, { lines, format, ...options }] of Object.entries(charts))
  draw($(id), lines, { ...options, format: FORMATS[format] });
