// A question of the current round with this model's answers, and an answer of a peer that was learnt from. Pure
// functions. Questions and answers are text of models and of strangers: they are inserted as text alone, and a
// stranger's stand in a frame that says whose they are and that only this page draws.

import { element } from "./dom.js";
import { counted, number, score } from "./text.js";

const SHOWN = 4; // answers

export function samples(answer) {
  const { ours, learnt_from: theirs, refused } = answer;
  if (refused) return [element("p", { class: "empty" }, refused)];
  if (!ours && !theirs) return [element("p", { class: "empty" }, "The first round has not been scored yet.")];
  return [ours ? own(ours, answer.round) : null, theirs ? foreign(theirs, answer.learnt_round) : null].filter(
    (part) => part !== null,
  );
}

function own(group, round) {
  const right = `${counted(group.completions, "answer")}, mean reward ${score(group.reward_mean)}`;
  return element(
    "div",
    { class: "sample own" },
    element("p", { class: "whose" }, `${group.model} in round ${number(round)}: ${group.task}; ${right}`),
    ...inside(group),
  );
}

function foreign(group, round) {
  const by = group.name || `${group.peer.slice(0, 8)}…`;
  const title = element(
    "figcaption",
    {},
    element("strong", {}, "A stranger's answer"),
    ` that this node learnt from in round ${number(round)}`,
  );
  const who = element(
    "p",
    { class: "whose" },
    `It calls itself ${by}, its model ${group.model || "unknown"}. The question (${group.task}) was made here, and its answers were scored here.`,
  );
  return element("figure", { class: "sample foreign" }, title, who, ...inside(group));
}

/** The expected answer stands there where no answer that is shown is right. */
function inside({ question, expected, answers }) {
  const shown = answers.slice(0, SHOWN);
  return [
    element("pre", { class: "question", dir: "auto", tabindex: 0, "aria-label": "question" }, question),
    element("ul", { class: "answers" }, ...shown.map(one)),
    expected && !shown.some(({ right }) => right)
      ? element("div", { class: "expected" }, "Expected:", element("pre", { dir: "auto" }, expected))
      : null,
  ];
}

function one({ text, cut, reward, right }) {
  const verdict = right ? "right" : "wrong";
  return element(
    "li",
    { class: verdict },
    element(
      "span",
      { class: "verdict" },
      element("span", { "aria-hidden": "true" }, right ? "✓ " : "✗ "),
      `${verdict}, ${score(reward)}`,
    ),
    element("pre", { dir: "auto" }, text === "" ? "(no text)" : `${text}${cut ? " …" : ""}`),
  );
}
