"""Made-up answers of the API for pictures of the web page: a run in which peers came, one skill jumped and one was lost.

Every answer has its type of ``node.api.types``, so a change of the API's shapes is found here by the type.
"""

from __future__ import annotations

import math
import random
from typing import Any, Literal, get_args

import msgspec

from node.api.swarm_summary import swarm_answer
from node.api.types import NodeState, NodeStatus
from node.events import Fault, Loading, RoundDone
from scripts.bench.common.simulated_node import ROUND_SECONDS, SimulatedNode

State = Literal["starting", "alone", "running", "ended"]
STATES: tuple[State, ...] = get_args(State)
ROUNDS = 320
CAME = 60  # the round in which peers came
LEFT = 230
NOISE = 0.006


class ShownNode(SimulatedNode):
    """A simulated node whose skills tell the story."""

    alone = False

    def round_done(self, number: int, then_seconds: float, before: RoundDone | None) -> RoundDone:
        done = super().round_done(number, then_seconds, before)
        draws = random.Random(number)
        success = {
            task: min(1.0, max(0.0, value + draws.gauss(0, NOISE)))
            for task, value in skills_at(number, alone=self.alone).items()
        }
        rewards = {task: min(1.0, max(0.0, value + draws.gauss(0, 0.09))) for task, value in success.items()}
        return msgspec.structs.replace(done, success_by_task=success, reward_by_task=rewards)


def rise(number: int, middle: float, width: float, low: float, high: float) -> float:
    return low + (high - low) / (1 + math.exp(-(number - middle) / width))


def skills_at(number: int, *, alone: bool) -> dict[str, float]:
    skills = {
        "spell_backward": rise(number, 40, 18, 0.12, 0.56),
        "fraction_simplification": rise(number, 70, 30, 0.10, 0.44),
        "basic_arithmetic": rise(number, 150, 50, 0.08, 0.31),
        "base_conversion": rise(number, 200, 60, 0.08, 0.17),
        "number_sorting": rise(number, 30, 14, 0.06, 0.76),
        "rotate_matrix": 0.01,
    }
    if not alone:
        skills["rotate_matrix"] = rise(number, CAME + 17, 4, 0.01, 0.93)
        skills["number_sorting"] = min(skills["number_sorting"], rise(number, LEFT + 25, 8, 0.77, 0.11))
    return skills


def made_answers(state: State, peers: int, now_seconds: float) -> dict[str, bytes]:
    """Returns the body of every answer by the last part of its address."""
    alone, rounds = state == "alone", 0 if state == "starting" else ROUNDS
    kind = type("Node", (ShownNode,), {"alone": alone})
    node = kind(now_seconds, peers=0 if alone or state == "starting" else peers, rounds=rounds)
    status = status_of(node.status(), state, now_seconds)
    history = msgspec.to_builtins(node.record.history.answer(points=250))
    history["marks"] = marks(state, now_seconds)
    known = node.peers()
    answers: dict[str, Any] = {
        "status": msgspec.to_builtins(status) | more_status(state),
        "peers": known,
        "swarm": swarm_answer(status, known),
        "rollouts": node.record.rollouts.answer(status, known),
        "history": history,
        "gains": gains(state),
        "samples": samples(state, now_seconds),
        "links": links(node),
    }
    return {name: msgspec.json.encode(answer) for name, answer in answers.items()} | {"join.svg": QR}


def status_of(status: NodeStatus, state: State, now_seconds: float) -> NodeStatus:
    if state == "starting":
        loading = Loading(time_seconds=now_seconds, what="model", seconds=12.3)
        return msgspec.structs.replace(
            status, state=NodeState.STARTING, uptime_seconds=12.0, loading=loading, ready=None, round=None,
            checkpoint=None, averaged=None, evaluated=None, waiting_for="loading the model (12.3 s since the learner started)",
        )  # fmt: skip
    if state == "ended":
        fault = Fault(time_seconds=now_seconds - 900, kind="gradient", detail="not finite", round=290, fatal=False)
        return msgspec.structs.replace(
            status, state=NodeState.STOPPING, waiting_for="stopping: saying goodbye", fault=fault
        )
    if state == "alone":
        assert status.swarm is not None
        because = "no address is known: no --peer, and nobody on the local network; it looks again in 28 s"
        return msgspec.structs.replace(
            status, averaged=None, swarm=msgspec.structs.replace(status.swarm, alone_because=because, connected_peers=0)
        )
    return status


LOSS = {
    "task": "number_sorting", "measured": "practice", "best": 0.76, "best_round": 210, "best_seconds": 1.0, "now": 0.11,
    "fall": 0.65, "since_round": 230, "since_seconds": 1.0, "went_with": ["lark left after round 228"],
    "sentence": "number_sorting fell from 0.76 (round 210) to 0.11 since round 230. Meanwhile: lark left after round 228.",
}  # fmt: skip


def more_status(state: State) -> dict[str, Any]:
    command = "starling up --peer /ip4/192.0.2.7/tcp/4001/p2p/12D3KooWQ8nSrY9vV6oZk1Jm3tB5cXwHq7Lf2DgPuEaRy4TsMzNb"
    join = None if state == "starting" else {"private": False, "commands": [command], "hint": None, "qr": True}
    return {"join": join, "losses": [LOSS] if state in ("running", "ended") else [], "paused": None, "gained": ""}


def marks(state: State, now_seconds: float) -> list[dict[str, Any]]:
    if state == "starting":
        return []
    found = [("start", 1, "the node started"), *(("checkpoint", n, f"checkpoint of round {n}") for n in range(25, 320, 25))]
    if state != "alone":
        found += [("came", CAME, "wren came"), ("came", CAME + 2, "heron came"), ("came", 120, "lark came")]
        found += [("left", 228, "lark left"), ("loss", 250, "number_sorting is being lost")]
        found += [("averaged", n, "averaged with wren") for n in range(80, 320, 40)]
    when = lambda number: now_seconds - (ROUNDS - number) * ROUND_SECONDS  # noqa: E731
    return [
        {"time_seconds": when(n), "until_seconds": when(n), "round": n, "kind": kind, "text": text, "count": 1}
        for kind, n, text in sorted(found, key=lambda mark: mark[1])
    ]


def gains(state: State) -> dict[str, Any]:
    empty: dict[str, Any] = {
        "sentence": "", "how": "", "limits": "", "rounds": 0, "others_since_round": None, "mean_first": None,
        "mean_before": None, "mean_now": None, "from_others": 0.0, "from_itself": 0.0, "not_attributed": 0.0,
        "tasks": [], "peers": [], "peers_left_out": 0, "losses": [],
    }  # fmt: skip
    if state == "starting":
        return empty
    alone = state == "alone"
    first, now = skills_at(1, alone=alone), skills_at(ROUNDS, alone=alone)
    before = first if alone else skills_at(CAME, alone=alone)
    tasks = []
    for task in first:
        gained = now[task] - before[task]
        others = 0.0 if alone else gained * (0.98 if task == "rotate_matrix" else 0.4)
        best = max(skills_at(n, alone=alone)[task] for n in range(1, ROUNDS + 1))
        tasks.append({
            "task": task, "first": first[task], "before": before[task], "now": now[task], "best": best,
            "best_round": 210, "samples": 640, "practised_round": ROUNDS - 1, "from_others": others,
            "from_itself": gained - others, "not_attributed": 0.0,
            "peers": [] if alone else [{"peer": "12D3KooWa", "name": "wren", "gain": others}],
        })  # fmt: skip
    mean = lambda field: sum(task[field] for task in tasks) / len(tasks)  # noqa: E731
    peers = [
        {"peer": "12D3KooWa", "name": "wren", "model": "Qwen/Qwen3-0.6B", "gain": mean("from_others") * 0.8,
         "by_task": {"rotate_matrix": 0.8, "spell_backward": 0.05}, "groups": 412, "last_round": 319},
        {"peer": "12D3KooWb", "name": "heron", "model": "SmolLM2", "gain": mean("from_others") * 0.2,
         "by_task": {"fraction_simplification": 0.08}, "groups": 97, "last_round": 300},
    ]  # fmt: skip
    return empty | {
        "sentence": "Mean reward over 6 tasks rose.", "rounds": ROUNDS, "tasks": tasks, "peers": [] if alone else peers,
        "how": "In each round, the rise of a task's running mean is shared among the groups that the round learnt from.",
        "limits": "It does not say what the node would have learnt without others.",
        "others_since_round": None if alone else CAME, "mean_first": mean("first"), "mean_before": mean("before"),
        "mean_now": mean("now"), "from_others": mean("from_others"), "from_itself": mean("from_itself"),
        "losses": [] if alone else [LOSS],
    }  # fmt: skip


def samples(state: State, now_seconds: float) -> dict[str, Any]:
    if state == "starting":
        return {"round": None, "time_seconds": None, "ours": None, "learnt_from": None, "learnt_round": None, "learnt_seconds": None}
    question = "Rotate the matrix by 90 degrees clockwise:\n1 2 3\n4 5 6\n7 8 9"
    ours = {
        "whose": "ours", "peer": None, "name": None, "model": "Qwen/Qwen3-0.6B", "task": "rotate_matrix",
        "question": question, "expected": "7 4 1\n8 5 2\n9 6 3", "completions": 8, "reward_mean": 0.5,
        "answers": [
            {"text": "7 4 1\n8 5 2\n9 6 3", "cut": False, "reward": 1.0, "right": True},
            {"text": "3 6 9\n2 5 8\n1 4 7", "cut": False, "reward": 0.0, "right": False},
        ],
    }  # fmt: skip
    theirs = ours | {
        "whose": "peer", "peer": "12D3KooWa", "name": "<b>heron</b>", "model": "HuggingFaceTB/SmolLM2-360M",
        "task": "spell_backward", "question": "Spell this word backward (example: sun -> nus): murmuration",
        "expected": "noitarumrum",
        "answers": [{"text": "noitarumrum", "cut": False, "reward": 1.0, "right": True}],
    }  # fmt: skip
    learnt = None if state == "alone" else theirs
    return {"round": ROUNDS, "time_seconds": now_seconds, "ours": ours, "learnt_from": learnt, "learnt_round": ROUNDS - 1, "learnt_seconds": now_seconds}


def links(node: SimulatedNode) -> dict[str, Any]:
    draws, status = random.Random(3), node.status()
    nodes = [{"peer": status.peer, "name": status.name, "model": status.model, "family": "1b" * 16, "ours": True, "connected": False, "claims": True}]
    found = []
    for index, peer in enumerate(node.peers().peers, 1):
        beat = peer.heartbeat
        assert beat is not None
        nodes.append({"peer": peer.peer, "name": beat.name, "model": beat.model, "family": beat.family, "ours": False, "connected": peer.connected, "claims": True})
        if peer.connected:
            found.append([0, index, 0])
        found += [[other, index, draws.choice((1, 2))] for other in range(1, index) if draws.random() < min(0.6, 6 / index)]
    return {"nodes": nodes, "links": found, "nodes_left_out": 0, "links_left_out": 0, "silent": 0}


QR = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><path d="M1 1h2v2H1zM5 1h2v2H5zM1 5h2v2H1z"/></svg>'
