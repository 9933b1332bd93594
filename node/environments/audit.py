"""The audit of an environment: the same episodes in two processes that differ in what no episode may depend on.

The second process has another hash seed, time zone, locale, working folder and clock, draws from the global generators
of ``random`` and numpy between turns, and plays the episodes in the reverse order. Both get the environment's own
examples, random actions, and hostile ones, and neither has a network. What passes is evidence, not proof: an
environment that depends on something in one episode of a thousand may pass.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Final

import msgspec

from node.configuration import TasksSection
from node.environments.audit_process import AuditJob, PlayedEpisode
from node.environments.conversation import ConversationTask
from node.tasks.catalogue import find_conversation

EPISODES: Final = 60  # of each kind of actions
MOST_SECONDS: Final = 120.0  # that a process may take
MOST_SHOWN: Final = 10
_MOVE: Final = re.compile(r"\[[^\[\]\n]{1,40}\]|'[^'\n]{1,40}'|\"[^\"\n]{1,40}\"")
HOSTILE: Final = (
    "", " ", "\0", "\n" * 500, "a" * 20_000, "9" * 5_000, "-1", "1e999", "nan", "0x10", "½²³", "\u202e\ufeff\u0000",
    "\U0001f426" * 500, "{0.__class__}", "%s%n%d", "__import__('os').getcwd()", "../../etc/passwd", "<answer>", "null",
    "[" * 5_000, "'; DROP TABLE people; --", "SELECT 1; SELECT 2", "PRAGMA writable_schema = 1",
    "SELECT load_extension('x')", "ATTACH ':memory:' AS y", "SELECT random()", "SELECT datetime('now')",
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c",
    "SELECT count(*) FROM people a, people b, people c, people d, people e, people f, people g, people h",
    "SELECT " + "(" * 400 + "1" + ")" * 400, "SELECT zeroblob(1000000000)", "answer:" + "x" * 5_000,
)  # fmt: skip


class Audit(msgspec.Struct, frozen=True):
    """What an audit found. It has passed where ``differs`` and ``faults`` are empty."""

    environment: str
    config_hash: str
    episodes: int
    turns: int
    differs: tuple[str, ...]  # an episode each, at its first turn that is not the same
    faults: tuple[str, ...]  # different ones: what was raised, or broke a bound
    most_seconds: float  # of a turn
    limit_seconds: float  # ``tasks.scoring_seconds``: of all turns of an episode together
    most_bytes: int  # of an observation
    limit_bytes: int

    @property
    def passed(self) -> bool:
        return not self.differs and not self.faults


def audit(section: TasksSection, name: str, *, batch: int = 0, of_each_kind: int = EPISODES) -> Audit:
    """Plays the environment called ``name`` in two processes, one after the other. A process that ends or takes too
    long is a fault of the environment, and so is a turn that takes longer than training allows for all of an episode
    (``tasks.scoring_seconds``). Each ``batch`` has other episodes. Raises ``ConfigurationError`` as
    ``find_conversation`` does."""
    task, limit_seconds = find_conversation(section, name), section.scoring_seconds
    episodes = audited_episodes(task, batch=batch, of_each_kind=of_each_kind)
    job = AuditJob(section.model_dump_json(), name, episodes, unkind=None)
    kind = _played(job, {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8"})
    with tempfile.TemporaryDirectory() as folder:
        surrounding = {"PYTHONHASHSEED": "4242", "TZ": "Pacific/Chatham", "LC_ALL": "POSIX", "PYTHONUTF8": "1"}
        unkind = _played(msgspec.structs.replace(job, unkind=folder), surrounding)
    faults = [each for each in (kind, unkind) if isinstance(each, str)]
    if isinstance(kind, str) or isinstance(unkind, str):
        kind, unkind = [], []
    both = [*kind, *unkind]
    faults += [each.fault for each in both if each.fault is not None]
    named = zip(episodes, kind, unkind, strict=False)
    differing = [said for (seed, actions), one, other in named if (said := difference(seed, actions, one, other))]
    turns = sum(len(each.turns) for each in both)
    slowest = max((each.most_seconds for each in both), default=0.0)
    if slowest > limit_seconds:
        faults.append(f"a turn took {slowest:.1f} s, training allows {limit_seconds:g} s for all of an episode")
    return Audit(
        environment=task.name,
        config_hash=task.config_hash.hex(),
        episodes=len(episodes),
        turns=turns,
        differs=tuple(differing),
        faults=tuple(dict.fromkeys(faults)),
        most_seconds=slowest,
        limit_seconds=limit_seconds,
        most_bytes=max((each.most_bytes for each in both), default=0),
        limit_bytes=task.environment.max_observation_bytes,
    )


def audited_episodes(
    task: ConversationTask, *, batch: int = 0, of_each_kind: int = EPISODES
) -> list[tuple[int, list[str]]]:
    """Returns the seeds and actions of an audit, the same for the same environment and batch. Random actions are made
    of words of first texts and examples, and of what stands in quotation marks or brackets there, as examples of moves
    do, with other digits."""
    draws = random.Random(f"starling/audit/{task.config_hash.hex()}/{batch}")
    turns = task.environment.max_turns
    episodes: list[tuple[int, list[str]]] = []
    words: set[str] = {str(each["function"]["name"]) for each in getattr(task.environment, "tools", ())}
    moves: set[str] = set()
    for _ in range(of_each_kind):
        seed = draws.randrange(1 << 32)
        text = task.prompt(task.ref(seed)).text
        words.update(text.split())
        moves.update(_MOVE.findall(text))
        example = task.example(seed)
        if example is not None:
            episodes.append((seed, example))
            words.update(example)
    known, shown = [*sorted(words), *map(str, range(10))], sorted(moves)

    def action() -> str:
        if shown and draws.random() < 0.5:
            return re.sub("[0-9]", lambda _: draws.choice("0123456789"), draws.choice(shown))
        return " ".join(draws.choices(known, k=draws.randint(1, 3)))

    for _ in range(of_each_kind):
        episodes.append((draws.randrange(1 << 32), [action() for _ in range(turns)]))
        episodes.append((draws.randrange(1 << 32), draws.choices([*HOSTILE, *known], k=turns)))
    episodes += [(draws.randrange(1 << 32), [action] * turns) for action in HOSTILE]
    return episodes


def difference(seed: int, actions: Sequence[str], one: PlayedEpisode, other: PlayedEpisode) -> str | None:
    """Returns where two plays of one episode part, or None."""
    for turn, (a, b) in enumerate(zip(one.turns, other.turns, strict=False)):
        if a != b:
            after = "at its beginning" if turn == 0 else f"after action {turn}, {actions[turn - 1][:40]!r}"
            return f"seed {seed} {after}: {one.texts[turn][:80]!r} or {other.texts[turn][:80]!r}"
    if (len(one.turns), one.fault) != (len(other.turns), other.fault):
        return f"seed {seed}: {len(one.turns)} turns ({one.fault}) or {len(other.turns)} ({other.fault})"
    return None


def _played(job: AuditJob, surrounding: dict[str, str]) -> list[PlayedEpisode] | str:
    """Returns what a process played, or why it did not."""
    command = [sys.executable, "-P", "-m", "node.environments.audit_process"]
    paths = os.pathsep.join(path for path in sys.path if path)
    try:
        ended = subprocess.run(
            command, input=msgspec.json.encode(job), stdout=subprocess.PIPE, timeout=MOST_SECONDS,
            check=False, env={**os.environ, **surrounding, "PYTHONPATH": paths},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{len(job.episodes)} episodes took more than {MOST_SECONDS:g} s"
    if ended.returncode != 0:
        return f"its process ended with exit status {ended.returncode}"
    return msgspec.json.decode(ended.stdout, type=list[PlayedEpisode])
