"""A simulated node for what displays a node: the state of a supervisor after some rounds in a swarm, from a seed.

The events go through the supervisor's own ``RunRecord``, the peers through its own ``peer_view``; the API that serves
it is the real one.
"""

from __future__ import annotations

import math
import random

from msgspec.structs import replace

from node.api.answers import paused_line, peer_view
from node.api.record import RunRecord
from node.api.types import ChildStatus, NodeState, NodeStatus, Paused, PeersAnswer
from node.events import Averaged, CheckpointSaved, ForeignGroups, GroupOutcome, LearnerReady, Phases, RoundDone, Usage
from node.trying.messages import TryRequest
from node.trying.tried import Tried
from protocol.messages import Heartbeat, TaskSuccess
from swarm.api import ExchangeStatus, PeerStatus, SwarmStatus

TASKS = (
    "number_filtering",
    "basic_arithmetic",
    "fraction_simplification",
    "number_sorting",
    "rotate_matrix",
    "spell_backward",
)
NAMES = ("wren", "heron", "lark", "tern", "swift", "dunlin", "plover", "knot", "siskin", "martin", "jay", "rook")
MODELS = ("Qwen/Qwen3-0.6B", "HuggingFaceTB/SmolLM2-360M", "google/gemma-3-270m", "starling/tiny-1")
NOT_USED = ("late", "stale", "all_equal", "not_better", "crowded_out", "false_reward")
ROUND_SECONDS = 14.0
HOME = "/home/ann/.local/share/starling"


class SimulatedNode:
    """Answers what the API asks of a supervisor."""

    def __init__(self, now_seconds: float, *, peers: int = 12, rounds: int = 400, seed: int = 7) -> None:
        self._random = random.Random(seed)
        self.record = RunRecord()
        self.ids = [_peer_id(self._random) for _ in range(peers)]
        outcomes: dict[str, dict[str, int]] = {}
        done = None
        for number in range(1, rounds + 1):
            then_seconds = now_seconds - (rounds - number) * ROUND_SECONDS
            done = self.round_done(number, then_seconds, done)
            groups = self.foreign_groups(done)
            for event in (done, groups, self._usage(then_seconds, number)):
                self.record.add(event)
            for peer, counts in groups.by_peer.items():
                total = outcomes.setdefault(peer, {})
                for outcome, count in counts.items():
                    total[outcome] = total.get(outcome, 0) + count
        self._now_seconds = now_seconds
        self._status = self._status_of(now_seconds, done)
        self._peers = PeersAnswer(
            tuple(
                peer_view(self._peer(index, peer, now_seconds, rounds), self.record.rollouts.outcomes_of(peer))
                for index, peer in enumerate(self.ids)
            )
        )

    def status(self) -> NodeStatus:
        return self._status

    def peers(self) -> PeersAnswer:
        return self._peers

    def request_stop(self, because: str, *, typed: bool) -> None:
        raise AssertionError(f"a simulated node cannot be stopped: {because}")

    def pause(self, for_seconds: float | None, *, at_once: bool) -> Paused | None:
        since = self._now_seconds
        paused = Paused(since, "asked by its owner", None if for_seconds is None else since + for_seconds)
        self.change(paused=paused, state=NodeState.PAUSED, waiting_for=paused_line(paused, since))
        return paused

    def resume(self, for_seconds: float | None) -> Paused | None:
        self.change(paused=None, state=NodeState.TRAINING, waiting_for="the learner is starting")
        return None

    async def try_model(self, request: TryRequest) -> Tried:
        raise AssertionError(f"a simulated node answers no question: {request.text}")

    def change(self, **changes: object) -> None:
        """Changes fields of the status, as an event would."""
        self._status = replace(self._status, **changes)

    def change_peers(self, peers: PeersAnswer) -> None:
        self._peers = peers

    def round_done(self, number: int, then_seconds: float, before: RoundDone | None) -> RoundDone:
        chance = self._random
        success = {
            task: 0.08 + 0.85 / (1 + math.exp(-(number - 50 - 45 * index) / 45)) for index, task in enumerate(TASKS)
        }
        reward = {task: min(1.0, max(0.0, value + chance.gauss(0, 0.06))) for task, value in success.items()}
        rejected = {reason: chance.randrange(3) for reason in NOT_USED[:5]}
        rejected["false_reward"] = int(number % 97 == 0)
        used, seconds = chance.randrange(1, 5), chance.uniform(12, 16)
        generated = chance.randrange(17_000, 22_000)
        return RoundDone(
            time_seconds=then_seconds,
            round=number,
            policy_version=number,
            seconds=seconds,
            phases=Phases(allocate=0.1, generate=7.0, collect=1.0, score=0.4, learn=4.9, publish=0.2),
            reward=sum(reward.values()) / len(reward),
            reward_by_task=reward,
            success_by_task=success,
            samples_by_task=dict.fromkeys(TASKS, 640),
            own_groups=16,
            own_groups_informative=11,
            own_groups_dropped=5,
            staleness_mean=0.4,
            staleness_max=2,
            foreign_groups_used=used,
            foreign_groups_replayed=1,
            foreign_fetched=used + 2,
            foreign_rejected=rejected,
            groups_offered=9,
            groups_offered_total=9 * number,
            foreign_groups_used_total=used + (before.foreign_groups_used_total if before else 0),
            tokens_generated=generated,
            tokens_generated_total=generated + (before.tokens_generated_total if before else 0),
            tokens_trained=generated // 2,
            tokens_per_second=generated / seconds,
            trained_tokens_per_second=generated / seconds / 2,
            bytes_fetched=210_000,
            scoring_failures=0,
            loss=0.02,
            gradient_norm=0.4,
            steps_skipped_total=0,
            effective_sample_share=chance.uniform(0.84, 0.95),
            clip_share=0.01,
            floor_share=0.0,
            filter_share=0.0,
            multi_token_span_share=0.1,
            entropy=0.8,
            divergence_by_peer={},
            alone_because=None,
        )

    def foreign_groups(self, done: RoundDone) -> ForeignGroups:
        """Returns the groups behind the round's counts."""
        given = ["used"] * done.foreign_groups_used + ["replayed"] * done.foreign_groups_replayed
        given += [reason for reason, count in done.foreign_rejected.items() for _ in range(count)]
        self._random.shuffle(given)
        groups = []
        by_peer: dict[str, dict[str, int]] = {}
        for outcome in given if self.ids else ():
            near = min(int(self._random.expovariate(0.5)), len(self.ids) - 1)
            peer = self.ids[-1 if outcome == "false_reward" else near]
            mean = 0.0 if outcome == "all_equal" else self._random.uniform(0.2, 0.8)
            spread = 0.0 if outcome == "all_equal" else math.sqrt(mean * (1 - mean))
            groups.append(GroupOutcome(peer, self._random.choice(TASKS), 8, mean, spread, outcome))
            counts = by_peer.setdefault(peer, {})
            counts[outcome] = counts.get(outcome, 0) + 1
        return ForeignGroups(time_seconds=done.time_seconds, round=done.round, by_peer=by_peer, groups=tuple(groups))

    def _usage(self, then_seconds: float, number: int) -> Usage:
        return Usage(
            time_seconds=then_seconds,
            supervisor_bytes=71_000_000,
            learner_bytes=2_640_000_000,
            swarm_bytes=148_000_000,
            sent_bytes_total=412_000 * number,
            received_bytes_total=655_000 * number,
        )

    def _status_of(self, now_seconds: float, done: RoundDone | None) -> NodeStatus:
        rounds = done.round if done is not None else 0
        return NodeStatus(
            version="0.1.0",
            pid=4711,
            home=HOME,
            name="ann",
            peer=_peer_id(self._random),
            model=MODELS[0],
            state=NodeState.TRAINING,
            uptime_seconds=rounds * ROUND_SECONDS,
            swarm_process=ChildStatus(4712, 0, None),
            learner_process=ChildStatus(4713, 0, None),
            swarm=SwarmStatus(
                peer="12D3KooWx",
                swarm="starling",
                swarm_id="00",
                addresses=("/ip4/192.0.2.7/tcp/4001",),
                uptime_seconds=rounds * ROUND_SECONDS,
                connected_peers=sum(_connected(index) for index in range(len(self.ids))),
                alone_because=None,
                sent_bytes=412_000 * rounds,
                received_bytes=655_000 * rounds,
                store_bytes=90_000_000,
                accepted={"heartbeat": 4 * rounds},
                rejected={"clock": 3, "rate": 41},
            ),
            loading=None,
            ready=LearnerReady(
                time_seconds=now_seconds - rounds * ROUND_SECONDS,
                model=MODELS[0],
                family="1b" * 16,
                tokenizer="2c" * 16,
                parameters=596_049_920,
                trainable_parameters=10_092_544,
                device="cuda",
                dtype="bfloat16",
                tasks=TASKS,
                round=0,
                checkpoint=None,
                seconds=9.0,
            ),
            round=done,
            checkpoint=CheckpointSaved(
                time_seconds=now_seconds - 95, round=rounds - 7, path=f"{HOME}/c", size_bytes=41_000_000, seconds=0.3
            ),
            fault=None,
            notes=("wren joined", "the clock of jay is 2 s off"),
            averaged=Averaged(
                time_seconds=now_seconds - 180,
                round=rounds - 12,
                partner=self.ids[0] if self.ids else "12D3KooWnobody",
                because="committed",
                seconds=21.0,
                distance=0.0031,
                outer_steps=23,
                sent_bytes=9_000_000,
                received_bytes=9_000_000,
            ),
            usage=self._usage(now_seconds, rounds),
            waiting_for=f"round {rounds + 1}: generating completions",
        )

    def _peer(self, index: int, peer: str, now_seconds: float, rounds: int) -> PeerStatus:
        chance = self._random
        name = NAMES[index % len(NAMES)] + (str(index // len(NAMES)) if index >= len(NAMES) else "")
        model = index % len(MODELS)
        beat = Heartbeat(
            name=name,
            software="starling/0.1.0" if index % 5 else "starling/0.0.9",
            model=MODELS[model],
            family=bytes([27 + model]) * 16,
            tokenizer=bytes([44 + model]) * 16,
            round=chance.randrange(rounds + 1),
            policy_version=rounds,
            phase=("generate", "learn", "collect")[index % 3],
            tokens_per_second=chance.uniform(90, 2400),
            groups_offered=chance.randrange(4000),
            groups_used=chance.randrange(1500),
            tasks=tuple(TaskSuccess(task=task, samples=640, success=chance.uniform(0.3, 0.95)) for task in TASKS),
        )
        outcomes = self.record.rollouts.outcomes_of(peer)
        false = outcomes.get("false_reward", 0)
        exchange = ExchangeStatus(peer, now_seconds - 180, 21.0, True, "committed", 9_000_000, 9_000_000)
        return PeerStatus(
            peer=peer,
            connected=_connected(index),
            addresses=(f"/ip4/192.0.2.{index % 250 + 8}/tcp/4001",),
            round_trip_seconds=chance.uniform(0.004, 0.19) if _connected(index) else None,
            heartbeat=beat,
            heartbeat_age_seconds=chance.uniform(0, 15),
            groups_announced=sum(outcomes.values()) + 3,
            groups_used=outcomes.get("used", 0),
            groups_rejected=false,
            reputation=max(0.0, 0.98 - 0.25 * false - 0.01 * (index % 7)),
            banned_because="a claimed reward differs from the one recomputed here" if false > 3 else None,
            clock_offset_seconds=chance.gauss(0, 0.3),
            exchanges_committed=23 if index == 0 else 0,
            exchanges_abandoned=2 if index == 0 else 0,
            last_exchange=exchange if index == 0 else None,
            groups_fetched=chance.randrange(900),
        )


def _connected(index: int) -> bool:
    return index % 6 != 5


def _peer_id(chance: random.Random) -> str:
    return "12D3KooW" + "".join(chance.choices("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", k=44))
