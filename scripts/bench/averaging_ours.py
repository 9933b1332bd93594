"""Our side of ``averaging.py``: a swarm process a peer, and a thread that does what its learner would."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
import torch
from averaging_round import Round, sent_bytes
from averaging_weights import weights_of
from slow_network import SlowPeer
from swarm_processes import SwarmProcess

from node.averaging.noloco import Constants, OuterState, Weights, begin, outer_step
from node.averaging.replica import bf16_bits, from_bf16_bits
from protocol.dense_weights import ENCODING, dense_parts, open_dense
from protocol.messages import Heartbeat
from protocol.tensor_layout import TensorLayout

FAMILY: Final = bytes(range(16))
START: Final = 1_000_000  # a peer's number that none has: the outer weights that all begin with
EXCHANGE_SECONDS: Final = 60.0
ACQUAINTANCE_SECONDS: Final = 60.0  # for everybody to know everybody


class WrongResultError(Exception):
    """An exchange that was not the formula, or none where there should have been one."""


def starling_rounds(places: Sequence[SlowPeer], parameters: int, rounds: int, directory: Path) -> list[Round]:
    """As many rounds, the peers in pairs that they find by themselves."""
    with ExitStack() as stack:
        swarm: list[SwarmProcess] = []
        for number, place in enumerate(places):
            known = swarm[0].addresses if swarm else ()
            options = {"address": place.address, "prefix": place.command(()), "store_bytes": 1 << 30}
            swarm.append(SwarmProcess(number, directory, known, **options))
            stack.callback(swarm[-1].close)
        _acquaint(swarm)
        learners = stack.enter_context(ThreadPoolExecutor(len(swarm)))
        return [_round(swarm, places, number, parameters, learners) for number in range(rounds)]


def _acquaint(swarm: Sequence[SwarmProcess]) -> None:
    for number, process in enumerate(swarm):
        beat = Heartbeat(f"node-{number}", "bench", "bench", FAMILY, bytes(16), 0, 0, "training", 0.0, 0, 0, ())
        process.client.beat(beat)
    until = time.monotonic() + ACQUAINTANCE_SECONDS
    while True:
        known = [sum(p.heartbeat is not None and p.heartbeat.family == FAMILY for p in s.client.peers()) for s in swarm]
        if min(known) >= len(swarm) - 1:
            return
        if time.monotonic() > until:
            raise WrongResultError(f"after {ACQUAINTANCE_SECONDS:g} s the peers know {known} others of the family")
        time.sleep(0.5)


def _round(
    swarm: Sequence[SwarmProcess],
    places: Sequence[SlowPeer],
    number: int,
    parameters: int,
    learners: ThreadPoolExecutor,
) -> Round:
    layout = TensorLayout.of({"weights": (parameters,)})
    state = begin(_weights(number, START, parameters))
    offers = [_weights(number, peer, parameters) for peer in range(len(swarm))]
    go = threading.Barrier(len(swarm) + 1)

    def learner(process: SwarmProcess, own: Weights) -> tuple[str | None, float, str]:
        go.wait()
        parts = dense_parts(layout, bf16_bits(own, layout))
        found = process.client.average(parts, FAMILY, layout, ENCODING, number, deadline_seconds=EXCHANGE_SECONDS)
        if found.path is None:
            return None, time.monotonic(), found.because
        theirs = from_bf16_bits(open_dense(np.memmap(found.path, np.uint8, mode="r").data, layout), layout)
        after = outer_step(state, [own, theirs], Constants())
        ended = time.monotonic()
        return found.partner, ended, _digest(after)

    pending = [learners.submit(learner, process, own) for process, own in zip(swarm, offers, strict=True)]
    before_bytes = sent_bytes(places)
    go.wait()
    began = time.monotonic()
    results = [each.result() for each in pending]
    bytes_sent = sent_bytes(places) - before_bytes
    _check(state, offers, [p.client.status().peer for p in swarm], [(who, digest) for who, _, digest in results])
    return Round(max(ended for _, ended, _ in results) - began, bytes_sent, 1.0)


def _check(
    state: OuterState, offers: Sequence[Weights], names: Sequence[str], results: Sequence[tuple[str | None, str]]
) -> None:
    """Raises ``WrongResultError`` unless all are paired, and each result is that of the formula on the two vectors.

    With equal outer weights the two of a pair end with equal ones: the order of the two must not matter to a bit.
    """
    for own, (partner, digest) in enumerate(results):
        if partner not in names:
            raise WrongResultError(f"peer {own} found no partner: {digest}")
        other = names.index(partner)
        expected = outer_step(state, [offers[own], offers[other]], Constants())
        if results[other] != (names[own], digest) or digest != _digest(expected):
            raise WrongResultError(f"peers {own} and {other} have results that are not the formula's: {results}")


def _digest(state: OuterState) -> str:
    return hashlib.sha256(state.outer["weights"].numpy().data).hexdigest()


def _weights(number: int, peer: int, parameters: int) -> dict[str, torch.Tensor]:
    return {"weights": torch.from_numpy(weights_of(number, peer, parameters))}
