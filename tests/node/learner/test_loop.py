"""The round for real, of a node that trains alone, shares, ends: tiny random models, real engine and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from node.checkpoints.checkpoints import read_newest
from node.configuration import LearnerSection, ObjectiveSection, ResearchSection
from node.engines.engine import Ended, Enough, GenerationProgress, GenerationRequest, Sampling, Turns
from node.engines.torch import TorchEngine
from node.events import (
    CheckpointSaved,
    Fault,
    PhaseBegan,
    RoundDone,
    decode_event,
    encode_event,
)
from node.learner.foreign.intake import NO_SWARM_PROCESS
from node.learner.round import report
from node.tasks.scorer import ScoringFault as ScoringFault
from protocol.blob_id import blob_id
from tests.node.learner.letter_node import (
    WAIT_SECONDS,
    MemorySwarm,
    Node,
    policy,
    right_group,
)


def test_node_without_a_swarm_process_trains_alone_and_says_why() -> None:
    node = Node("ann")
    before = {n: p.detach().clone() for n, p in node.policy.trainable().items()}
    rounds = [node.round() for _ in range(3)]
    assert [r.round for r in rounds] == [1, 2, 3]
    assert all(r.alone_because == NO_SWARM_PROCESS for r in rounds)
    assert all(r.own_groups == 4 and r.foreign_groups_used == 0 and r.groups_offered == 0 for r in rounds)
    assert rounds[-1].tokens_generated_total == sum(r.tokens_generated for r in rounds) > 0
    assert any(not torch.equal(before[n], p) for n, p in node.policy.trainable().items())
    assert rounds[-1].policy_version == sum(r.loss is not None for r in rounds)
    assert node.learner.state.success.of("first") != 0.1


MANY = LearnerSection(own_groups=8, completions=8)  # so that the answers to some prompt earn different rewards


def test_own_completions_are_on_policy() -> None:
    done = Node("ann", learner=MANY).round()
    assert done.divergence_by_peer["self"] == pytest.approx(0.0, abs=1e-6)
    assert done.effective_sample_share == pytest.approx(1.0, abs=1e-5)
    assert done.clip_share == 0


@pytest.mark.parametrize("steps", [1, 3])
def test_round_measures_how_far_the_engine_is_from_the_learner_before_it_steps(steps: int) -> None:
    node = Node("ann", learner=MANY, objective=ObjectiveSection(steps=steps))
    first, second = node.round(), node.round()
    for done in (first, second):
        assert done.tokens_trained and done.engine_gap is not None and done.engine_kl is not None
        assert 0 <= done.engine_kl < 1e-9
        assert done.engine_gap == pytest.approx(0.0, abs=1e-4)


def test_what_other_weights_sampled_says_nothing_about_the_engine() -> None:
    node = Node(
        "ann",
        learner=MANY,
        objective=ObjectiveSection(research=ResearchSection(weights_behind=1)),
        around=lambda engine: TorchEngine(engine.policy, rows=16, seed=0, owns_weights=True),
    )
    rounds = [node.round() for _ in range(3)]
    assert rounds[0].engine_kl is not None
    assert [done.engine_kl for done in rounds[1:]] == [None, None]
    assert all(done.tokens_trained for done in rounds)


class OtherProbabilities(TorchEngine):
    """Says of every token that it was half as likely again as it was."""

    def advance(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        enough: Enough | None = None,
        ended: Ended | None = None,
        turns: Turns | None = None,
    ) -> list[GenerationProgress]:
        return [
            replace(each, samples=tuple(replace(s, logps=s.logps + np.float32(np.log(1.5))) for s in each.samples))
            for each in super().advance(requests, sampling, enough, ended, turns)
        ]


def test_engine_that_samples_from_other_probabilities_is_a_fault_that_names_it() -> None:
    node = Node("ann", learner=MANY, around=lambda engine: OtherProbabilities(engine.policy, rows=16, seed=0))
    rounds = [node.round() for _ in range(2)]
    assert rounds[0].engine_gap == pytest.approx(np.log(1.5), abs=1e-3)
    assert rounds[0].engine_kl == pytest.approx(1 / 1.5 - 1 + np.log(1.5), abs=1e-3)
    [fault] = [event for event in node.events if isinstance(event, Fault)]
    assert (fault.kind, fault.fatal, fault.round) == ("engine_differs", False, 1)
    assert "the engine (torch)" in fault.detail


def test_node_alone_gets_better_at_its_tasks() -> None:
    node = Node("ann", learner=LearnerSection(own_groups=8, completions=8, learning_rate=3e-3))
    rounds = [node.round() for _ in range(80)]
    first, last = np.mean([r.reward for r in rounds[:10]]), np.mean([r.reward for r in rounds[-20:]])
    assert last > first + 0.2


def test_a_reward_that_fails_is_told_once_with_what_failed_first() -> None:
    node = Node("ann", fails=lambda text: "a" in text)
    rounds = [node.round() for _ in range(2)]
    assert all(done.scoring_failures for done in rounds)
    [fault] = [event for event in node.events if isinstance(event, Fault)]
    assert (fault.kind, fault.fatal, fault.round) == ("scoring", False, 1)
    assert fault.detail.startswith(f"{rounds[0].scoring_failures} own answers of this round got no reward")
    assert fault.detail.endswith("the first: timeout: slow")


def test_every_event_of_a_round_survives_its_way_to_the_supervisor(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"))
    swarm.put("bob", right_group(node.policy))
    node.round()
    node.round()
    assert len(node.events) >= 2
    for event in node.events:
        assert decode_event(encode_event(event)) == event


def test_connected_node_that_finds_nothing_useful_says_so(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"))
    assert node.round().alone_because == "no peer was found"
    swarm.member("bob")
    assert "none has announced a group that would help" in str(node.round().alone_because)


def test_rounds_that_follow_each_other_at_once_share_no_more_than_peers_accept(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"), learner=LearnerSection(own_groups=8, completions=8))
    done = [node.learner.round() for _ in range(3)]  # no time passes
    node.intake.settle(WAIT_SECONDS)
    assert done[0].groups_offered > 0
    assert [r.groups_offered for r in done[1:]] == [0, 0]
    assert node.round().groups_offered > 0


def test_shared_group_holds_what_was_generated(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"), learner=LearnerSection(own_groups=8, completions=8))
    done = node.round()
    assert len(swarm.board) == done.groups_offered > 0
    for seen in swarm.board:
        content = (swarm.folder / seen.advert.blob.hex()).read_bytes()
        assert blob_id(content) == seen.advert.blob
        assert max(seen.advert.rewards) == 1.0
        assert seen.policy_version == 0
        assert seen.family == node.policy.family


@pytest.mark.parametrize(("limits", "because"), [({"rounds": 3}, "rounds"), ({"tokens": 40}, "tokens"), ({}, "asked")])
def test_run_ends_at_its_limit_or_when_asked_with_a_checkpoint(
    tmp_path: Path, limits: dict[str, Any], because: str
) -> None:
    node = Node("ann", folder=tmp_path, **limits)
    rounds_seen = [0]

    def should_stop() -> str | None:
        rounds_seen[0] += 1
        return "asked" if rounds_seen[0] > 5 and not limits else None

    stopped = node.learner.run(should_stop)
    assert stopped.because == because
    done = [e for e in node.events if isinstance(e, RoundDone)]
    assert stopped.round == len(done) == {"rounds": 3, "tokens": len(done), "asked": 5}[because]
    if because == "tokens":
        assert done[-1].tokens_generated_total >= 40 > done[-1].tokens_generated_total - done[-1].tokens_generated
    saved = read_newest(tmp_path)
    assert saved.snapshot is not None
    assert saved.snapshot.round == stopped.round
    assert stopped.checkpoint == str(saved.path)
    assert [e.round for e in node.events if isinstance(e, CheckpointSaved)][-1] == stopped.round


def test_interrupted_run_goes_on_exactly_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole = Node("ann", folder=tmp_path / "whole", rounds=4)
    whole.learner.run(lambda: None)
    first = Node("ann", folder=tmp_path / "parts", rounds=2)
    first.learner.run(lambda: None)
    second = Node("ann", own_policy=policy(77), folder=tmp_path / "parts", rounds=2)
    second.learner.run(lambda: None)
    ours, theirs = whole.policy.trainable(), second.policy.trainable()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert second.learner.state == whole.learner.state
    rounds = [
        [(e.round, e.reward, e.loss) for e in n.events if isinstance(e, RoundDone)] for n in (first, second, whole)
    ]
    assert rounds[0] + rounds[1] == rounds[2]


def test_a_round_says_what_it_is_at_where_that_took_long_in_the_round_before(
    monkeypatch: pytest.MonkeyPatch, swarm: MemorySwarm
) -> None:
    node = Node("ann", swarm.member("ann"))
    monkeypatch.setattr(report, "SLOW_PHASE_SECONDS", -1.0)
    node.round()
    assert not any(isinstance(event, PhaseBegan) for event in node.events)  # there was no round before
    monkeypatch.setattr(report, "SLOW_PHASE_SECONDS", 1e9)
    node.round()
    node.round()
    told = [(event.round, event.phase) for event in node.events if isinstance(event, PhaseBegan)]
    assert told == [(2, phase) for phase in ("allocate", "generate", "collect", "score", "learn", "publish")]
