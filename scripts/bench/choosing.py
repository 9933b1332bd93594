"""Bytes that a learner fetches per foreign completion trained on, against a learner that fetches every group.

    python -m scripts.bench.choosing [--rounds 6] [--json]

Eight peers announce 32 groups of 4 each in every round: completions of the three built-in models on the default tasks,
selected as a node selects what it shares (``worth_sharing``). One learner, builtin:robin with the default
configuration, trains through these rounds: its rounds, its choice, its checks and its optimizer steps are the node's
own code; only the swarm process is replaced by a folder of encoded groups. Bytes are those of the blobs as they travel.

A completion counts each time that it is trained on with an advantage other than zero. The comparison fetches every
group announced in these rounds and trains on the same completions as the learner did, as in a swarm that sends whole
rollouts to every node. Also reported: the same with each group used only once, a learner that fetches and trains on
every group that helps it, and SAPO's rule.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from node.configuration import DEFAULT_ROWS, Config, LearnerSection, PolicySection, TasksSection, chosen
from node.engines.engine import GenerationRequest, Sampling
from node.engines.torch import TorchEngine
from node.events import RoundDone
from node.learner.allocation.allocator import allocate
from node.learner.assembly.wiring import learner_of
from node.learner.foreign.intake import RolloutIntake
from node.learner.generation.own_rollouts import Rollout, group_of, scoring_item, worth_sharing
from node.learner.state.learner_state import LearnerState
from node.learner.steps.optimizer import MasterAdamW
from node.policy.policy import Policy
from node.tasks.registry import load_tasks
from node.tasks.task import Task
from protocol.messages import Heartbeat
from protocol.rollouts import Group, advert_of, encode_group
from scripts.bench.common.reporting import Figure, add_json_flag, report
from scripts.experiments.harness.nodes_run import OwnProcessScorer
from swarm.api import Fetched, Judgement, PeerStatus, SeenGroup, SwarmStatus, Wanted

PEERS: Final = 8
ANNOUNCED: Final = 32  # groups, by each peer in a round
TRIED: Final = 256  # prompts, of which these groups are the best
COMPLETIONS: Final = 4
MODELS: Final = ("builtin:wren", "builtin:robin", "builtin:finch")
LEARNER: Final = "builtin:robin"
SECONDS_A_ROUND: Final = 5.0
SETTLE_SECONDS: Final = 60.0  # a hang guard
EPOCH_SECONDS: Final = 1_000_000.0


@dataclass
class FolderSwarm:
    """Stands in for the swarm process of one learner: adverts from a list, blobs from a folder."""

    folder: Path
    adverts: list[SeenGroup] = field(default_factory=list)

    def put(self, peer: str, group: Group, now_seconds: float) -> int:
        """Announces one group; returns the size of its blob."""
        blob = encode_group(group)
        advert = advert_of(group, blob)
        (self.folder / advert.blob.hex()).write_bytes(blob)
        cursor = len(self.adverts) + 1
        policy = group.family, group.tokenizer, group.policy_version
        self.adverts.append(SeenGroup(cursor, peer, now_seconds, *policy, advert))
        return len(blob)

    def status(self) -> SwarmStatus:
        return SwarmStatus("learner", "benchmark", "", (), 0.0, PEERS, None, 0, 0, 0, {}, {})

    def peers(self) -> list[PeerStatus]:
        names = sorted({seen.peer for seen in self.adverts})
        return [PeerStatus(name, True, (), None, None, None, 0, 0, 0, 0.5, None) for name in names]

    def seen_groups(self, after: int, limit: int) -> list[SeenGroup]:
        return self.adverts[after : after + limit]

    def fetch(self, wanted: Sequence[Wanted], *, deadline_seconds: float) -> list[Fetched]:
        return [Fetched(each.blob, str(self.folder / each.blob.hex()), None) for each in wanted]

    def share(self, groups: Sequence[Group]) -> None:
        """Does nothing: there is no peer."""

    def beat(self, heartbeat: Heartbeat) -> None:
        """Does nothing: there is no peer."""

    def judge(self, peer: str, blob: bytes, judgement: Judgement, detail: str = "") -> None:
        if judgement not in (Judgement.USED, Judgement.UNUSED):
            raise AssertionError(f"a group of an honest peer was judged {judgement}: {detail}")


class Generator:
    """One built-in model that does not learn, and the groups that it would share in a round."""

    def __init__(self, model: str, tasks: dict[str, Task]) -> None:
        self._policy = Policy.load(PolicySection(model=model, device="cpu"))
        self._engine = TorchEngine(self._policy, rows=256, seed=0)
        self._tasks, self._scorer = tasks, OwnProcessScorer(tasks)

    def groups(self, round_number: int, peer: str) -> list[Group]:
        drawn = allocate(round_number, peer, list(self._tasks), groups=TRIED, completions=COMPLETIONS)
        tokens, prompts, requests = self._policy.tokens, [], []
        for allocation in drawn:
            task = self._tasks[allocation.task]
            prompt = task.prompt(task.ref(allocation.prompt_seed))
            prompts.append(prompt)
            prompt_ids = tuple(tokens.prompt_ids(prompt.text))
            requests.append(GenerationRequest(prompt_ids, allocation.completions, task.max_new_tokens))
        seed = int.from_bytes(f"{round_number} {peer}".encode()) % 2**63
        rollouts = [
            Rollout(prompt, tuple(request.prompt_ids), tuple(s), tuple(tokens.text_of(x.token_ids.tolist()) for x in s))
            for prompt, request, s in zip(
                prompts, requests, self._engine.generate(requests, Sampling(1.0, seed)), strict=True
            )
        ]
        scores = self._scorer.score([scoring_item(r.prompt.ref, r.texts) for r in rollouts])
        rewards = [each.rewards for each in scores]
        chosen = worth_sharing(rewards, [r.prompt.ref.task for r in rollouts], ANNOUNCED)
        return [group_of(rollouts[i], rewards[i], tokens, family=self._policy.family) for i in chosen]


def announced(rounds: int, tasks: dict[str, Task]) -> list[list[tuple[str, Group]]]:
    """Returns, for each round, the announced groups with their peers."""
    generators = {model: Generator(model, tasks) for model in MODELS}
    return [
        [
            (peer, group)
            for index in range(PEERS)
            for peer in [f"peer{index}"]
            for group in generators[MODELS[index % len(MODELS)]].groups(number, peer)
        ]
        for number in range(rounds)
    ]


@dataclass(frozen=True)
class LearnerTraffic:
    announced_bytes: int
    announced_groups: int
    last: RoundDone

    def per_completion(self) -> float:
        """Returns the bytes fetched for each foreign completion trained on."""
        return self.last.bytes_fetched_total / self.last.foreign_completions_total

    def per_completion_of_all(self) -> float:
        """Returns the same for a learner that fetches every announced group."""
        return self.announced_bytes / self.last.foreign_completions_total


def learn_through(rounds: list[list[tuple[str, Group]]], tasks: dict[str, Task], **keys: Any) -> LearnerTraffic:
    """Trains a new learner through the rounds, with defaults except ``keys`` of [learner] and [objective.research]."""
    research = {key: keys.pop(key) for key in ("foreign_advantage", "foreign_choice") if key in keys}
    config = Config.model_validate(
        {
            "name": "learner",
            "policy": {"model": LEARNER, "device": "cpu"},
            "learner": LearnerSection(**keys).model_dump(),
            "objective": {"research": research},
        }
    )
    policy = Policy.load(config.policy)
    optimizer = MasterAdamW(policy.trainable(), config.learner)
    with tempfile.TemporaryDirectory() as folder:
        swarm, now, last, size = FolderSwarm(Path(folder)), [EPOCH_SECONDS], None, 0
        intake = RolloutIntake(swarm, tasks, config.learner, lambda: now[0], research=config.objective.research)
        engine = TorchEngine(policy, rows=chosen(config.engine.rows, DEFAULT_ROWS), seed=0)
        parts = config, policy, tasks, engine, OwnProcessScorer(tasks), intake, optimizer, LearnerState()
        learner = learner_of(*parts, report=lambda _: None, clock=lambda: now[0])
        for of_round in rounds:
            now[0] += SECONDS_A_ROUND
            size += sum(swarm.put(peer, group, now[0]) for peer, group in of_round)
            last = learner.round()
            intake.settle(SETTLE_SECONDS)
        learner.close()
        intake.close()
    assert last is not None
    return LearnerTraffic(size, len(swarm.adverts), last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    add_json_flag(parser)
    arguments = parser.parse_args()
    tasks = load_tasks(TasksSection())
    rounds = announced(arguments.rounds, tasks)
    chosen = learn_through(rounds, tasks)
    once = learn_through(rounds, tasks, foreign_uses=1)
    sapo = learn_through(rounds, tasks, foreign_uses=1, foreign_choice="uniform", foreign_advantage="group")
    everything = learn_through(rounds, tasks, foreign_uses=1, foreign_groups=PEERS * ANNOUNCED)
    figures = [
        Figure("groups announced a round", chosen.announced_groups / arguments.rounds, "groups", "higher"),
        Figure("foreign completions trained on", chosen.last.foreign_completions_total, "", "higher"),
        Figure("fetched for each", chosen.per_completion(), "B", "lower"),
        Figure("fetched for each, all groups fetched", chosen.per_completion_of_all(), "B", "lower"),
        Figure("ratio", chosen.per_completion() / chosen.per_completion_of_all(), "x", "lower", "<= 0.25"),
        Figure("ratio, groups used once", once.per_completion() / once.per_completion_of_all(), "x", "lower"),
        Figure("trained on all that helps, fetched for each", everything.per_completion(), "B", "lower"),
        Figure("SAPO's rule, fetched for each", sapo.per_completion(), "B", "lower"),
        Figure("SAPO's rule, fetched for each, all groups", sapo.per_completion_of_all(), "B", "lower"),
        Figure(
            "ratio to SAPO's rule, all groups", chosen.per_completion() / sapo.per_completion_of_all(), "x", "lower"
        ),
    ]
    report("choosing", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
