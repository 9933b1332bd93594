"""One exchange of weights among peers that share one machine, each with a link of its own, and what share of the limit
that arithmetic sets was reached. Linux, root.

    sudo .venv/bin/python -m scripts.bench.exchange [--peers 8] [--parameters 10000000] [--megabits 50] [--json]

Every peer has a network namespace (``slow_network``), a swarm process, and a process that does the learner's part, by
either rule of a node: it encodes, requests an exchange, decodes and takes the outer step. They average in pairs.
Seconds run from the start signal until the last peer has its new weights; processor seconds are those of both
processes of a peer; both are medians of ``--rounds``.

    link    bits of the blob / (rate · payload share)     frames, headers and encryption take the rest of a link
    cores   peers · processor seconds of a peer / cores
    limit   max(link, cores): less is not possible even where nobody ever waits

A peer whose partner names another one ends the benchmark, and so do partners that began from equal outer weights, sent
whole ones, and have unequal ones afterwards.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import BrokenBarrierError
from typing import Any, Final

import numpy as np
import torch

from node.averaging import compressed, noloco
from node.averaging.rules import AveragingRule, CompressedRule, DenseRule, State
from node.configuration import AveragingSection
from node.policy.weight_layout import layout_of
from protocol.messages import Heartbeat
from scripts.bench.common.process_usage import cpu_seconds, tree_cpu_seconds
from scripts.bench.common.processes import ensure_compute_environment
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.common.slow_network import NoSlowNetworkError, SlowPeer, slow_network
from scripts.bench.common.swarm_processes import SwarmProcess, swarm_of
from swarm.api import KnownPartners
from swarm.averaging.weights_offer import WeightsOffer
from swarm.client import SwarmClient

RULES: Final[Sequence[AveragingRule]] = (DenseRule(), CompressedRule())
FAMILY: Final = bytes(range(16))
OUTER_SEED: Final = 1_000_000  # no peer's number
LEARNT: Final = 0.05  # of a weight's size, since the last outer step
STORE_BYTES: Final = 1 << 30
PAYLOAD_SHARE: Final = 0.956  # docs/hosts.md
SEARCHES: Final = 8
MEETING_SECONDS: Final = 60.0  # until every peer knows every other
BEGIN_SECONDS: Final = 120.0  # until every learner has made its weights


class WrongExchangeError(Exception):
    """What the peers have afterwards cannot be right."""


@dataclass(frozen=True)
class Learnt:
    """What one learner has after an exchange."""

    partner: str
    ended: float  # of the monotonic clock, which all processes of a machine share
    processor_seconds: float
    blob_bytes: int
    digest: bytes  # of the outer weights


@dataclass(frozen=True)
class Round:
    seconds: float
    processor_seconds: float  # of a peer
    blob_bytes: int


def rounds_of(
    places: Sequence[SlowPeer], rule: AveragingRule, parameters: int, rounds: int, folder: Path
) -> list[Round]:
    with ExitStack() as stack:
        swarm = stack.enter_context(swarm_of(len(places), folder, places=places, store_bytes=STORE_BYTES))
        meet(swarm)
        spawning = multiprocessing.get_context("spawn")
        begin = spawning.Barrier(len(swarm) + 1)
        learners = [stack.enter_context(ProcessPoolExecutor(1, spawning, keep, (begin,))) for _ in swarm]
        return [one_round(swarm, rule, number, parameters, learners, begin) for number in range(rounds)]


def meet(swarm: Sequence[SwarmProcess]) -> None:
    for number, process in enumerate(swarm):
        beat = Heartbeat(f"node-{number}", "bench", "bench", FAMILY, bytes(16), 0, 0, "training", 0.0, 0, 0, ())
        process.client.beat(beat)
    until = time.monotonic() + MEETING_SECONDS
    while True:
        known = [sum(p.heartbeat is not None and p.heartbeat.family == FAMILY for p in s.client.peers()) for s in swarm]
        if min(known) >= len(swarm) - 1:
            return
        if time.monotonic() > until:
            raise WrongExchangeError(f"after {MEETING_SECONDS:g} s the peers know {known} others of the family")
        time.sleep(0.5)


def one_round(
    swarm: Sequence[SwarmProcess],
    rule: AveragingRule,
    number: int,
    parameters: int,
    learners: Sequence[ProcessPoolExecutor],
    begin: Any,
) -> Round:
    def processor_seconds() -> float:
        return sum(tree_cpu_seconds(process.process.pid) for process in swarm)

    pending = [
        learner.submit(learn, rule, number, peer, parameters, process.home / "swarm.sock")
        for peer, (learner, process) in enumerate(zip(learners, swarm, strict=True))
    ]
    wait_for(begin, pending)
    taken, began = processor_seconds(), time.monotonic()
    wait_for(begin, pending)
    found = [each.result() for each in pending]
    taken = processor_seconds() - taken + sum(each.processor_seconds for each in found)
    check([process.client.status().peer for process in swarm], found, alike=isinstance(rule, DenseRule))
    seconds = max(each.ended for each in found) - began
    return Round(seconds, taken / len(swarm), found[0].blob_bytes)


def wait_for(begin: Any, pending: Sequence[Future[Learnt]]) -> None:
    """Waits until all learners are there. If one ended before, raises what ended it."""
    try:
        begin.wait(BEGIN_SECONDS)
    except BrokenBarrierError:
        for each in pending:
            each.result()
        raise


def check(names: Sequence[str], found: Sequence[Learnt], *, alike: bool) -> None:
    for own, one in enumerate(found):
        other = found[names.index(one.partner)]
        if other.partner != names[own]:
            raise WrongExchangeError(f"peer {own} averaged with {one.partner}, and that one with {other.partner}")
        if alike and one.digest != other.digest:
            raise WrongExchangeError(f"peer {own} and its partner have unequal outer weights")


# In the process of a learner

_begin: Any = None  # the barrier


def keep(begin: Any) -> None:
    global _begin
    _begin = begin
    torch.set_num_threads(1)


def weights_of(seed: int, parameters: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(parameters, np.float32) * np.float32(0.02)


def learn(rule: AveragingRule, number: int, peer: int, parameters: int, socket: Path) -> Learnt:
    """Does one learner's part of a round, from its weights in memory to its next ones."""
    outer = weights_of(OUTER_SEED + number, parameters)
    moved = outer + np.float32(LEARNT) * weights_of(peer, parameters)
    state: State = noloco.begin({"weights": torch.from_numpy(outer)}, steps=number)
    if isinstance(rule, CompressedRule):
        state = compressed.begin(state.outer, number)
    weights = {"weights": torch.from_numpy(moved).bfloat16().float()}  # what a partner decodes: both have one mean
    alone = rule.offer(weights, state, afresh=False, random=Random(number))
    alone.averaged(memoryview(b"".join(alone.content)), 1.0)  # compiles what is compiled once in a node's life
    with SwarmClient(socket, timeout_seconds=120.0) as client:
        client.status()  # connects
        _begin.wait(BEGIN_SECONDS)
        _begin.wait(BEGIN_SECONDS)
        before = cpu_seconds(os.getpid())
        offering = rule.offer(weights, state, afresh=False, random=Random(number))
        known = KnownPartners(learnt=1e9)  # no distance is too long
        ours = WeightsOffer(offering.content, FAMILY, layout_of(weights), rule.encoding, number, known)
        for _ in range(SEARCHES):  # a node, too, searches again at once
            found = client.average(ours, deadline_seconds=AveragingSection().partner_seconds)
            if found.path is not None:
                break
        if found.path is None or found.partner is None:
            raise WrongExchangeError(f"a peer found no partner: {found.because}")
        after = offering.averaged(np.memmap(found.path, np.uint8, mode="r").data, found.weight)
        ended = time.monotonic()
    taken = cpu_seconds(os.getpid()) - before
    digest = hashlib.sha256(after.state.outer["weights"].numpy().view(np.uint8).data).digest()
    return Learnt(found.partner, ended, taken, offering.size_bytes, digest)


def figures_of(name: str, rounds: Sequence[Round], peers: int, megabits: float) -> list[Figure]:
    def median(field: str) -> float:
        return float(statistics.median(getattr(each, field) for each in rounds))

    seconds, processor_seconds = median("seconds"), median("processor_seconds")
    link = 8 * median("blob_bytes") / (megabits * 1e6 * PAYLOAD_SHARE)
    cores = peers * processor_seconds / (os.cpu_count() or 1)
    return [
        Figure(name, seconds, "s", "lower"),
        Figure(f"{name}: blob", median("blob_bytes") / 1e6, "MB", "lower"),
        Figure(f"{name}: processor time of a peer", processor_seconds, "s", "lower"),
        Figure(f"{name}: links alone", link, "s", "lower"),
        Figure(f"{name}: cores alone", cores, "s", "lower"),
        Figure(f"{name}: share of the limit", max(link, cores) / seconds, "", "higher", "≥ .8"),
    ]


def measured(arguments: argparse.Namespace) -> list[Figure]:
    found = []
    with slow_network(arguments.peers, arguments.megabits) as places, tempfile.TemporaryDirectory() as folder:
        for rule in RULES:
            rounds = rounds_of(places, rule, arguments.parameters, arguments.rounds, Path(folder) / rule.encoding)
            found += figures_of(rule.encoding, rounds, arguments.peers, arguments.megabits)
    return found


def main() -> None:
    ensure_compute_environment()
    parser = figures_parser(__doc__)
    parser.add_argument("--peers", type=int, default=8, help="an even number (default 8)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--megabits", type=float, default=50.0, help="a second, each way")
    arguments = parser.parse_args()
    if arguments.peers % 2:
        parser.error("--peers: an even number, since they average in pairs")
    try:
        figures = measured(arguments)
    except NoSlowNetworkError as error:
        raise SystemExit(f"this machine cannot make the slow network: {error}") from error
    report("exchange", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
