"""Our side of ``averaging_exchange.py``: for each peer a swarm process, and one that does the learner's part."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import BrokenBarrierError
from typing import Any, Final

import numpy as np
import torch

from node.averaging import compressed, noloco
from node.averaging.compressed import CompressedState
from node.averaging.noloco import Weights
from node.averaging.rules import (
    COMPRESSED,
    RELEASED,
    AveragingRule,
    DenseRule,
    Offering,
    State,
    averaging_snapshot,
    from_bf16_bits,
)
from node.policy.weight_layout import layout_of
from protocol.messages import Heartbeat
from protocol.weights.compressed_weights import decode_compressed
from protocol.weights.dense_weights import open_dense
from scripts.bench.common.averaging_round import AveragingRound, sent_bytes
from scripts.bench.common.averaging_weights import weights_of
from scripts.bench.common.processor_time import cpu_seconds, with_descendants_seconds
from scripts.bench.common.slow_network import SlowPeer
from scripts.bench.common.swarm_processes import SwarmProcess
from swarm.api import KnownPartners
from swarm.averaging.weights_offer import WeightsOffer
from swarm.client import SwarmClient

FAMILY: Final = bytes(range(16))
START: Final = 1_000_000  # a number that no peer has: for the outer weights that all begin with
DRIFT: Final = 0.01  # of a weight's size: how far the outer weights of two peers differ where each has its own, ...
LEARNT: Final = 0.05  # ... and how far weights have moved since the last outer step
EXCHANGE_SECONDS: Final = 60.0
DISCOVERY_SECONDS: Final = 60.0  # until every peer knows every other
BEGIN_SECONDS: Final = 120.0  # until every learner has made its weights


@dataclass(frozen=True)
class SimulatedReplica:
    """One peer's weights before a round, in the middle of a run."""

    state: State
    weights: Weights


@dataclass(frozen=True)
class _Result:
    """What one learner has after an exchange."""

    partner: str
    ended: float  # of the monotonic clock, which all processes of a machine share
    processor_seconds: float  # of the learner
    digest: str


class WrongResultError(Exception):
    """An exchange whose result is not the formula's, or an exchange that did not happen."""


def starling_rounds(
    places: Sequence[SlowPeer], rule: AveragingRule, parameters: int, rounds: int, directory: Path
) -> list[AveragingRound]:
    """Runs ``rounds`` rounds; the peers choose their partners."""
    with ExitStack() as stack:
        swarm: list[SwarmProcess] = []
        for number, place in enumerate(places):
            known = swarm[0].addresses if swarm else ()
            process = SwarmProcess(
                number, directory, known, address=place.address, prefix=place.command(()), store_bytes=1 << 30
            )
            swarm.append(process)
            stack.callback(swarm[-1].close)
        _wait_until_all_know_each_other(swarm)
        start = multiprocessing.get_context("spawn")
        begin = start.Barrier(len(swarm) + 1)
        learners = [stack.enter_context(ProcessPoolExecutor(1, start, _keep_barrier, (begin,))) for _ in swarm]
        return [_round(swarm, places, rule, number, parameters, learners, begin) for number in range(rounds)]


def _wait_until_all_know_each_other(swarm: Sequence[SwarmProcess]) -> None:
    for number, process in enumerate(swarm):
        beat = Heartbeat(f"node-{number}", "bench", "bench", FAMILY, bytes(16), 0, 0, "training", 0.0, 0, 0, ())
        process.client.beat(beat)
    until = time.monotonic() + DISCOVERY_SECONDS
    while True:
        known = [sum(p.heartbeat is not None and p.heartbeat.family == FAMILY for p in s.client.peers()) for s in swarm]
        if min(known) >= len(swarm) - 1:
            return
        if time.monotonic() > until:
            raise WrongResultError(f"after {DISCOVERY_SECONDS:g} s the peers know {known} others of the family")
        time.sleep(0.5)


def _round(
    swarm: Sequence[SwarmProcess],
    places: Sequence[SlowPeer],
    rule: AveragingRule,
    number: int,
    parameters: int,
    learners: Sequence[ProcessPoolExecutor],
    begin: Any,
) -> AveragingRound:
    sockets = [process.home / "swarm.sock" for process in swarm]
    pending = [
        learners[peer].submit(_learn, rule, number, peer, parameters, socket) for peer, socket in enumerate(sockets)
    ]
    processes = [process.process.pid for process in swarm]
    _wait_for(begin, pending)
    before_bytes, before_seconds, began = sent_bytes(places), with_descendants_seconds(processes), time.monotonic()
    _wait_for(begin, pending)
    results = [each.result() for each in pending]
    swarm_seconds = (with_descendants_seconds(processes) - before_seconds) / len(swarm)
    bytes_sent = sent_bytes(places) - before_bytes
    _check(rule, number, parameters, [process.client.status().peer for process in swarm], results, learners)
    seconds = max(each.ended for each in results) - began
    learner_seconds = sum(each.processor_seconds for each in results) / len(results)
    return AveragingRound(seconds, bytes_sent, swarm_seconds + learner_seconds, 1.0)


def _wait_for(begin: Any, pending: Sequence[Any]) -> None:
    """Waits until all learners are there. If one ended before, raises what ended it."""
    try:
        begin.wait(BEGIN_SECONDS)
    except BrokenBarrierError:
        for each in pending:
            each.result()
        raise


# In the process of a learner

_begin: Any = None  # the barrier


def _keep_barrier(begin: Any) -> None:
    global _begin
    _begin = begin
    torch.set_num_threads(1)


def _learn(rule: AveragingRule, number: int, peer: int, parameters: int, socket: Path) -> _Result:
    """Does one learner's part of a round, from its weights in memory to its next ones."""
    own = _replica(rule, number, peer, parameters)
    with SwarmClient(socket, timeout_seconds=120.0) as client:
        client.status()  # connects
        _begin.wait(BEGIN_SECONDS)
        _begin.wait(BEGIN_SECONDS)
        before_seconds = cpu_seconds(os.getpid())
        offering = _offering(rule, own)
        known = KnownPartners(learnt=1e9)  # no distance is too long
        layout = layout_of(own.weights)
        ours = WeightsOffer(offering.content, FAMILY, layout, rule.encoding, own.state.steps, known)
        found = client.average(ours, deadline_seconds=EXCHANGE_SECONDS)
        if found.path is None or found.partner is None:
            raise WrongResultError(f"a peer found no partner: {found.because}")
        after = offering.averaged(np.memmap(found.path, np.uint8, mode="r").data, found.weight)
        ended = time.monotonic()
    taken_seconds = cpu_seconds(os.getpid()) - before_seconds
    return _Result(found.partner, ended, taken_seconds, _digest(after.state))


def _expected(rule: AveragingRule, number: int, own: int, other: int, parameters: int) -> str:
    """Returns the digest of the formula's result."""
    return _digest(_formula(rule, *(_replica(rule, number, peer, parameters) for peer in (own, other))))


def _replica(rule: AveragingRule, number: int, peer: int, parameters: int) -> SimulatedReplica:
    """Returns a peer's state and weights. Dense: one φ for all, so a pair must end alike. Compressed: a φ each."""
    common, own = (weights_of(number, which, parameters) for which in (START, peer))
    if isinstance(rule, DenseRule):
        return SimulatedReplica(noloco.begin(_as_weights(common), steps=number), _as_weights(own))
    outer, residual = common + np.float32(DRIFT) * own, np.zeros_like(common)
    away = np.full(1, 2**0.5 * DRIFT * float(own.std()), np.float32)
    state = CompressedState(_as_weights(outer), _as_weights(residual), away, number)
    return SimulatedReplica(
        state, _as_weights(outer + np.float32(LEARNT) * weights_of(number + START, peer, parameters))
    )


def _offering(rule: AveragingRule, own: SimulatedReplica) -> Offering:
    return rule.offer(own.weights, own.state, afresh=False, random=Random(own.state.steps))


def _check(
    rule: AveragingRule,
    number: int,
    parameters: int,
    names: Sequence[str],
    results: Sequence[_Result],
    learners: Sequence[ProcessPoolExecutor],
) -> None:
    """Raises ``WrongResultError`` unless all are paired and each result is the formula's on the two blobs."""
    expected = []
    for own, result in enumerate(results):
        if result.partner not in names:
            raise WrongResultError(f"peer {own} averaged with {result.partner}, which is none of us")
        other = names.index(result.partner)
        if results[other].partner != names[own]:
            raise WrongResultError(f"peer {own} averaged with {other}, and that one with {results[other].partner}")
        expected.append(learners[own].submit(_expected, rule, number, own, other, parameters))
    for own, result in enumerate(results):
        if result.digest != expected[own].result():
            raise WrongResultError(f"peer {own} has a result with {result.partner} that is not the formula's")
        if isinstance(rule, DenseRule) and result.digest != results[names.index(result.partner)].digest:
            raise WrongResultError(f"peer {own} and its partner have equal outer weights and end with unequal ones")


def _formula(rule: AveragingRule, own: SimulatedReplica, other: SimulatedReplica) -> State:
    layout = layout_of(own.weights)
    theirs = b"".join(_offering(rule, other).content)
    if isinstance(own.state, CompressedState):
        phase = Random(own.state.steps).randrange(COMPRESSED.stride)
        sent = compressed.make_offer(own.state, own.weights, phase, COMPRESSED)
        return compressed.outer_step(own.state, sent, decode_compressed(theirs, layout), COMPRESSED)
    found = from_bf16_bits(open_dense(theirs, layout), layout)
    return noloco.outer_step(own.state, [own.weights, found], RELEASED)


def _digest(state: State) -> str:
    hashed = hashlib.sha256()
    for _, tensor in sorted(averaging_snapshot(state).items()):
        hashed.update(tensor.reshape(-1).numpy().view(np.uint8).data)
    return hashed.hexdigest()


def _as_weights(values: np.ndarray) -> dict[str, torch.Tensor]:
    return {"weights": torch.from_numpy(values)}
