// What only the owner may do: pause, resume and stop the node, and whatever else needs the token of HOME/api.token. The
// page takes the token from the link in the owner's terminal or asks for it once, and forgets it when it is closed.

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
let asked = null; // the last action that the node has taken on
let home = "HOME";
let answering = false; // this node, and no other in its place
let agreed = null; // what the dialog that is open resolves

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

/**
 * Sends a request with the token, which the page asks for where it has none. With `confirm` it asks in any case, and again
 * where the request fails. Returns {answer}, {failed: why}, or null where the reader cancels.
 */
export async function sent(address, { title, does, button, confirm = false, body }) {
  for (let why = "", asks = confirm; ; asks = confirm) {
    if ((asks || token === null) && !(await agree({ title, does, button }, why))) return null;
    const [status, answer] = await post(address, body);
    if (status === 200) return { answer };
    if (status === 401) token = null;
    why = status === 401 ? "That is not this node's token." : (answer.error ?? `The node refused (${status}).`);
    if (status !== 401 && !confirm) return { failed: why };
  }
}

async function post(address, body) {
  const unheard = [0, { error: "The node does not answer." }];
  if (!answering) return unheard;
  try {
    const headers = { Authorization: `Bearer ${token}` };
    const response = await fetch(`/api/v1/${address}`, { method: "POST", headers, body: body && JSON.stringify(body) });
    return [response.status, await response.json().catch(() => ({}))];
  } catch {
    return unheard;
  }
}

/** Opens the dialog, and returns whether the reader agrees; then the token is known. */
function agree({ title, does, button }, why) {
  show($("ask-title"), title);
  show($("ask-text"), does);
  show($("ask-where"), "Only its owner may: the token is the text of ", element("code", {}, `${home}/api.token`), ".");
  show($("ask-failed"), why);
  $("ask-do").textContent = button;
  $("ask-token-part").hidden = token !== null;
  $("ask").showModal();
  (token === null ? $("ask-token") : $("ask-do")).focus();
  return new Promise((resolve) => {
    agreed = resolve;
  });
}

async function act(name) {
  const { title, does, done } = ACTIONS[name];
  if (!(await sent(name, { title: `${title} this node?`, does, button: title, confirm: true }))) return;
  asked = name;
  show($("told"), `The node is ${done}.`);
}

for (const name of Object.keys(ACTIONS)) $(name).addEventListener("click", () => act(name));
$("ask-cancel").addEventListener("click", () => {
  agreed(false);
  $("ask").close();
});
$("ask").addEventListener("cancel", () => agreed(false));
$("ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token ??= $("ask-token").value.trim() || null;
  if (token === null) return show($("ask-failed"), "Paste the token first.");
  agreed(true);
  return $("ask").close();
});
