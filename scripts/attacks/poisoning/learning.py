"""One learner beside honest peers and attackers: the real learner, by default on the default swarm's tasks.

The honest peers are real learners too (``HONEST``). They learn by themselves, so that what they announce does not
depend on the victim: it is recorded once for each seed and played back, each model under ``IDENTITIES`` names.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from scripts.experiments.harness.experiment import Settings
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

    def note(self, event: Event) -> None:
        if isinstance(event, ForeignGroups):
            used = {peer: by.get("used", 0) + by.get("replayed", 0) for peer, by in event.by_peer.items()}
            self.used.append({peer: count for peer, count in used.items() if count})
        elif isinstance(event, InfluenceWithdrawn):
            self.harms.append(f"round {event.round}: {event.action} {', '.join(event.peers)}")
        elif isinstance(event, RoundDone):
            while len(self.used) < len(self.reward) + 1:
                self.used.append({})  # a round that decided on no foreign group
            self.reward.append(event.reward)
            self.seconds.append(event.phases.learn)
            for reason, count in event.foreign_rejected.items():
                self.rejected[reason] = self.rejected.get(reason, 0) + count


def configured(
    name: str, seed: int, *, groups: int = GROUPS, foreign: int | str = "auto", settings: Settings | None = None
) -> Config:
    """Returns a learner's configuration: ``groups`` own ones a round, and ``settings`` over the defaults."""
    given = settings or {}
    sizes = {"own_groups": groups, "foreign_groups": foreign, "share_groups": groups, **given.get("learner", {})}
    return Config.model_validate(
        {"name": name, "seed": seed, "evaluation": {"every_rounds": 0}, **given, "learner": sizes}
    )


@contextmanager
def learner_on(
    board: Board,
    model: str | Path,
    tasks: Mapping[str, Task],
    seed: int,
    *,
    groups: int = GROUPS,  # own ones a round
    foreign: int | str = "auto",
    report: Callable[[Event], None] = lambda event: None,
    trusting: bool = False,
    guard: type[Guard] = Guard,
    settings: Settings | None = None,
) -> Iterator[tuple[Learner, RolloutIntake, Policy]]:
    """Yields a real learner whose swarm is ``board``. ``model`` is a built-in one's name, or the folder of another.
    With ``NoGuard`` one peer may fill all places."""
    source = str(model) if isinstance(model, Path) else f"builtin:{model}"
    policy = Policy.load(PolicySection(model=source, device="cpu", dtype="float32"))
    given = dict(settings or {})
    if guard is NoGuard:
        given["learner"] = {"peer_share": 1, **given.get("learner", {})}
    config = configured(name_of(model), seed, groups=groups, foreign=foreign, settings=given)
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


def name_of(model: str | Path) -> str:
    return model.name if isinstance(model, Path) else model


def rounds_beside(
    board: Board,
    learner: Learner,
    intake: RolloutIntake,
    numbers: Iterable[int],
    announced: Callable[[int], Iterable[tuple[str, Group]]],
) -> None:
    """Runs the rounds ``numbers``; before each, the groups that ``announced`` returns for it are on the board, each
    under its peer's name."""
    for number in numbers:
        for peer, group in announced(number):
            board.announce(peer, group)
        learner.round()
        intake.settle(WAIT_SECONDS)
        for fault in intake.faults():
            raise fault
        board.now_seconds += ROUND_SECONDS


def recorded(
    model: str | Path, seed: int, rounds: int, tasks: Mapping[str, Task] = TASKS, recordings: Path = RECORDINGS
) -> list[list[Group]]:
    """Returns what ``model`` announces in each round while it learns alone; from a file where it was recorded."""
    path = recordings / f"{name_of(model)}-{seed}-{rounds}-{GROUPS}.msgpack"
    if not path.is_file():
        announced: list[list[bytes]] = []
        with tempfile.TemporaryDirectory() as folder:
            board = Board(Path(folder))
            with learner_on(board, model, tasks, seed, foreign=0) as (learner, intake, _):
                for number in range(rounds):
                    rounds_beside(board, learner, intake, [number], lambda _: ())
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
    peers = {model: recorded(model, 100 + seed, rounds) for model in honest}
    with tempfile.TemporaryDirectory() as folder:
        board = Board(Path(folder))
        guard = Guard if guarded else NoGuard
        with learner_on(board, VICTIM, tasks, seed, report=result.note, trusting=trusting, guard=guard) as (
            learner,
            intake,
            policy,
        ):
            context = Network.of(policy.model).context
            crowd = Crowd(TASKS, policy.tokens, context=context)

            def announced(number: int) -> Iterator[tuple[str, Group]]:
                for model, by_round in peers.items():
                    for index, group in enumerate(by_round[number - 1]):
                        yield f"{model}-{index % identities}", group
                for index in range(poisoners if kind is not None and number >= from_round else 0):
                    draws = Random(f"{kind} {seed} {index} {number}")
                    for group in crowd.poisoner(str(kind))(number - from_round + 1, draws):
                        yield f"poisoner-{index}", group

            rounds_beside(board, learner, intake, range(1, rounds + 1), announced)
            result.rejected = dict(sorted(result.rejected.items()))
            engine = TorchEngine(policy, rows=256, seed=7)
            asked = held_out_prompts(tasks, Part.TEST, MEASURED_PROMPTS)
            result.final = mean_rewards(
                policy.tokens, engine, OwnProcessScorer(tasks), tasks, asked,
                samples=4, temperature=1.0, seed=7, context=context,
            )  # fmt: skip
    return result
