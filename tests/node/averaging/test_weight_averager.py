"""A node averages with its family: real weights, blobs and outer steps; the swarm process is simulated."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from torch import Tensor

from node.averaging import noloco
from node.averaging.guard import OwnGroup
from node.averaging.rules import (
    RELEASED,
    AveragingRule,
    CompressedRule,
    DenseRule,
    averaging_snapshot,
    bf16_bits,
    from_bf16_bits,
    moved,
)
from node.averaging.weight_averager import NO_PEER, WeightAverager, interval
from node.configuration import AveragingSection, LearnerSection
from node.events import Averaged, AveragingTakenBack, Event, Fault, decode_event, encode_event
from node.learner.state.learner_state import LearnerState
from node.learner.steps.optimizer import MasterAdamW
from protocol.blob_id import blob_id
from protocol.errors import StarlingError, UnreachableError
from protocol.messages import Heartbeat
from protocol.streams.averaging_messages import Offer
from protocol.weights.compressed_weights import decode_compressed
from protocol.weights.dense_weights import encode_dense, open_dense
from protocol.weights.tensor_layout import TensorLayout
from swarm import api
from swarm.averaging.weights_offer import WeightsOffer

SHAPES = {"tail": (7,), "head": (3, 5), "scale": ()}
LAYOUT = TensorLayout.of(SHAPES)
FAMILY = bytes(range(16))
WAIT_SECONDS = 60.0  # a hang guard
EVERY = 4
NEWEST = 1000  # version of the policy


def weights(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


def blob_of(tensors: Mapping[str, Tensor]) -> bytes:
    return encode_dense(LAYOUT, bf16_bits(tensors, LAYOUT))


def digest(*trees: Mapping[str, Tensor]) -> str:
    """Hashes every bit of the tensors."""
    hashed = hashlib.sha256()
    for tree in trees:
        for name, tensor in sorted(tree.items()):
            hashed.update(name.encode() + tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def joined(ours: WeightsOffer) -> bytes:
    return ours.content if isinstance(ours.content, bytes) else b"".join(ours.content)


class Family:
    """The swarm process's answers: whether a peer of the family is there, and the result of an offer."""

    def __init__(self, folder: Path, theirs: bytes | None = None) -> None:
        self._folder = folder
        self.known = True
        self.theirs = theirs  # the partner's blob; None: nobody accepts
        self.encoding = DenseRule.encoding
        self.weight = 1.0
        self.blobs: list[bytes] = []  # as they left us
        self.known_partners: list[api.KnownPartners] = []
        self.judged: list[tuple[str, api.Judgement]] = []
        self.error: Exception | None = None
        self.offered: list[tuple[dict[str, Tensor], int]] = []  # the same as weights, outer steps
        self.seeking = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def peers(self) -> list[api.PeerStatus]:
        if isinstance(self.error, UnreachableError):
            raise self.error
        family = FAMILY if self.known else bytes(16)
        beat = Heartbeat("bob", "", "", family, bytes(16), 1, 1, "", 1.0, 0, 0, ())
        return [api.PeerStatus("bob", True, (), None, beat, 1.0, 0, 0, 0, 1.0, None)]

    def average(self, ours: WeightsOffer, *, deadline_seconds: float) -> api.AverageReply:
        content = joined(ours)
        assert (ours.family, ours.encoding, deadline_seconds) == (FAMILY, self.encoding, 30.0)
        self.blobs.append(content)
        self.known_partners.append(ours.known)
        if ours.encoding == DenseRule.encoding:
            self.offered.append((from_bf16_bits(open_dense(content, ours.layout), ours.layout), ours.step))
        self.seeking.set()
        assert self.may_answer.wait(WAIT_SECONDS)
        if self.error is not None:
            raise self.error
        if self.theirs is None:
            return api.AverageReply(None, None, None, 1.0, "1 × not_now", 30.0)
        path = self._folder / blob_id(self.theirs).hex()
        path.write_bytes(self.theirs)
        size = max(1, len(self.theirs))
        offer = Offer(ours.family, ours.layout.digest, ours.encoding, ours.step, blob_id(self.theirs), size)
        return api.AverageReply("bob", offer, str(path), self.weight, "1 × committed", 0.5)

    def judge(self, peer: str, blob: bytes, judgement: api.Judgement, detail: str = "") -> None:
        self.judged.append((peer, judgement))

    def close(self) -> None:
        self.may_answer.set()


class Steady(Random):
    """Always draws the middle, so that a test knows the round."""

    def randint(self, a: int, b: int) -> int:
        return (a + b) // 2


class Node:
    """The part of a learner that averages, with weights that a test moves as steps would."""

    def __init__(
        self,
        swarm: object,
        *,
        seed: int = 1,
        dtype: torch.dtype = torch.float32,
        every_rounds: int = EVERY,
        start: Mapping[str, Tensor] | None = None,
        rule: AveragingRule | None = None,
    ) -> None:
        first = start or weights(seed, dtype)
        self.parameters = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in first.items()}
        self.optimizer = MasterAdamW(self.parameters, LearnerSection(learning_rate=1e-2))
        self.state = LearnerState()
        self.events: list[Event] = []
        self.rewards: list[tuple[float, ...]] = [(0.0, 1.0), (1.0, 1.0), (0.0, 1.0), (0.0, 0.0)]
        self.now_seconds = 0.0
        self.replica = WeightAverager(
            swarm,  # type: ignore[arg-type]
            self.optimizer,
            FAMILY,
            AveragingSection(every_rounds=every_rounds),
            rule or DenseRule(),
            report=self.events.append,
            clock=lambda: self.now_seconds,
            random=Steady(),
        )

    def rounds(self, count: int) -> list[bool]:
        """Runs so many rounds; an exchange that one begins ends before the next."""
        changed = []
        for _ in range(count):
            changed.append(self.one_round())
            self.replica.settle(WAIT_SECONDS)
        return changed

    def one_round(self) -> bool:
        self.state.round += 1
        self.now_seconds += 1.0
        self.taken_back = self.replica.take_back_if_harmful(self.state, self.groups())
        return self.replica.after_round(self.state)

    def groups(self) -> list[OwnGroup]:
        """A round's own groups, by the newest weights."""
        return [OwnGroup("task", NEWEST, rewards) for rewards in self.rewards]

    @torch.no_grad()
    def learn(self, by: Mapping[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.add_(by[name])

    def step(self, seed: int) -> None:
        """One step of the inner optimizer."""
        gradients = weights(seed)
        for name, parameter in self.parameters.items():
            parameter.grad = gradients[name].to(parameter.dtype)
        self.optimizer.step()

    def digest(self) -> str:
        """Hashes weights, masters and moments, φ, and m or e."""
        outer = averaging_snapshot(self.state.outer) if self.state.outer is not None else {}
        return digest(self.parameters, self.optimizer.masters(), self.optimizer.state(), outer)

    def averaged(self) -> list[Averaged]:
        return [event for event in self.events if isinstance(event, Averaged)]

    def faults(self) -> list[Fault]:
        return [event for event in self.events if isinstance(event, Fault)]


def test_an_exchange_during_which_nothing_was_learnt_is_exactly_nolocos_outer_step(tmp_path: Path) -> None:
    theirs = weights(2)
    node = Node(Family(tmp_path, blob_of(theirs)))
    before = weights(1)
    assert node.rounds(EVERY + 1) == [False] * EVERY + [True]
    rounded = {name: tensor.to(torch.bfloat16) for name, tensor in theirs.items()}
    expected = noloco.outer_step(noloco.begin(before), [before, rounded], RELEASED)
    assert digest(node.parameters) == digest(expected.outer)
    assert isinstance(node.state.outer, noloco.OuterState)
    assert digest(noloco.snapshot(node.state.outer)) == digest(noloco.snapshot(expected))
    assert (node.state.outer.steps, node.state.outer_round) == (1, EVERY)


def test_the_next_step_goes_on_from_the_outer_weights_and_momentum_of_the_last(tmp_path: Path) -> None:
    swarm = Family(tmp_path, blob_of(weights(2)))
    node = Node(swarm)
    node.rounds(EVERY + 1)
    first = node.state.outer
    assert isinstance(first, noloco.OuterState)
    node.learn(weights(5))
    own = {name: parameter.detach().clone() for name, parameter in node.parameters.items()}
    node.rounds(EVERY)
    theirs = {name: tensor.to(torch.bfloat16) for name, tensor in weights(2).items()}
    expected = noloco.outer_step(first, [own, theirs], RELEASED)
    assert digest(node.parameters) == digest(expected.outer)
    assert [step for _, step in swarm.offered] == [0, 1]
    assert [event.outer_steps for event in node.averaged()] == [1, 2]


def test_what_was_learnt_during_an_exchange_is_kept_bit_by_bit(tmp_path: Path) -> None:
    def on_a_grid(seed: int) -> dict[str, Tensor]:  # sums and differences of these are exact in float32
        return {name: (256 * tensor).round() / 1024 + 0.0 for name, tensor in weights(seed).items()}

    swarm = Family(tmp_path, blob_of(on_a_grid(2)))
    swarm.may_answer.clear()
    node = Node(swarm, start=on_a_grid(1))
    node.rounds(0)
    for _ in range(EVERY):
        node.one_round()
    assert swarm.seeking.wait(WAIT_SECONDS)
    learnt = on_a_grid(3)
    node.learn(learnt)
    assert node.one_round() is False  # it is still under way, and nobody waits
    with_learning = {name: parameter.detach().clone() for name, parameter in node.parameters.items()}
    swarm.may_answer.set()
    node.replica.settle(WAIT_SECONDS)
    assert digest(node.parameters) == digest(with_learning)  # before the end of a round nothing moves
    assert node.one_round() is True
    assert node.state.outer is not None
    outer = node.state.outer.outer
    expected = {name: outer[name] + (with_learning[name] - on_a_grid(1)[name]) for name in SHAPES}
    assert digest(node.parameters) == digest(expected)
    (event,) = node.averaged()
    assert event.rounds_between == 2


def test_moments_of_the_optimizer_stay_and_a_bf16_policy_is_the_rounding_of_its_moved_masters(tmp_path: Path) -> None:
    node = Node(Family(tmp_path, blob_of(weights(2))), dtype=torch.bfloat16)
    node.step(7)
    before = {name: tensor for name, tensor in node.optimizer.state().items() if not name.startswith("master.")}
    moments = digest(before)
    masters = {name: tensor.clone() for name, tensor in node.optimizer.masters().items()}
    node.rounds(EVERY + 1)
    after = {name: tensor for name, tensor in node.optimizer.state().items() if not name.startswith("master.")}
    assert len(after) == 9 and digest(after) == moments
    assert digest(node.optimizer.masters()) != digest(masters)
    rounded = {name: tensor.to(torch.bfloat16) for name, tensor in node.optimizer.masters().items()}
    assert digest(node.parameters) == digest(rounded)


def test_a_partner_that_counts_less_moves_us_less(tmp_path: Path) -> None:
    distances = []
    for weight in (1.0, 0.5, 0.1):
        swarm = Family(tmp_path, blob_of(weights(2)))
        swarm.weight = weight
        node = Node(swarm)
        node.rounds(EVERY + 1)
        distances.append(
            sum(float((node.parameters[n].detach() - w).square().sum()) for n, w in weights(1).items()) ** 0.5
        )
        assert node.averaged()[0].weight == weight
    assert distances[1] == pytest.approx(distances[0] * 2 / 3, rel=1e-3)  # w / (1 + w) against 1/2
    assert distances[2] == pytest.approx(distances[0] * 2 / 11, rel=1e-3)


def test_two_nodes_that_average_with_each_other_draw_together_and_report_it(tmp_path: Path) -> None:
    class Pair(Family):
        """Both offers meet: each node receives the other's blob."""

        other: Pair
        mine: bytes
        together = threading.Barrier(2)

        def average(self, ours, **named):
            self.mine = joined(ours)
            self.together.wait(WAIT_SECONDS)
            self.theirs = self.other.mine
            answer = super().average(ours, **named)
            self.together.wait(WAIT_SECONDS)
            return answer

    swarms = [Pair(tmp_path), Pair(tmp_path)]
    swarms[0].other, swarms[1].other = swarms[1], swarms[0]
    nodes = [Node(swarm, seed=seed) for seed, swarm in enumerate(swarms)]
    for _ in range(30 * EVERY):
        for node in nodes:
            node.one_round()
        for node in nodes:
            node.replica.settle(WAIT_SECONDS)
    distances = [[event.distance or 0.0 for event in node.averaged()] for node in nodes]
    assert all(each[0] > 0.5 and each[-1] < 0.02 for each in distances)
    event = nodes[0].averaged()[-1]
    assert event.sent_bytes == event.received_bytes == 64 + 2 * sum(LAYOUT.sizes)
    assert event.sent_bytes_total == len(nodes[0].averaged()) * event.sent_bytes
    assert all(decode_event(encode_event(each)) == each for each in nodes[0].events)


def test_without_a_partner_nothing_moves_and_newer_weights_are_offered_at_once(tmp_path: Path) -> None:
    swarm = Family(tmp_path)
    node = Node(swarm)
    node.rounds(EVERY)
    before = node.digest()
    assert not any(node.rounds(3))
    assert node.digest() == before and node.state.outer is None
    assert len(swarm.offered) == 4  # one a round, each as long as an offer stands
    node.learn(weights(9))
    node.rounds(1)
    newest = {name: parameter.detach().to(torch.bfloat16) for name, parameter in node.parameters.items()}
    assert digest(swarm.offered[-1][0]) == digest(newest)
    assert {event.because for event in node.averaged()} == {"1 × not_now"} and not node.faults()


def test_a_node_connected_to_nobody_of_its_family_offers_nothing_and_looks_again_a_period_later(tmp_path: Path) -> None:
    swarm = Family(tmp_path, blob_of(weights(2)))
    swarm.known = False
    node = Node(swarm)
    before = node.digest()
    assert not any(node.rounds(3 * EVERY + 1))
    assert node.digest() == before and swarm.offered == []
    assert [(event.round, event.because) for event in node.averaged()] == [(5, NO_PEER), (10, NO_PEER)]
    swarm.known = True
    assert any(node.rounds(3 * EVERY))


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda blob: blob[:-1], "malformed"),
        (lambda blob: blob + b"\0", "malformed"),
        (lambda blob: b"SLW1" + bytes(9), "malformed"),
        (lambda blob: b"", "storage"),
        (lambda blob: blob[:-2] + np.uint16(0x7F80).tobytes(), "malformed"),  # infinity
        (lambda blob: blob[:-2] + np.uint16(0x7FC0).tobytes(), "malformed"),  # NaN
        (lambda blob: blob[:-2] + np.uint16(0x4F00).tobytes(), "malformed"),  # 2³¹
        (lambda blob: encode_dense(TensorLayout.of({"w": (3,)}), [np.zeros(3, np.uint16)]), "integrity"),
    ],
)
def test_an_unfit_blob_is_a_fault_and_leaves_the_old_weights_exactly(tmp_path: Path, spoil, kind) -> None:
    swarm = Family(tmp_path, blob_of(weights(2)))
    node = Node(swarm)
    node.step(7)
    node.rounds(EVERY + 1)
    swarm.theirs = spoil(blob_of(weights(2)))
    before = node.digest()
    assert not any(node.rounds(EVERY + 1))
    assert node.digest() == before
    (fault,) = node.faults()
    assert (fault.kind, fault.fatal) == (kind, False)
    assert node.averaged()[-1].partner is None
    swarm.theirs = blob_of(weights(2))
    assert any(node.rounds(2 * EVERY))  # and goes on with the next


def test_a_compressed_exchange_that_fails_leaves_the_residual_and_the_next_one_sends_what_was_learnt(
    tmp_path: Path,
) -> None:
    swarm = Family(tmp_path)
    swarm.encoding = CompressedRule.encoding
    partner = CompressedRule().offer(weights(2), None, afresh=False, random=Random(2))
    good = swarm.theirs = b"".join(partner.content)
    node = Node(swarm, rule=CompressedRule(), every_rounds=50)  # none of what follows is too long ago
    node.state.round = 60
    assert any(node.rounds(2))  # the first step begins
    began = node.state.outer
    node.learn(weights(5))
    node.state.round, swarm.theirs = 111, good[:-1]
    own = {name: parameter.detach().clone() for name, parameter in node.parameters.items()}
    before = node.digest()
    assert not any(node.rounds(2))
    assert node.digest() == before and node.state.outer is began
    assert [fault.kind for fault in node.faults()] == ["malformed"]
    node.state.round, swarm.theirs = 163, good
    assert any(node.rounds(2))
    told = decode_compressed(swarm.blobs[-1], LAYOUT)
    assert [len(sent.values) for sent in told.update] == [1, 1, 1]  # 256 of 4096, at least one of each
    assert began is not None
    expected = CompressedRule().offer(own, began, afresh=False, random=Random(0)).averaged(memoryview(good), 1.0)
    assert digest(node.parameters) == digest(moved(own, own, expected.state))
    assert digest(node.parameters) != digest(expected.state.outer)  # what no update has told of yet is still there
    assert node.state.outer is not None
    assert digest(averaging_snapshot(node.state.outer)) == digest(averaging_snapshot(expected.state))
    event = node.averaged()[-1]
    assert (event.encoding, event.sent_bytes, event.outer_steps) == ("sparse-2bit", len(swarm.blobs[-1]), 2)


def test_a_swarm_process_that_is_gone_leaves_the_old_weights_and_is_found_again(tmp_path: Path) -> None:
    swarm = Family(tmp_path, blob_of(weights(2)))
    swarm.error = UnreachableError("no swarm process answers")
    node = Node(swarm)
    before = node.digest()
    assert not any(node.rounds(EVERY + 1))
    assert node.digest() == before and not node.faults()  # the round's own exchange tells that fault
    assert node.averaged()[0].partner is None
    swarm.error = None
    assert any(node.rounds(2 * EVERY))


def test_a_bug_of_ours_on_the_thread_is_raised_and_not_swallowed(tmp_path: Path) -> None:
    swarm = Family(tmp_path)
    swarm.error = AssertionError("a bug")
    node = Node(swarm)
    assert not isinstance(swarm.error, StarlingError)
    with pytest.raises(AssertionError, match="a bug"):
        node.rounds(EVERY + 1)


def test_weights_that_are_not_finite_are_never_offered(tmp_path: Path) -> None:
    swarm = Family(tmp_path, blob_of(weights(2)))
    node = Node(swarm)
    with torch.no_grad():
        node.parameters["head"][0, 0] = float("nan")
    assert not any(node.rounds(EVERY + 1)) and swarm.offered == []
    (fault,) = node.faults()
    assert "our own weights" in fault.detail


def test_a_node_that_trained_alone_for_long_loses_nothing_of_it_when_it_meets_its_like(tmp_path: Path) -> None:
    """The partner's weights are our own, so that whatever moves us is our own past."""
    swarm = Family(tmp_path)
    node = Node(swarm, start={name: torch.zeros(shape) for name, shape in SHAPES.items()})
    ones = {name: torch.ones(shape) for name, shape in SHAPES.items()}

    def meet() -> float:
        """Lets the node find a partner with equal weights; returns its smallest weight after that, minus before."""
        swarm.known = True
        swarm.theirs = blob_of(node.parameters)
        before = min(float(parameter.detach().min()) for parameter in node.parameters.values())
        while not any(node.rounds(1)):
            pass
        return min(float(parameter.detach().min()) for parameter in node.parameters.values()) - before

    swarm.known = False
    for _ in range(20 * EVERY):
        node.learn(ones)
        node.rounds(1)
    assert meet() == 0.0  # not 0.3 · 80 back
    swarm.known = False
    for _ in range(20 * EVERY):
        node.learn(ones)
        node.rounds(1)
    assert meet() == 0.0
    assert node.state.outer is not None and node.state.outer.steps == 2  # counted on


def test_closing_in_the_middle_of_an_exchange_waits_for_nothing_and_changes_nothing(tmp_path: Path) -> None:
    swarm = Family(tmp_path, blob_of(weights(2)))
    swarm.may_answer.clear()
    node = Node(swarm)
    for _ in range(EVERY):
        node.one_round()
    assert swarm.seeking.wait(WAIT_SECONDS)
    before = node.digest()
    node.replica.close()
    node.replica.settle(WAIT_SECONDS)
    assert node.digest() == before and node.averaged() == []


@pytest.mark.parametrize("every_rounds", [1, 2, 3, 5, 50])
def test_an_interval_is_never_nothing_and_as_long_as_asked_for_on_average(every_rounds: int) -> None:
    random = Random(3)
    drawn = [interval(every_rounds, random) for _ in range(4000)]
    assert min(drawn) >= 1 and max(drawn) <= 1.5 * every_rounds
    assert sum(drawn) / len(drawn) == pytest.approx(every_rounds, rel=0.05)


def test_a_family_does_not_fall_apart_into_fixed_pairs() -> None:
    """Four nodes of one speed; a node that is due waits for the next one, and both are due again after an interval."""

    def partners(draw: Random) -> Counter[tuple[int, int]]:
        due = {node: interval(50, Random(node)) for node in range(4)}
        met: Counter[tuple[int, int]] = Counter()
        for _ in range(600):
            one, other = sorted(due, key=lambda node: (due[node], node))[:2]
            together = due[other]
            met[min(one, other), max(one, other)] += 1
            due[one], due[other] = (together + interval(50, draw) for _ in range(2))
        return met

    assert len(partners(Steady())) == 2  # what it would be with equal intervals
    met = partners(Random(1))
    assert len(met) == 6 and min(met.values()) > 600 / 6 / 2


def test_bf16_patterns_go_there_and_back() -> None:
    here = weights(4)
    back = from_bf16_bits(bf16_bits(here, LAYOUT), LAYOUT)
    assert digest(back) == digest({name: tensor.to(torch.bfloat16) for name, tensor in here.items()})
    assert {name: tuple(tensor.shape) for name, tensor in back.items()} == SHAPES


def test_a_step_after_which_success_falls_is_taken_back_to_the_bit_and_its_partner_avoided(tmp_path: Path) -> None:
    family = Family(tmp_path, blob_of({name: -2.9 * tensor for name, tensor in weights(1).items()}))
    node = Node(family)
    node.rounds(EVERY)
    before = digest(node.optimizer.masters())
    (changed,) = node.rounds(1)
    assert changed and digest(node.optimizer.masters()) != before
    node.rewards = [(0.0, 0.0)] * 8
    node.rounds(1)
    assert node.taken_back and digest(node.optimizer.masters()) == before
    (event,) = [event for event in node.events if isinstance(event, AveragingTakenBack)]
    assert (event.partner, event.groups, event.averaged_round) == ("bob", 8, EVERY + 1)
    assert decode_event(encode_event(event)) == event
    assert node.state.outer is not None and digest(node.state.outer.outer) == before
    assert all(not tensor.any() for tensor in averaging_momentum(node))
    node.rewards = [(0.0, 1.0)] * 8
    node.rounds(EVERY)
    assert family.known_partners[-1].avoided == ("bob",)
    assert family.judged == [("bob", api.Judgement.HARMFUL_WEIGHTS)]


def averaging_momentum(node: Node) -> list[Tensor]:
    assert isinstance(node.state.outer, noloco.OuterState)
    return list(node.state.outer.momentum.values())


def test_weights_on_trial_are_not_offered_before_a_round_has_shown_what_they_do(tmp_path: Path) -> None:
    family = Family(tmp_path, blob_of(weights(2)))
    node = Node(family, every_rounds=1)
    node.rounds(1)
    node.rewards = []
    node.rounds(3)
    assert len(family.blobs) == 1
    node.rewards = [(0.0, 1.0)] * 4
    node.rounds(1)
    assert len(family.blobs) == 2


def test_what_was_learnt_goes_with_every_offer_to_compare_first_distances_with(tmp_path: Path) -> None:
    family = Family(tmp_path, blob_of(weights(2)))
    node = Node(family)
    first = {name: tensor.clone() for name, tensor in node.optimizer.masters().items()}
    node.step(5)
    learnt = sum(float((tensor - first[name]).square().sum()) for name, tensor in node.optimizer.masters().items())
    node.rounds(EVERY + 1)
    assert family.known_partners[0].learnt == pytest.approx(learnt**0.5, rel=1e-5)
    assert node.state.averaging.learnt == pytest.approx(learnt**0.5, rel=1e-5)
