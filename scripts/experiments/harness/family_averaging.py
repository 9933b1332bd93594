"""A node's own averaging (``node.averaging.weight_averager``) over the simulated network of an experiment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from random import Random
from typing import Any

from node.averaging.rules import rule_of
from node.averaging.weight_averager import WeightAverager
from node.configuration import Config
from node.events import Event
from node.learner.state.learner_state import LearnerState
from node.learner.steps.optimizer import MasterAdamW
from protocol.errors import TransportError
from scripts.experiments.harness.simulated_swarm import SwarmMember
from swarm import api
from swarm.averaging.weights_offer import WeightsOffer


class WaitingMember:
    """``node.averaging.weight_averager.AveragingSwarm``: passes the requests of an averager's thread to the network."""

    def __init__(self, member: SwarmMember) -> None:
        self._member = member
        self._changed = threading.Lock()
        self._answer: Future[api.Reply] | None = None
        self.asked: Future[None] = Future()  # done while the thread waits for an answer

    def peers(self) -> list[api.PeerStatus]:
        return self._member.peers()

    def average(self, ours: WeightsOffer, *, deadline_seconds: float) -> api.AverageReply:
        answer = self._member.begin_average(ours, deadline_seconds)
        self._answer = answer
        self.asked.set_result(None)
        reply = answer.result()
        if not isinstance(reply, api.AverageReply):
            raise TransportError(f"asked to average, answered by {reply!r}")
        return reply

    def judge(self, peer: str, blob: bytes, judgement: api.Judgement, detail: str = "") -> None:
        self._member.judge(peer, blob, judgement, detail)

    @property
    def is_waiting(self) -> bool:
        """Whether the answer comes only after time has passed in the network."""
        return self._answer is not None and not self._answer.done()

    def reset(self) -> None:
        """To be called before the thread may ask again."""
        self._answer, self.asked = None, Future()

    def close(self) -> None:
        if self.is_waiting and self._answer is not None:
            self._answer.set_exception(TransportError("the experiment is over"))


class WaitingAverager(WeightAverager):
    """Adopts an exchange after the round in which it ended, on a slow machine as on a fast one."""

    def __init__(
        self,
        member: SwarmMember,
        optimizer: MasterAdamW,
        family: bytes,
        config: Config,
        report: Callable[[Event], None],
        clock: Callable[[], float],
    ) -> None:
        self._waiting = WaitingMember(member)
        draws = Random(f"starling/averaging/{config.seed}/{config.name}")
        rule, _ = rule_of(config.averaging, sum(weights.numel() for weights in optimizer.masters().values()))
        section = config.averaging
        super().__init__(self._waiting, optimizer, family, section, rule, report=report, clock=clock, random=draws)

    def after_round(self, state: LearnerState) -> bool:
        self._wait_for_thread()
        changed = super().after_round(state)
        self._wait_for_thread()
        return changed

    def _wait_for_thread(self) -> None:
        """Returns once the thread has ended or waits for the network."""
        coming = self._pending
        if coming is None:
            return
        pending: list[Future[Any]] = [coming, self._waiting.asked]
        wait(pending, return_when=FIRST_COMPLETED)
        if not self._waiting.is_waiting:
            coming.exception()  # waits
            self._waiting.reset()
