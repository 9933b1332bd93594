from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.configuration import TasksSection
from node.environments.audit import HOSTILE, audit, audited_episodes, difference
from node.environments.audit_process import played
from node.environments.built_in.all import CONVERSATIONS
from node.environments.conversation import ConversationTask, actions_of, transcript
from node.environments.environment import MOST_TURNS, Turn
from node.tasks.registry import BUILT_IN_TASKS
from node.tasks.split import Part, held_out_prompts
from node.tasks.task import config_hash_of
from node.tasks.worker import FaultReason, score_one
from protocol.errors import ConfigurationError
from protocol.messages import PromptRef

by_name = pytest.mark.parametrize("task", CONVERSATIONS, ids=lambda task: task.name)


def database() -> ConversationTask:
    task = BUILT_IN_TASKS["database:large"]
    assert isinstance(task, ConversationTask)
    return task


def asked(query: str, seed: int = 1) -> str:
    return str(database().replay(database().ref(seed), [query]).observations[-1])


@by_name
def test_example_earns_everything_and_ends_the_episode(task: ConversationTask) -> None:
    for seed in range(20):
        actions = task.example(seed)
        assert actions is not None
        verdict = score_one(task, task.prompt(task.ref(seed)), transcript(actions))
        assert (verdict.reward, verdict.fault) == (1.0, None)
        assert verdict.played is not None
        assert not verdict.played.goes_on
        own = task.is_own_text(task.prompt(task.ref(seed)), transcript(actions))
        assert own == hasattr(task.environment, "is_canonical")


@by_name
@given(seed=st.integers(0, 2**40), actions=st.lists(st.text(max_size=40) | st.sampled_from(HOSTILE), max_size=6))
@settings(max_examples=15, deadline=None)
def test_any_actions_give_the_same_episode_again_within_its_bounds(
    task: ConversationTask, seed: int, actions: list[str]
) -> None:
    first = played(task, seed, actions, unkind=False)
    random.random()
    assert first.fault is None
    assert difference(seed, actions, first, played(task, seed, actions, unkind=True)) is None
    assert first.most_bytes <= task.environment.max_observation_bytes
    assert 1 <= task.environment.max_turns <= MOST_TURNS


@by_name
def test_some_episodes_measure_and_most_teach(task: ConversationTask) -> None:
    found = held_out_prompts({task.name: task}, Part.TEST, 8)
    assert len(found[task.name]) == 8


def test_transcript_is_read_back_and_other_text_is_one_action() -> None:
    actions = ["a\nb", "", "\udc80".encode("utf-8", "replace").decode(), '["x"]']
    assert actions_of(transcript(actions)) == actions
    assert actions_of('["x"]') == ['["x"]']


def test_number_found_late_earns_less_and_never_found_nothing() -> None:
    task = BUILT_IN_TASKS["guess_number"]
    prompt = task.prompt(task.ref(5))
    assert isinstance(task, ConversationTask)
    example = task.example(5)
    assert example is not None
    late = ["?"] * (task.environment.max_turns - 1) + [example[-1]]
    none = ["?"] * task.environment.max_turns
    assert task.rewards(prompt, [transcript(late), transcript(none)]) == [pytest.approx(1 / 3), 0.0]


def test_wall_is_not_walked_through_and_the_goal_by_a_longer_way_earns_less() -> None:
    task = BUILT_IN_TASKS["grid:tiny"]
    assert isinstance(task, ConversationTask)
    way = task.example(0)
    assert way is not None
    assert task.replay(task.ref(0), [*"w" * 3]).observations[-1].split()[0][1] == "0"  # type: ignore[attr-defined]
    back = {"n": "s", "s": "n", "w": "e", "e": "w"}
    seen = str(task.prompt(task.ref(0)).text).split()[-1]
    detour = [seen[0], back[seen[0]], *way]
    (reward,) = task.rewards(task.prompt(task.ref(0)), [transcript(detour)])
    assert reward in (1.0, pytest.approx(len(way) / (len(way) + 2)))


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE people",
        "DELETE FROM people",
        "INSERT INTO people VALUES ('x', 'y', 1)",
        "CREATE TABLE x (y)",
        "PRAGMA writable_schema = 1",
        "ATTACH '/tmp/x' AS y",
        "VACUUM INTO '/tmp/x'",
        "BEGIN",
        "SELECT load_extension('x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT random()",
        "SELECT randomblob(9)",
        "SELECT datetime('now')",
        "SELECT CURRENT_TIMESTAMP",
        "SELECT sqlite_version()",
        "SELECT zeroblob(1000000000)",
        "SELECT printf('%1000000000d', 1)",
        "SELECT * FROM pragma_table_info('people')",
        "SELECT 1; DROP TABLE people",
        "SELECT ?",
        "SELECT '\0'",
        "SELECT '\ud800'",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c",
        "SELECT count(*) FROM " + ", ".join(f"orders o{n}" for n in range(60)),
        "SELECT a.name || b.name || c.name || d.name FROM people a, people b, people c, people d ORDER BY 1",
        "SELECT " + "(" * 300 + "1" + ")" * 300,
        "SELECT name FROM people WHERE name LIKE '%a%a%a%a%a%'",
        "SELECT '" + "a" * 5_000 + "'",
    ],
)
def test_hostile_query_is_refused_and_changes_nothing(query: str) -> None:
    assert asked(query).startswith("error: ")
    after = database().replay(database().ref(1), [query, "SELECT count(*) FROM people"])
    assert after.observations[-1] == "16"


def test_result_of_many_rows_is_cut() -> None:
    lines = asked("SELECT a.name, b.name FROM people a, people b").splitlines()
    assert len(lines) == 9
    assert lines[-1] == "…"


def test_null_and_empty_results_are_told_apart() -> None:
    assert asked("SELECT NULL") == "NULL"
    assert asked("SELECT name FROM people WHERE age < 0") == "no rows"


@dataclass(frozen=True)
class Faulty:
    """An environment with one fault, which its name says."""

    name: str
    version: int = 1
    max_turns: int = 4
    max_new_tokens: int = 8
    max_observation_bytes: int = 20

    @property
    def config_hash(self) -> bytes:
        return config_hash_of({"environment": self.name})

    def ref(self, seed: int) -> PromptRef:
        return PromptRef(self.name, 1, self.config_hash, seed)

    def begin(self, ref: PromptRef) -> FaultyEpisode:
        return FaultyEpisode(self.name)

    def example(self, ref: PromptRef) -> Sequence[str]:
        return ["a", "b"]


@by_name
@pytest.mark.parametrize("around", ["", " ", "\n", "Buy now! ", "-- ", "/*x*/", "\0", "é", '"x"'])
def test_action_with_anything_around_it_is_not_copied(task: ConversationTask, around: str) -> None:
    prompt = task.prompt(task.ref(3))
    first, *rest = task.example(3) or []
    for action in ([around + first], [first + around]) if around else ([""],):
        assert not task.is_own_text(prompt, transcript([*action, *rest]))


def test_query_of_other_words_than_the_tables_is_not_copied() -> None:
    prompt = database().prompt(database().ref(1))

    def copied(query: str) -> bool:
        return database().is_own_text(prompt, transcript([query]))

    assert copied("SELECT count(*) FROM people WHERE city = 'Oslo' AND age >= 18.5")
    assert not copied("SELECT age AS visit_us FROM people")
    assert not copied("SELECT 'visit us'")
    assert not copied("answer: Oslo, visit us")
    assert not copied("SELECT  1")
    assert not copied("SELECT 1 ;")


class FaultyEpisode:
    def __init__(self, fault: str) -> None:
        self._fault = fault

    def observation(self) -> str:
        return "begin"

    def act(self, text: str) -> Turn:
        said: Any = {"long": "x" * 21, "number": 7, "surrogate": "\ud800", "global": str(random.random())[:10]}
        if self._fault == "raises":
            raise RuntimeError("on purpose")
        return Turn(said.get(self._fault, "on"))

    def reward(self) -> float:
        return {"reward": 2.0, "nan": float("nan")}.get(self._fault, 0.5)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("long", FaultReason.OBSERVATION),
        ("number", FaultReason.OBSERVATION),
        ("surrogate", FaultReason.OBSERVATION),
        ("raises", FaultReason.RAISED),
        ("reward", FaultReason.OUT_OF_RANGE),
        ("nan", FaultReason.NOT_FINITE),
    ],
)
def test_faulty_environment_ends_the_episode_with_nothing_and_the_reason(fault: str, reason: FaultReason) -> None:
    task = ConversationTask(Faulty(fault))
    verdict = score_one(task, task.prompt(task.ref(0)), transcript(["a"]))
    assert (verdict.reward, verdict.fault, verdict.played) == (0.0, reason, None)
    assert played(task, 0, ["a"], unkind=False).fault is not None


def test_episode_is_cut_off_after_its_last_turn_with_what_it_has_earned() -> None:
    task = ConversationTask(Faulty("none"))
    going, cut = (score_one(task, task.prompt(task.ref(0)), transcript(["a"] * turns)) for turns in (3, 4))
    assert going.played is not None
    assert cut.played is not None
    assert (going.played.goes_on, going.played.observations[-1], going.reward) == (True, "on", 0.5)
    assert (cut.played.goes_on, cut.reward) == (False, 0.5)


@pytest.mark.parametrize("bounds", [{"max_turns": 65}, {"max_turns": 0}, {"max_observation_bytes": 0}])
def test_environment_without_bounds_is_refused(bounds: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        ConversationTask(Faulty("none", **bounds))


def test_first_text_beyond_the_bound_is_refused() -> None:
    task = ConversationTask(Faulty("none", max_observation_bytes=3))
    with pytest.raises(ConfigurationError, match="5 bytes"):
        task.prompt(task.ref(0))


def test_audit_finds_what_depends_on_the_global_generator() -> None:
    task = ConversationTask(Faulty("global"))
    seed, actions = audited_episodes(task)[0]
    assert difference(seed, actions, *(played(task, seed, actions, unkind) for unkind in (False, True))) is not None


def test_batches_of_an_audit_have_no_episode_in_common() -> None:
    one, other = (audited_episodes(ConversationTask(Faulty("none")), batch=batch, of_each_kind=3) for batch in (0, 1))
    assert len(one) == len(other) == 3 * 3 + len(HOSTILE)
    assert not {seed for seed, _ in one} & {seed for seed, _ in other}


@pytest.mark.processes
def test_built_in_environment_passes_its_audit_in_two_processes() -> None:
    found = audit(TasksSection(), "database:large")
    assert (found.differs, found.faults) == ((), ())
    assert found.turns > 1000
