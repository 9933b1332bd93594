"""One learner beside honest peers and poisoners: the real learner, the built-in models, the default swarm's tasks.

The honest peers are real learners too (``HONEST``). They learn by themselves, so that what they announce does not
depend on the victim: it is recorded once for each seed and played back, each model under ``IDENTITIES`` names.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final
from unittest.mock import patch

import msgspec
import torch

from node.configuration import Config, PolicySection
from node.engines.torch import TorchEngine
from node.evaluation.evaluation import mean_rewards
from node.events import Event, ForeignGroups, InfluenceWithdrawn, RoundDone
from node.learner.assembly import wiring
from node.learner.assembly.wiring import learner_of
from node.learner.foreign.intake import RolloutIntake
from node.learner.influence.guard import Guard, InfluenceState
from node.learner.influence.standing import Standings
from node.learner.loop import Learner
from node.learner.objective.forward import Network
from node.learner.state.learner_state import LearnerState
from node.learner.steps.optimizer import MasterAdamW
from node.policy.policy import Policy
from node.tasks.default_swarm import DEFAULT_TASKS
from node.tasks.split import Part, held_out_prompts
from node.tasks.task import Task
from protocol.messages import Heartbeat
from protocol.rollouts import Group, advert_of, decode_group, encode_group
from scripts import REPOSITORY
from scripts.attacks.poisoning.careless import NoGuard
from scripts.attacks.poisoning.kinds import Crowd
from scripts.experiments.harness.nodes_run import ROUND_SECONDS, WAIT_SECONDS, OwnProcessScorer, WaitingIntake
from swarm.api import Fetched, Judgement, PeerStatus, SeenGroup, SwarmStatus, Wanted

VICTIM: Final = "wren"
HONEST: Final = ("robin", "finch")
IDENTITIES: Final = 2  # of each honest model, which share what it announces
GROUPS: Final = 16  # own ones a round; as many of peers, and what the default rule sees again
MEASURED_PROMPTS: Final = 64  # of each task
RECORDINGS: Final = REPOSITORY / ".experiments" / "poisoners"
TASKS: Final[Mapping[str, Task]] = {task.name: task for task in DEFAULT_TASKS}


KEPT_GROUPS: Final = 4096  # as many as a swarm process keeps


class Board:
    """Does for one learner in this process what its swarm process does: groups are really encoded, and fetched from
    files. ``now_seconds`` is set by the caller."""

    def __init__(self, folder: Path) -> None:
        self.now_seconds = 1_700_000_000.0
        self.shared: list[Group] = []  # by the learner itself, since last taken
        self._folder, self._seen, self._cursor = folder, list[SeenGroup](), 0
        folder.mkdir(parents=True, exist_ok=True)

    def announce(self, peer: str, group: Group) -> None:
        content = encode_group(group)
        advert = advert_of(group, content)
        (self._folder / advert.blob.hex()).write_bytes(content)
        self._cursor += 1
        self._seen.append(
            SeenGroup(self._cursor, peer, self.now_seconds, group.family, group.tokenizer, group.policy_version, advert)
        )
        del self._seen[:-KEPT_GROUPS]

    def take_shared(self) -> list[Group]:
        taken, self.shared = self.shared, []
        return taken

    # ``node.learner.foreign.swarm_calls.Swarm``

    def status(self) -> SwarmStatus:
        return SwarmStatus(
            "victim", "test", "", (), 0.0, len({each.peer for each in self._seen}), None, 0, 0, 0, {}, {}
        )

    def peers(self) -> list[PeerStatus]:
        return []

    def share(self, groups: Sequence[Group]) -> None:
        self.shared += groups

    def seen_groups(self, after: int, limit: int) -> list[SeenGroup]:
        return [seen for seen in self._seen if seen.cursor > after][:limit]

    def fetch(self, wanted: Sequence[Wanted], *, deadline_seconds: float) -> list[Fetched]:
        return [Fetched(each.blob, str(self._folder / each.blob.hex()), None) for each in wanted]

    def beat(self, heartbeat: Heartbeat) -> None:
        pass

    def judge(self, peer: str, blob: bytes, judgement: Judgement, detail: str = "") -> None:
        pass


@dataclass(slots=True)
class Learnt:
    """One victim's run."""

    reward: list[float] = field(default_factory=list)  # own, sampled, by round
    final: dict[str, float] = field(default_factory=dict)  # by task, sampled on held-out prompts after the last round
    used: list[dict[str, int]] = field(default_factory=list)  # groups trained on, by peer, by round
    rejected: dict[str, int] = field(default_factory=dict)
    harms: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of the round, by phase "learn" alone


@contextmanager
def learner_on(
    board: Board,
    model: str,
    tasks: Mapping[str, Task],
    seed: int,
    *,
    groups: int = GROUPS,  # own ones a round
    foreign: int | str = "auto",
    report: Callable[[Event], None] = lambda event: None,
    trusting: bool = False,
    guard: type[Guard] = Guard,
) -> Iterator[tuple[Learner, RolloutIntake, Policy]]:
    """Yields a real learner whose swarm is ``board``. With ``NoGuard`` one peer may fill all places."""
    policy = Policy.load(PolicySection(model=f"builtin:{model}", device="cpu", dtype="float32"))
    sizes = {"own_groups": groups, "foreign_groups": foreign, "share_groups": groups}
    if guard is NoGuard:
        sizes["peer_share"] = 1
    config = Config.model_validate({"name": model, "seed": seed, "learner": sizes, "evaluation": {"every_rounds": 0}})
    intake = WaitingIntake(board, tasks, config.learner, lambda: board.now_seconds)
    with patch.object(wiring, "Guard", guard):
        learner = learner_of(
            config,
            policy,
            tasks,
            TorchEngine(policy, rows=groups * 4, seed=seed),
            OwnProcessScorer(tasks),
            intake,
            MasterAdamW(policy.trainable(), config.learner),
            LearnerState(influence=InfluenceState(standings=Standings(trusting))),
            report=report,
            clock=lambda: board.now_seconds,
        )
    try:
        yield learner, intake, policy
    finally:
        learner.close()
        intake.close()


def recorded(model: str, seed: int, rounds: int) -> list[list[Group]]:
    """Returns what ``model`` announces in each round while it learns alone; from a file where it was recorded."""
    path = RECORDINGS / f"{model}-{seed}-{rounds}-{GROUPS}.msgpack"
    if not path.is_file():
        announced: list[list[bytes]] = []
        with tempfile.TemporaryDirectory() as folder:
            board = Board(Path(folder))
            with learner_on(board, model, TASKS, seed, foreign=0) as (learner, intake, _):
                for _ in range(rounds):
                    learner.round()
                    intake.settle(WAIT_SECONDS)
                    board.now_seconds += ROUND_SECONDS
                    announced.append([encode_group(group) for group in board.take_shared()])
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(msgspec.msgpack.encode(announced))
        unfinished.rename(path)
    by_round = msgspec.msgpack.decode(path.read_bytes(), type=list[list[bytes]])
    return [[decode_group(blob) for blob in blobs] for blobs in by_round]


def learnt_beside(
    kind: str | None,
    *,
    seed: int,
    rounds: int,
    poisoners: int,
    tasks: Mapping[str, Task] = TASKS,
    trusting: bool = False,
    guarded: bool = True,
    from_round: int = 1,
    honest: Sequence[str] = HONEST,
    identities: int = IDENTITIES,
) -> Learnt:
    """Runs the victim beside the honest peers and ``poisoners`` of ``kind`` (None: without), from ``from_round`` on.

    Not ``guarded``: whatever is right is learnt from, as much as comes.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    result = Learnt()
    rejected: dict[str, int] = {}

    def note(event: Event) -> None:
        if isinstance(event, ForeignGroups):
            used = {peer: by.get("used", 0) + by.get("replayed", 0) for peer, by in event.by_peer.items()}
            result.used.append({peer: count for peer, count in used.items() if count})
        elif isinstance(event, InfluenceWithdrawn):
            result.harms.append(f"round {event.round}: {event.action} {', '.join(event.peers)}")
        elif isinstance(event, RoundDone):
            while len(result.used) < len(result.reward) + 1:
                result.used.append({})  # a round that decided on no foreign group
            result.reward.append(event.reward)
            result.seconds.append(event.phases.learn)
            for reason, count in event.foreign_rejected.items():
                rejected[reason] = rejected.get(reason, 0) + count

    peers = {model: recorded(model, 100 + seed, rounds) for model in honest}
    with tempfile.TemporaryDirectory() as folder:
        board = Board(Path(folder))
        guard = Guard if guarded else NoGuard
        with learner_on(board, VICTIM, tasks, seed, report=note, trusting=trusting, guard=guard) as (
            learner,
            intake,
            policy,
        ):
            context = Network.of(policy.model).context
            crowd = Crowd(TASKS, policy.tokens, context=context)
            for number in range(1, rounds + 1):
                for model, announced in peers.items():
                    for index, group in enumerate(announced[number - 1]):
                        board.announce(f"{model}-{index % identities}", group)
                for index in range(poisoners if kind is not None and number >= from_round else 0):
                    for group in crowd.poisoner(str(kind))(
                        number - from_round + 1, Random(f"{kind} {seed} {index} {number}")
                    ):
                        board.announce(f"poisoner-{index}", group)
                learner.round()
                intake.settle(WAIT_SECONDS)
                for fault in intake.faults():
                    raise fault
                board.now_seconds += ROUND_SECONDS
            result.rejected = dict(sorted(rejected.items()))
            engine = TorchEngine(policy, rows=256, seed=7)
            asked = held_out_prompts(tasks, Part.TEST, MEASURED_PROMPTS)
            result.final = mean_rewards(
                policy.tokens, engine, OwnProcessScorer(tasks), tasks, asked,
                samples=4, temperature=1.0, seed=7, context=context,
            )  # fmt: skip
    return result
