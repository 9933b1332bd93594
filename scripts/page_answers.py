"""Made-up answers of the API, for pictures and tests of the web page: a run in which peers came, one skill jumped and
one was lost.

Every answer is of its type in ``node.api.types``, so the type checker finds a change of the API's shapes here.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import msgspec
from msgspec.structs import replace

from node.api.gains import beyond_chance
from node.api.gains_words import HOW, LIMITS
from node.api.swarm_summary import swarm_answer
from node.api.types import (
    GainsAnswer,
    JoinLine,
    Link,
    LinkNode,
    LinksAnswer,
    Loss,
    Mark,
    NodeState,
    NodeStatus,
    PeerGain,
    PeerShare,
    SampleAnswer,
    SampleGroup,
    SamplesAnswer,
    TaskGain,
)
from node.events import (
    DeviceUsage,
    DonorShare,
    DonorsShared,
    Fault,
    Loading,
    RoundDone,
    StageAway,
    StageHeld,
    StagesHeld,
)
from node.tasks.catalogue import JudgedAnswer
from node.trying.tried import Answer, Tried
from scripts.bench.common.simulated_node import ROUND_SECONDS, SimulatedNode

State = Literal["starting", "alone", "running", "ended"]
STATES: tuple[State, ...] = get_args(State)
ROUNDS = 320
CAME = 60  # the round in which peers came
LEFT = 230
PAUSED = 150
PAUSE_SECONDS = 900.0
NOISE = 0.006
ERROR = 0.04  # of a mean over all tasks, by chance
LINKS_EACH = 6  # connections that a node has on average to those before it


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
        return replace(done, success_by_task=success, reward_by_task=rewards, time_seconds=at(number, then_seconds))


def at(number: int, then_seconds: float) -> float:
    """Returns when a round ended: the node rested for a while before the later ones."""
    return then_seconds - (PAUSE_SECONDS if number <= PAUSED else 0.0)


def rise(number: int, middle: float, width: float, low: float, high: float) -> float:
    return low + (high - low) / (1 + math.exp(-(number - middle) / width))


def skills_at(number: int, *, alone: bool) -> dict[str, float]:
    skills = {
        "spell_backward": rise(number, 40, 18, 0.12, 0.56),
        "fraction_simplification": rise(number, 70, 30, 0.10, 0.44),
        "basic_arithmetic": rise(number, 150, 50, 0.08, 0.31),
        "number_filtering": rise(number, 200, 60, 0.08, 0.17),
        "number_sorting": rise(number, 30, 14, 0.06, 0.76),
        "rotate_matrix": 0.01,
    }
    if not alone:
        skills["rotate_matrix"] = rise(number, CAME + 17, 4, 0.01, 0.93)
        skills["number_sorting"] = min(skills["number_sorting"], rise(number, LEFT + 25, 8, 0.77, 0.11))
    return skills


def made_answers(state: State, peers: int, now_seconds: float) -> dict[str, bytes]:
    """Returns the body of every answer by the last part of its address."""
    is_alone, rounds = state == "alone", 0 if state == "starting" else ROUNDS
    kind = type("Node", (ShownNode,), {"alone": is_alone})
    node = kind(now_seconds, peers=0 if is_alone or state == "starting" else peers, rounds=rounds)
    status, known = status_of(node.status(), state, now_seconds), node.peers()
    history = replace(node.record.history.answer(points=250), marks=marks(state, now_seconds))
    answers: Mapping[str, object] = {
        # A node that can pause says so, whether it is paused or not.
        "status": msgspec.to_builtins(status) | {"paused": None},
        "peers": known,
        "swarm": swarm_answer(status, known),
        "rollouts": node.record.rollouts.answer(status, known),
        "history": history,
        "gains": gains(state, now_seconds),
        "samples": samples(state, now_seconds),
        "links": links(node),
        "try": tried(),
    }
    return {name: msgspec.json.encode(answer) for name, answer in answers.items()} | {"join.svg": QR}


def status_of(status: NodeStatus, state: State, now_seconds: float) -> NodeStatus:
    if state == "starting":
        return replace(
            status,
            state=NodeState.STARTING,
            uptime_seconds=12.0,
            loading=Loading(time_seconds=now_seconds, what="model", seconds=12.3),
            ready=None,
            round=None,
            checkpoint=None,
            averaged=None,
            waiting_for="loading the model (12.3 s since the learner started)",
        )
    assert status.usage is not None
    device = DeviceUsage("NVIDIA H100 80GB HBM3", 61_000_000_000, 85_000_000_000, 0.93, 412.3, 700.0)
    status = replace(status, usage=replace(status.usage, device=device))
    status = replace(
        status, join=JoinLine(False, (COMMAND,), None, True), losses=() if state == "alone" else (loss(now_seconds),)
    )
    if state == "ended":
        fault = Fault(time_seconds=now_seconds - 900, kind="gradient", detail="not finite", round=290, fatal=False)
        return replace(status, state=NodeState.STOPPING, waiting_for="stopping: saying goodbye", fault=fault)
    if state == "alone":
        assert status.swarm is not None
        because = "no address is known: no --peer, and nobody on the local network; it looks again in 28 s"
        swarm = replace(status.swarm, alone_because=because, connected_peers=0)
        return replace(status, averaged=None, swarm=swarm)
    return replace(status, donors=donors_of(now_seconds), stages=stages_of(now_seconds))


def donors_of(now_seconds: float) -> DonorsShared:
    """Two donors: one generates half of a round, the other one was lost in it."""
    attic = DonorShare(
        peer="12D3KooWAttic",
        name="attic",
        state="generated",
        groups=8,
        groups_done=7,
        tokens=9_120,
        tokens_per_second=2_310.0,
        share=0.48,
        setup_seconds=1.9,
        tokens_total=812_300,
        because="",
    )
    cellar = replace(attic, peer="12D3KooWCellar", name="", state="lost", groups=4, tokens=0, because="cut off")
    return DonorsShared(
        time_seconds=now_seconds, groups=16, own_groups=4, tokens=19_000, seconds=4.1, donors=(attic, cellar)
    )


def stages_of(now_seconds: float) -> StagesHeld:
    """Two machines with layers: one computes, the other one is away."""
    attic = StageHeld(
        first=3,
        last=14,
        peer="12D3KooWAttic",
        name="attic",
        because="",
        expected_bytes=1_310_000_000,
        sent_bytes=412_000_000,
        received_bytes=408_000_000,
        computed_tokens=230_000,
        computed_seconds=610.0,
        checked_seconds=now_seconds - 400.0,
        off=0.07,
    )
    cellar = replace(attic, first=14, last=24, peer="", name="", because="it said nothing for 30 s")
    return StagesHeld(
        time_seconds=now_seconds,
        wanted=2,
        connected=1,
        own_layers=3,
        stages=(attic, cellar),
        waits="1 of 2 machines is here",
        away=(StageAway("12D3KooWCellar", "cellar", now_seconds - 45.0, cellar.because),),
        because="layers by speed",
    )


COMMAND = "starling up --peer /ip4/192.0.2.7/tcp/4001/p2p/12D3KooWQ8nSrY9vV6oZk1Jm3tB5cXwHq7Lf2DgPuEaRy4TsMzNb"
QR = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><path d="M1 1h2v2H1zM5 1h2v2H5zM1 5h2v2H1z"/></svg>'


def loss(now_seconds: float) -> Loss:
    return Loss(
        task="number_sorting",
        measured="practice",
        best=0.76,
        best_round=210,
        best_seconds=ended(210, now_seconds),
        now=0.11,
        fall=0.65,
        since_round=LEFT,
        since_seconds=ended(LEFT, now_seconds),
        went_with=("lark left after round 228",),
        sentence="number_sorting fell from 0.76 (round 210) to 0.11 since round 230. Meanwhile: lark left after 228.",
    )


def marks(state: State, now_seconds: float) -> tuple[Mark, ...]:
    if state == "starting":
        return ()
    found = [("start", 1, "the run began")]
    found += [("checkpoint", number, f"checkpoint of round {number}") for number in range(25, ROUNDS, 25)]
    found += [("paused", PAUSED, "paused"), ("restart", PAUSED + 1, "the learner started again")]
    found += [("best", 215, "best checkpoint: round 215, 0.51 on held-out prompts")]
    if state != "alone":
        found += [("taken_back", 300, "an averaging with wren was taken back")]
        found += [("came", CAME, "wren came"), ("came", CAME + 2, "heron came"), ("came", 120, "lark came")]
        found += [("left", 228, "lark left"), ("loss", 250, "lost: number_sorting")]
        found += [("averaged", number, "weights averaged with wren") for number in range(80, ROUNDS, 40)]
    return tuple(
        Mark(then_seconds := ended(number, now_seconds), then_seconds, number, kind, text, 1)
        for kind, number, text in sorted(found, key=lambda mark: mark[1])
    )


def ended(number: int, now_seconds: float) -> float:
    return at(number, now_seconds - (ROUNDS - number) * ROUND_SECONDS)


def tried() -> Tried:
    def answer(name: str, number: int, text: str, reward: float) -> Answer:
        judged = JudgedAnswer(reward, text, "the whole text", None)
        return Answer(name, number, name if number else None, text, 12, True, judged, reward >= 0.5)

    question, right = "Rotate the matrix by 90 degrees clockwise:\n1 2 3\n4 5 6\n7 8 9", "7 4 1\n8 5 2\n9 6 3"
    answers = answer("base", 0, "1 2 3\n4 5 6\n7 8 9", 0.0), answer("round 320", ROUNDS, right, 1.0)
    return Tried(question, "rotate_matrix", 17, right, answers)


def gains(state: State, now_seconds: float) -> GainsAnswer:
    tasks = (
        ()
        if state == "starting"
        else tuple(task_gain(task, alone=state == "alone") for task in skills_at(1, alone=True))
    )
    if not tasks:
        return GainsAnswer("", HOW, LIMITS, 0, None, None, None, None, 0.0, 0.0, 0.0, (), (), 0, ())
    is_alone = state == "alone"
    others = mean(task.from_others for task in tasks)
    wren = {"rotate_matrix": 0.8, "spell_backward": 0.05}
    peers = (
        PeerGain("12D3KooWa", "wren", "Qwen/Qwen3-0.6B", 0.8 * others, wren, 412, 319),
        PeerGain("12D3KooWb", "heron", "SmolLM2", 0.2 * others, {"fraction_simplification": 0.08}, 97, 300),
    )
    return GainsAnswer(
        sentence="Mean reward over 6 tasks rose.",
        how=HOW,
        limits=LIMITS,
        rounds=ROUNDS,
        others_since_round=None if is_alone else CAME,
        mean_first=mean(task.first for task in tasks),
        mean_before=mean(task.before for task in tasks),
        mean_now=mean(task.now for task in tasks),
        from_others=others,
        from_itself=mean(task.from_itself for task in tasks),
        not_attributed=0.0,
        tasks=tasks,
        peers=() if is_alone else peers,
        peers_left_out=0,
        losses=() if is_alone else (loss(now_seconds),),
        error=ERROR,
        change=beyond_chance(mean(task.now - (task.first if is_alone else task.before) for task in tasks), ERROR**2),
    )


def mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def task_gain(task: str, *, alone: bool) -> TaskGain:
    first, now = skills_at(1, alone=alone)[task], skills_at(ROUNDS, alone=alone)[task]
    before = now if alone else skills_at(CAME, alone=alone)[task]  # as a node answers that learnt from nobody else
    others = 0.0 if alone else (now - before) * (0.98 if task == "rotate_matrix" else 0.4)
    return TaskGain(
        task=task,
        first=first,
        before=before,
        now=now,
        best=max(skills_at(number, alone=alone)[task] for number in range(1, ROUNDS + 1)),
        best_round=210,
        samples=640,
        practised_round=ROUNDS - 1,
        from_others=others,
        from_itself=now - before - others,
        not_attributed=0.0,
        peers=() if alone else (PeerShare("12D3KooWa", "wren", others),),
        change=beyond_chance(now - (first if alone else before), ERROR**2),
    )


def samples(state: State, now_seconds: float) -> SamplesAnswer:
    if state == "starting":
        return SamplesAnswer(None, None, None, None, None, None)
    ours = SampleGroup(
        whose="ours",
        peer=None,
        name=None,
        model="Qwen/Qwen3-0.6B",
        task="rotate_matrix",
        question="Rotate the matrix by 90 degrees clockwise:\n1 2 3\n4 5 6\n7 8 9",
        expected="7 4 1\n8 5 2\n9 6 3",
        answers=(
            SampleAnswer("7 4 1\n8 5 2\n9 6 3", cut=False, reward=1.0, right=True),
            SampleAnswer("3 6 9\n2 5 8\n1 4 7", cut=False, reward=0.0, right=False),
        ),
        completions=8,
        reward_mean=0.5,
    )
    theirs = SampleGroup(
        whose="peer",
        peer="12D3KooWa",
        name="<b>heron</b>",
        model="HuggingFaceTB/SmolLM2-360M",
        task="spell_backward",
        question="Spell this word backward (example: sun -> nus): murmuration",
        expected="noitarumrum",
        answers=(SampleAnswer("noitarumrum", cut=False, reward=1.0, right=True),),
        completions=8,
        reward_mean=0.75,
    )
    learnt = None if state == "alone" else theirs
    return SamplesAnswer(ROUNDS, now_seconds, ours, learnt, ROUNDS - 1, now_seconds)


def links(node: SimulatedNode) -> LinksAnswer:
    draws, status = random.Random(3), node.status()
    nodes = [LinkNode(status.peer, status.name, status.model, "1b" * 16, ours=True, connected=False, claims=True)]
    found = []
    for index, peer in enumerate(node.peers().peers, 1):
        beat = peer.heartbeat
        assert beat is not None
        nodes.append(LinkNode(peer.peer, beat.name, beat.model, beat.family, False, peer.connected, True))
        if peer.connected:
            found.append(Link(0, index, 0))
        near = (other for other in range(1, index) if draws.random() < min(0.6, LINKS_EACH / index))
        found += [Link(other, index, draws.choice((1, 2))) for other in near]
    return LinksAnswer(tuple(nodes), tuple(found), 0, 0, 0)
