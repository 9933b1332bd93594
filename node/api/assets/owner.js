// The buttons that change the node: pause, resume, stop. Each needs the token of HOME/api.token, which the page takes
// from the link in the owner's terminal or asks for once, and forgets when it is closed.

import { $, element, show } from "./dom.js";

const ACTIONS = {
  pause: {
    title: "Pause",
    does: "The node finishes its step, saves a checkpoint and leaves the machine to you until it is resumed. Peers stay connected.",
    done: "pausing",
  },
  resume: { title: "Resume", does: "The node goes on learning.", done: "resuming" },
  stop: {
    title: "Stop",
    does: "The node finishes its step, saves a checkpoint, says goodbye to its peers and ends.",
    done: "stopping",
  },
};

// What was asked for has come about, so that the page need not say that it is under way.
const REACHED = { pause: (status) => status.paused, resume: (status) => !status.paused, stop: () => false };

let token = tokenOfLink();
let action = null;
let asked = null; // the last action that the node has taken on
let home = "HOME";
let answering = false; // this node, and no other in its place

/** Takes the token out of the address, so that neither a bookmark nor a copied address has it. */
function tokenOfLink() {
  const found = /^#token=([\w-]+)$/.exec(location.hash);
  if (found) history.replaceState(null, "", location.pathname);
  return found && found[1];
}

/** Shows the buttons that fit the status. A node that cannot pause does not say whether it is paused. */
export function showButtons(status, live) {
  home = status.home;
  answering = live;
  if (asked && REACHED[asked](status)) {
    asked = null;
    show($("told"));
  }
  const able = live && status.state !== "stopping";
  const pausable = "paused" in status ? (status.paused ? "resume" : "pause") : null;
  for (const name of ["pause", "resume", "stop"]) $(name).hidden = !able || (name !== "stop" && name !== pausable);
}

async function ask(name) {
  action = name;
  const { title, does } = ACTIONS[name];
  show($("ask-title"), `${title} this node?`);
  show($("ask-text"), does);
  show($("ask-where"), "Only its owner may: the token is the text of ", element("code", {}, `${home}/api.token`), ".");
  show($("ask-failed"));
  $("ask-do").textContent = title;
  $("ask-token").value = token ?? "";
  $("ask-token-part").hidden = token !== null;
  $("ask").showModal();
  (token === null ? $("ask-token") : $("ask-do")).focus();
}

async function act() {
  const given = $("ask-token").value.trim();
  if (!given) return fail("Paste the token first.");
  if (!answering) return fail("The node does not answer.");
  let response;
  try {
    response = await fetch(`/api/v1/${action}`, { method: "POST", headers: { Authorization: `Bearer ${given}` } });
  } catch {
    return fail("The node does not answer.");
  }
  if (response.ok) {
    token = given;
    asked = action;
    show($("told"), `The node is ${ACTIONS[action].done}.`);
    $("ask").close();
    return null;
  }
  if (response.status === 401) {
    token = null;
    $("ask-token-part").hidden = false;
    return fail("That is not this node's token.");
  }
  const answer = await response.json().catch(() => ({}));
  return fail(answer.error ?? `The node refused (${response.status}).`);
}

const fail = (text) => show($("ask-failed"), text);

for (const name of Object.keys(ACTIONS)) $(name).addEventListener("click", () => ask(name));
$("ask-cancel").addEventListener("click", () => $("ask").close());
$("ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  act();
});
