// Asks the model a question, by the owner's token: the answers before training and of a checkpoint, side by side.

import { $, element, show } from "./dom.js";
import { sent } from "./owner.js";
import { capital, counted, number, score } from "./text.js";

const ORDER = {
  title: "Ask the model",
  does: "The base model and a checkpoint answer on this machine, in a process of their own behind the learner.",
  button: "Ask",
};

let asking = false;
let asked = false; // the reader has chosen
const tallies = {}; // of each task, {model: [right, asked]}

/** Offers the tasks of the node, and says what an open question waits for. */
export function showTrying({ ready, trying, state }, live, gains) {
  const changed = [...(gains?.tasks ?? [])].sort((one, other) => (other.change ?? 0) - (one.change ?? 0));
  const tasks = [...new Set([...changed.map(({ task }) => task), ...(ready?.tasks ?? [])])]; // what was learnt first
  $("try").hidden = !tasks.length || (!live && !$("tried").hasChildNodes());
  const before = $("try-task").value;
  const options = tasks.map((task) => element("option", { value: task }, `a question of ${task}`));
  show($("try-task"), ...options, element("option", { value: "" }, "my own question"));
  if (asked) $("try-task").value = before; // the reader's choice stays, whatever comes first now
  $("try-own").hidden = $("try-task").value !== "";
  $("try-do").disabled = asking || !live || state === "stopping";
  if (asking) show($("try-doing"), `${capital(trying ?? "asking")} …`);
}

async function ask() {
  const task = $("try-task").value;
  const text = task || $("try-text").value.trim();
  if (!text) return show($("try-doing"), "Write a question first.");
  asking = asked = $("try-do").disabled = true;
  show($("try-doing"));
  const body = { text, of_task: task !== "", checkpoint: $("try-checkpoint").value };
  const result = await sent("try", { ...ORDER, body });
  asking = $("try-do").disabled = false;
  show($("try-doing"), result?.failed ?? "");
  if (result?.answer) show($("tried"), ...tried(result.answer));
  return null;
}

function tried({ question, task, right_answer: expected, answers }) {
  const isJudged = answers.some(({ judged }) => judged !== null);
  if (isJudged) for (const answer of answers) count(task, answer);
  return [
    element("pre", { class: "question", dir: "auto", tabindex: 0, "aria-label": "question" }, question),
    element("div", { class: "beside" }, ...answers.map(one)),
    answers.length < 2 ? element("p", { class: "aside" }, "There is no checkpoint yet, so only the base model answers.") : null,
    expected && !answers.some(({ right }) => right) ? element("p", { class: "aside" }, `Expected: ${expected}`) : null,
    isJudged ? element("p", { class: "aside" }, `So far of ${task}: ${soFar(tallies[task])}.`) : null,
  ].filter((part) => part !== null);
}

const named = ({ checkpoint, round }) => (checkpoint === null ? "before training" : `after ${counted(round, "round")}`);

function one(answer) {
  const { text, judged, ended, tokens } = answer;
  const said = text.trim() === "" ? "(no text)" : text;
  return element(
    "figure",
    { class: answer.right ? "right" : null },
    element("figcaption", {}, element("strong", {}, named(answer)), judged ? ` ${verdict(answer)}` : ""),
    element("pre", { dir: "auto", tabindex: 0, "aria-label": `answer ${named(answer)}` }, ended ? said : `${said} … (cut after ${counted(tokens, "token")})`),
    judged?.fault ? element("p", { class: "warn" }, judged.fault) : null,
  );
}

const verdict = (answer) => `${answer.right ? "✓ right" : "✗ wrong"}, ${score(answer.judged.reward)}`;

function count(task, answer) {
  const tally = ((tallies[task] ??= {})[named(answer)] ??= [0, 0]);
  tally[0] += answer.right;
  tally[1] += 1;
}

const soFar = (tally) =>
  Object.entries(tally)
    .map(([model, [right, all]]) => `${model} ${number(right)} of ${number(all)} right`)
    .join(", ");

$("try-task").addEventListener("change", ({ target }) => {
  asked = true;
  $("try-own").hidden = target.value !== "";
});
$("try-form").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
