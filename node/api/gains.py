"""What a node can do now, what it could before, and what it has from whom: an attribution from the record of a run.

For each task, with M its smoothed success (``node.api.losses``) and, of every source p (own groups, each peer),

    pool_p ← λ pool_p + mass_p          mass_p: Σ count · |A| · tokens of p's groups of this task in a round
    gain_p += ΔM · pool_p / Σ_q pool_q  ΔM: the change of M in a round, pool: before what that round learnt

once a round in which the task was practised, with the same λ by which M forgets. A round's own completions are written
by the weights from before its step, so its ΔM is shared over what earlier rounds learnt. Everything adds up: Σ_p gain_p
plus what is not attributed is M now minus M before. Falls are shared out like rises. Where the newest group of the task
was learnt from more than ``POOL_ROUNDS`` rounds of it ago, ΔM is counted to nobody.

This is an attribution, no experiment: it does not know what the node would have learnt alone. ``gains_words``
says so to people. Only ``Attribution`` has state; its memory is bounded, whatever names peers take.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from node.api.gains_words import HOW, OTHERS, SMALL, gains_sentence, limits_of, turns_words
from node.api.losses import DECAY, MAX_LOSSES, Smoothed
from node.api.types import GainsAnswer, Loss, PeerGain, PeerShare, TaskGain
from node.events import BaselineMeasured, NamedPeer, RoundDone, TurnsUsed
from node.printable import printable
from protocol.limits import NAME_BYTES

MAX_TASKS: Final = 64  # of one run; the first that it practised
MAX_PEERS: Final = 64  # listed
MAX_SOURCES: Final = 256  # of one task; the one with the least pool makes room, under ``OTHERS``
MAX_PEERS_KNOWN: Final = 1024  # counts and names; the one heard of longest ago makes room
MAX_PEERS_OF_TASK: Final = 8
MAX_TASKS_OF_PEER: Final = 16
FIRST_ROUNDS: Final = 5  # of a task, which are too uncertain to be its best
POOL_ROUNDS: Final = 30  # of the task; .9^30: four parts in a hundred of what M remembers are older
SIGMAS: Final = 2.0  # of its error by chance: a smaller change is called none
OWN: Final = "self"
TRAINED_ON: Final = ("used", "replayed")


@dataclass(slots=True)
class _OfTask:
    """One task over the rounds of a run."""

    smoothed: Smoothed = field(default_factory=Smoothed)
    first: float = 0.0
    first_squared_error: float = 0.0
    before: float = 0.0  # M when gains began to be counted
    before_squared_error: float = 0.0
    best: float = -math.inf
    best_round: int = 0
    samples: int = 0
    practised_round: int = 0
    pool: dict[str, float] = field(default_factory=dict)
    idle_rounds: int = 0  # of the task, since a group of it was learnt from
    gains: dict[str, float] = field(default_factory=dict)
    turns: dict[int, TurnsUsed] = field(default_factory=dict)  # of conversations
    not_attributed: float = 0.0

    def changed(self, *, alone: bool) -> tuple[float, float]:
        """Returns M now minus M before, or minus the first M while alone, and the variance of that by chance."""
        before, squared_error = (
            (self.first, self.first_squared_error) if alone else (self.before, self.before_squared_error)
        )
        return self.smoothed.mean - before, squared_error + self.smoothed.squared_error


@dataclass(slots=True)
class _OfPeer:
    groups: int = 0  # times that one was learnt from
    last_round: int = 0


class Attribution:
    """Collects rounds and answers with gains. Not for concurrent use."""

    def __init__(self) -> None:
        self.tasks: dict[str, _OfTask] = {}
        self.rounds = 0
        self.others_since_round: int | None = None
        self._peers: OrderedDict[str, _OfPeer] = OrderedDict()

    def add_round(self, done: RoundDone) -> None:
        self.rounds += 1
        for task, reward in sorted(done.reward_by_task.items()):
            if task in self.tasks or len(self.tasks) < MAX_TASKS:
                self._practised(task, reward, done)
        masses = {
            task: {peer: mass for peer, mass in by_peer.items() if math.isfinite(mass) and mass > 0}
            for task, by_peer in done.gradient_mass_by_task.items()
        }
        if self.others_since_round is None and any(set(by_peer) - {OWN} for by_peer in masses.values()):
            self._begin(done.round)
        for task, by_peer in masses.items():
            if task in self.tasks:
                _learnt(self.tasks[task], by_peer)
        for peer in {peer for by_peer in masses.values() for peer in by_peer} - {OWN, OTHERS}:
            self._of_peer(peer).last_round = done.round

    def add_baseline(self, measured: BaselineMeasured) -> None:
        """Takes what the node could before its first step; without one, each task's first round stands for it."""
        for task, reward in sorted(measured.reward_by_task.items())[:MAX_TASKS]:
            if task in self.tasks or not math.isfinite(reward):
                continue
            smoothed = Smoothed.measured(reward, max(1, measured.prompts))
            error = smoothed.squared_error
            self.tasks[task] = _OfTask(smoothed, reward, error, reward, error)

    def add_groups(self, by_peer: Mapping[str, Mapping[str, int]]) -> None:
        """Takes the outcomes of one round's foreign groups, counted by peer."""
        for peer, outcomes in by_peer.items():
            count = sum(outcomes.get(outcome, 0) for outcome in TRAINED_ON)
            if count:
                self._of_peer(peer).groups += count

    def answer(
        self, losses: Sequence[Loss], names: Mapping[str, NamedPeer], *, averagings: int, from_peers: bool
    ) -> GainsAnswer:
        """Returns the gains so far; ``names``: of peers, as the record knows them; ``averagings``: of weights with
        peers; ``from_peers``: whether a start took over the weights of peers."""
        alone = self.others_since_round is None
        tasks = [_task_gain(name, known, names, alone=alone) for name, known in self.tasks.items()]
        peers = self._peer_gains(names)

        def mean(of: Callable[[TaskGain], float]) -> float | None:
            return math.fsum(map(of, tasks)) / len(tasks) if tasks else None

        changes = [known.changed(alone=alone) for known in self.tasks.values()]
        squared_error = sum(each for _, each in changes) / max(1, len(tasks)) ** 2
        answer = GainsAnswer(
            sentence="",
            how=HOW,
            limits=limits_of(averagings=averagings, from_peers=from_peers),
            rounds=self.rounds,
            others_since_round=self.others_since_round,
            mean_first=mean(lambda task: task.first),
            mean_before=mean(lambda task: task.before),
            mean_now=mean(lambda task: task.now),
            from_others=mean(lambda task: task.from_others) or 0.0,
            from_itself=mean(lambda task: task.from_itself) or 0.0,
            not_attributed=mean(lambda task: task.not_attributed) or 0.0,
            tasks=tuple(sorted(tasks, key=lambda task: (-task.from_others, -task.now, task.task))),
            peers=tuple(peers[:MAX_PEERS]),
            peers_left_out=max(0, len(peers) - MAX_PEERS),
            losses=tuple(losses[:MAX_LOSSES]),
            error=math.sqrt(squared_error),
            change=beyond_chance(sum(change for change, _ in changes) / max(1, len(tasks)), squared_error),
            averagings=averagings,
            started_from_peers=from_peers,
        )
        return msgspec.structs.replace(answer, sentence=gains_sentence(answer))

    def _practised(self, task: str, reward: float, done: RoundDone) -> None:
        completions = done.completions_by_task.get(task, 0)
        known = self.tasks.setdefault(task, _OfTask())
        is_first, before = known.smoothed.rounds == 0, known.smoothed.mean
        known.smoothed = known.smoothed.after(reward, completions)
        now = known.smoothed.mean
        if is_first:
            known.first, known.first_squared_error = now, known.smoothed.squared_error
        if is_first or self.others_since_round is None:
            known.before, known.before_squared_error = now, known.smoothed.squared_error
        else:
            _share_out(known, now - before)
        if now > known.best or known.smoothed.rounds <= FIRST_ROUNDS:
            known.best, known.best_round = now, done.round
        known.samples += max(1, completions)
        known.practised_round = done.round
        known.idle_rounds += 1
        known.pool = {peer: DECAY * each for peer, each in known.pool.items()}
        known.turns = {n: TurnsUsed(n, DECAY * each.episodes, DECAY * each.won) for n, each in known.turns.items()}
        for each in done.turns_by_task.get(task, ()):
            so_far = known.turns.get(each.turns, TurnsUsed(each.turns, 0, 0))
            known.turns[each.turns] = TurnsUsed(each.turns, so_far.episodes + each.episodes, so_far.won + each.won)

    def _begin(self, round_number: int) -> None:
        """Counts gains from here on. This round's rewards are of weights that had learnt nothing of others yet."""
        self.others_since_round = round_number
        for known in self.tasks.values():
            known.gains, known.not_attributed = {}, 0.0

    def _of_peer(self, peer: str) -> _OfPeer:
        known = self._peers.setdefault(peer, _OfPeer())
        self._peers.move_to_end(peer)
        while len(self._peers) > MAX_PEERS_KNOWN:
            self._peers.popitem(last=False)
        return known

    def _peer_gains(self, names: Mapping[str, NamedPeer]) -> list[PeerGain]:
        """Returns what is counted to each peer, the greatest gain first."""
        by_peer: dict[str, dict[str, float]] = {}
        for name, known in self.tasks.items():
            for peer, gain in known.gains.items():
                if peer != OWN:
                    by_peer.setdefault(peer, {})[name] = gain
        gains = [
            PeerGain(
                peer=printable(peer),
                name=names[peer].name if peer in names else None,
                model=names[peer].model if peer in names else None,
                gain=math.fsum(of_tasks.values()) / len(self.tasks),
                by_task=dict(sorted(of_tasks.items(), key=lambda item: -abs(item[1]))[:MAX_TASKS_OF_PEER]),
                groups=self._peers.get(peer, _OfPeer()).groups,
                last_round=self._peers.get(peer, _OfPeer()).last_round,
            )
            for peer, of_tasks in by_peer.items()
        ]
        return sorted(gains, key=lambda each: (-each.gain, each.peer))


def _share_out(task: _OfTask, change: float) -> None:
    whole = math.fsum(task.pool.values())
    if whole <= 0 or task.idle_rounds > POOL_ROUNDS:
        task.not_attributed += change
        return
    for peer, mass in task.pool.items():
        task.gains[peer] = task.gains.get(peer, 0.0) + change * mass / whole
    _bound(task.gains)


def _learnt(task: _OfTask, by_peer: Mapping[str, float]) -> None:
    if not by_peer:
        return
    if task.idle_rounds > POOL_ROUNDS:
        task.pool = {}
    task.idle_rounds = 0
    for peer, mass in by_peer.items():
        task.pool[peer] = task.pool.get(peer, 0.0) + mass
    _bound(task.pool)


def _bound(by_source: dict[str, float]) -> None:
    """Counts the least sources under ``OTHERS`` where there are too many; sums stay as they are."""
    if len(by_source) <= MAX_SOURCES:
        return
    named = sorted(by_source.keys() - {OWN, OTHERS}, key=lambda peer: abs(by_source[peer]))
    for peer in named[: len(by_source) - MAX_SOURCES + 1]:  # one more: OTHERS may be new
        by_source[OTHERS] = by_source.get(OTHERS, 0.0) + by_source.pop(peer)


def beyond_chance(change: float, squared_error: float) -> float | None:
    """Returns the change of a mean reward; None where it may be chance, or shows no digit of two."""
    return change if abs(change) >= max(SMALL, SIGMAS * math.sqrt(squared_error)) else None


def _task_gain(name: str, known: _OfTask, names: Mapping[str, NamedPeer], *, alone: bool) -> TaskGain:
    of_others = sorted(
        ((peer, gain) for peer, gain in known.gains.items() if peer != OWN), key=lambda item: (-abs(item[1]), item[0])
    )
    return TaskGain(
        task=printable(name, NAME_BYTES),
        first=known.first,
        before=known.before,
        now=known.smoothed.mean,
        best=known.best,
        best_round=known.best_round,
        samples=known.samples,
        practised_round=known.practised_round,
        from_others=math.fsum(gain for _, gain in of_others),
        from_itself=known.gains.get(OWN, 0.0),
        not_attributed=known.not_attributed,
        peers=tuple(
            PeerShare(printable(peer), names[peer].name if peer in names else None, gain)
            for peer, gain in of_others[:MAX_PEERS_OF_TASK]
        ),
        change=beyond_chance(*known.changed(alone=alone)),
        turns=turns_words([known.turns[number] for number in sorted(known.turns)]),
    )
