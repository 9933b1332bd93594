"""What is told of rounds that no checkpoint holds, and how long the newest event of a kind counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from node.api.answers import escaped_event, stage_lines
from node.events import (
    Averaged,
    CheckpointSaved,
    Evaluated,
    LearnerReady,
    NotSaved,
    PhaseBegan,
    Phases,
    RoundDone,
    StageAway,
    StageHeld,
    StagesHeld,
    Stopped,
)
from node.quantities import local_time
from node.supervision.watching.learner_news import UNSAVED_NOTE_SECONDS, LearnerNews
from tests.factories import round_done


@dataclass
class Clock:
    seconds: float = 1000.0

    def __call__(self) -> float:
        return self.seconds


def not_saved(number: int, ends_in_seconds: float | None = None) -> NotSaved:
    return NotSaved(
        time_seconds=0.0,
        round=number,
        saved_round=3,
        because="no space left on device",
        retry_seconds=30.0,
        ends_in_seconds=ends_in_seconds,
    )


def saved(number: int) -> CheckpointSaved:
    return CheckpointSaved(time_seconds=0.0, round=number, path="/home/c", size_bytes=1, seconds=0.1)


def test_unsaved_rounds_are_told_at_once_again_after_five_minutes_and_when_the_run_is_about_to_end() -> None:
    clock = Clock()
    news = LearnerNews(clock)
    told = []
    for _ in range(3):
        told.append(len(news.saw(not_saved(4))))
        clock.seconds += UNSAVED_NOTE_SECONDS / 2
    assert told == [1, 0, 1]
    assert news.saw(not_saved(5)) == []
    assert "ends without them in 60 s" in news.saw(not_saved(5, ends_in_seconds=60.0))[0]


def test_a_checkpoint_after_unsaved_rounds_is_told_once_and_the_next_failure_at_once() -> None:
    news = LearnerNews(Clock())
    assert news.saw(saved(3)) == []
    news.saw(not_saved(4))
    assert news.newest(NotSaved) is not None
    assert news.saw(saved(4)) == ["Saved again: the checkpoint of round 4 is whole, at /home/c"]
    assert news.newest(NotSaved) is None
    assert news.saw(saved(5)) == []
    assert len(news.saw(not_saved(6))) == 1


def test_the_evaluation_that_was_announced_is_over_once_its_figures_come() -> None:
    news = LearnerNews(Clock())
    news.saw(PhaseBegan(time_seconds=0.0, round=2, phase="evaluate"))
    assert news.newest(PhaseBegan) is not None
    news.saw(
        Evaluated(
            time_seconds=0.0,
            round=2,
            policy_version=2,
            prompts=8,
            reward=0.5,
            reward_by_task={},
            validation=0.5,
            best_round=2,
            best_reward=0.5,
            seconds=1.0,
        )
    )
    assert news.newest(PhaseBegan) is None


def test_a_last_word_ends_with_the_next_start_and_an_offer_without_a_partner_hides_no_outer_step() -> None:
    news = LearnerNews(Clock())
    met, alone = (
        Averaged(time_seconds=0.0, round=2, partner=partner, because="", seconds=1.0) for partner in ("them", None)
    )
    news.saw(met)
    news.saw(alone)
    news.saw(Stopped(time_seconds=0.0, round=2, because="asked", tokens_generated_total=0, checkpoint=None))
    news.learner_starts()
    assert news.newest(Stopped) is None
    assert (news.averaged, news.newest(Averaged)) == (met, alone)


READY = LearnerReady(
    time_seconds=0.0,
    model="builtin:wren",
    family="ab",
    tokenizer="cd",
    parameters=1,
    trainable_parameters=1,
    device="cpu",
    dtype="bfloat16",
    tasks=("add",),
    round=0,
    checkpoint=None,
    seconds=1.0,
)


def learning(clock: Clock, generate_seconds: float, rounds: int = 9) -> LearnerNews:
    """A learner in the phase "generate" of the round after ``rounds``, each of which learnt for a second."""
    news = LearnerNews(clock)
    news.saw(READY)
    phases = Phases(allocate=0.0, generate=generate_seconds, collect=0.0, score=0.0, learn=1.0, publish=0.0)
    for number in range(1, rounds + 1):
        news.saw(round_done(number, phases=phases, seconds=generate_seconds + 1.0))
    news.saw(PhaseBegan(time_seconds=0.0, round=rounds + 1, phase="generate"))
    return news


@pytest.mark.parametrize(("generate_seconds", "limit_seconds"), [(1.2, 30.0), (7.0, 70.0), (100.0, 1000.0)])
def test_phase_hangs_after_ten_times_its_usual_length_and_at_least_half_a_minute(
    generate_seconds: float, limit_seconds: float
) -> None:
    clock = Clock()
    news = learning(clock, generate_seconds)
    clock.seconds += limit_seconds - 1
    assert news.hangs is None
    clock.seconds += 1
    assert news.hangs is not None and "generating" in news.hangs
    news.saw(PhaseBegan(time_seconds=0.0, round=10, phase="learn"))  # it was slow only
    assert news.hangs is None
    clock.seconds += 30
    assert news.hangs is not None and "optimizer step" in news.hangs


def test_one_long_round_changes_little_of_what_is_usual() -> None:
    clock = Clock()
    news = learning(clock, 7.0)
    news.saw(round_done(10, seconds=5000.0))
    clock.seconds += 79
    assert news.hangs is None
    clock.seconds += 1
    assert news.hangs is not None  # no phase was announced: ten times a usual round of eight seconds


def test_first_round_of_a_learner_and_a_first_evaluation_have_no_usual_length() -> None:
    clock = Clock()
    news = learning(clock, 1.0)
    news.saw(PhaseBegan(time_seconds=0.0, round=10, phase="evaluate"))
    clock.seconds += 3600
    assert news.hangs is None
    news.saw(READY)  # it was started again, and compiles what the first round needs
    clock.seconds += 3600
    assert news.hangs is None
    news.saw(round_done(10))
    clock.seconds += 3600
    assert news.hangs is not None


def without_step(number: int, **changes: Any) -> RoundDone:
    return round_done(number, **{"tokens_trained": 0, "reward_by_task": {"add": 0.0}, **changes})


def test_three_rounds_without_a_step_are_told_once_with_why_and_what_to_do() -> None:
    news = LearnerNews(Clock())
    told = [news.saw(without_step(number)) for number in range(1, 6)]
    assert [len(notes) for notes in told] == [0, 0, 1, 0, 0]
    assert "every answer to add was wrong" in told[2][0] and "starling tasks add --score" in told[2][0]
    assert news.nothing_learnt is not None
    news.saw(round_done(6))
    assert news.nothing_learnt is None


@pytest.mark.parametrize(
    ("rewards", "said", "not_said"),
    [
        ({"add": 0.0}, "add was wrong", "right"),
        ({"add": 0.01}, "add was wrong", "right"),
        ({"add": 1.0}, "add was right", "wrong"),
        ({"add": 0.5}, "question of add earned the same", "was"),
        ({"add": 0.0, "sort": 1.0}, "add was wrong, and every answer to sort was right", "the same"),
        ({f"t{n}": 0.0 for n in range(9)}, "t4 and 4 other tasks was wrong", "t5"),
        ({"a\x1b[2Jb": 0.0}, "a\\x1b[2Jb was wrong", "\x1b"),
    ],
)
def test_why_nothing_was_learnt_is_told_by_task(rewards: dict[str, float], said: str, not_said: str) -> None:
    news = LearnerNews(Clock())
    for number in range(3):
        news.saw(without_step(number, reward_by_task=rewards))
    assert news.nothing_learnt is not None
    why = news.nothing_learnt.partition("To do")[0].removeprefix("no step was taken")
    assert said in why and not_said not in why


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens_trained": 1},
        {"gradient_mass_by_task": {"add": {"12D3KooWa": 1.0}}},  # from answers of peers alone
        {"reward_by_task": {}},  # nothing ended in this round
        {"scoring_failures": 1},  # that fault is told
    ],
)
def test_round_that_learnt_or_that_shows_nothing_of_rewards_is_not_counted(changes: dict[str, Any]) -> None:
    news = LearnerNews(Clock())
    news.saw(without_step(1))
    news.saw(without_step(2))
    assert news.saw(without_step(3, **changes)) == [] and news.nothing_learnt is None


def with_rewards(windows: list[float], spread: float = 0.02) -> tuple[LearnerNews, list[str]]:
    """Returns the news after ten rounds around each of these rewards, and what was told."""
    news, notes = LearnerNews(Clock()), list[str]()
    for window, mean in enumerate(windows):
        for number in range(10):
            reward = mean + spread * (-1) ** number
            notes += news.saw(round_done(10 * window + number, reward=reward, reward_by_task={"add": reward}))
    return news, notes


def test_reward_that_only_falls_is_told_once_with_what_to_do_until_it_rises() -> None:
    news, notes = with_rewards([0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2])
    assert len(notes) == 1 and "from 0.500 to 0.250" in notes[0] and "--resume best" in notes[0]
    assert news.reward_falls is not None and "to 0.200" in news.reward_falls
    assert with_rewards([0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.3])[0].reward_falls is None


@pytest.mark.parametrize(
    ("windows", "spread"),
    [
        ([0.5, 0.45, 0.4, 0.35, 0.3], 0.02),  # too short
        ([0.5, 0.45, 0.4, 0.41, 0.3, 0.25], 0.02),  # not only
        ([0.5, 0.49, 0.48, 0.47, 0.46, 0.45], 0.2),  # may be chance
    ],
)
def test_reward_that_may_fall_by_chance_is_no_state(windows: list[float], spread: float) -> None:
    news, notes = with_rewards(windows, spread)
    assert notes == [] and news.reward_falls is None


def stages(*because: str) -> StagesHeld:
    """Machines of two layers each; those with a reason are lost."""
    return StagesHeld(
        time_seconds=0.0,
        wanted=len(because),
        connected=sum(not each for each in because),
        own_layers=1,
        stages=tuple(
            StageHeld(
                first=1 + 2 * at,
                last=3 + 2 * at,
                peer="" if each else f"12D3{at}",
                name="" if each else "at\x1b[2Jtic",
                because=each,
                expected_bytes=10**9,
                sent_bytes=2_000_000,
                received_bytes=1_000_000,
                computed_tokens=600,
                computed_seconds=2.0,
                checked_seconds=None if at else -75.0,
                off=0.0 if at else 0.021,
            )
            for at, each in enumerate(because)
        ),
        waits="another machine" if any(because) else "",
        because="",
    )


def test_a_machine_that_is_lost_is_told_once_until_another_one_holds_its_layers() -> None:
    news = LearnerNews(Clock())
    told = [len(news.saw(stages(*each))) for each in (("", ""), ("", "gone"), ("", "gone"), ("", ""), ("x", "y"))]
    assert told == [0, 1, 0, 0, 2]


def alone(**away: float) -> StagesHeld:
    """One machine of two holds all layers that the owner does not; those that are away, and since when."""
    held = stages("")
    return replace(
        held,
        time_seconds=1000.0,
        wanted=2,
        stages=(replace(held.stages[0], last=5, name="cellar"),),
        away=tuple(StageAway("12D3", f"{name}\x1b", since, "cut\noff") for name, since in away.items()),
    )


def test_a_division_that_differs_from_the_one_before_is_told_once_with_who_is_missing() -> None:
    news = LearnerNews(Clock())
    between = replace(stages(), own_layers=0, waits="1 more machine")
    assert [news.saw(each) for each in (stages("", ""), between, stages("", ""))] == [[], [], []]
    news.saw(between)
    [told] = news.saw(alone(attic=400.0))
    assert "without attic" in told and "cellar layers 2 to 5" in told and "this machine layer 1" in told
    assert "\x1b" not in told
    assert news.saw(alone(attic=400.0)) == []
    [told] = news.saw(stages("", ""))
    assert "without" not in told


def test_status_names_who_is_away_since_when_and_whether_layers_are_divided_without_it() -> None:
    line = list(stage_lines(alone(attic=400.0)))[-1]
    assert local_time(400.0, 1000.0) in line and "divided without it" in line and "cut" in line
    assert "\x1b" not in line and "\n" not in line
    lost = replace(stages("", "gone"), away=alone(attic=400.0).away)
    assert not any("divided without it" in line for line in stage_lines(lost))
    escaped = escaped_event(lost)
    assert isinstance(escaped, StagesHeld)
    assert "\x1b" not in escaped.away[0].name and "\n" not in escaped.away[0].because


def test_status_names_who_holds_which_layers_counted_from_one_and_what_is_waited_for() -> None:
    lines = list(stage_lines(stages("", "gone\nfar")))
    assert lines[0] == "this machine: layer 1" and len(lines) == 4
    assert "layers 2 to 3" in lines[1] and "300 tokens/s" in lines[1] and "2.0 MB to it" in lines[1]
    assert "layers 4 to 5" in lines[2] and "gone" in lines[2] and lines[3] == "another machine"
    assert "checked 1 min 15 s earlier, 2.1% of" in lines[1]
    assert list(stage_lines(stages("", "")))[2].endswith("not checked")
    assert "\x1b" not in "".join(lines) and "\n" not in "".join(lines)
    escaped = escaped_event(stages("", "gone\nfar"))
    assert isinstance(escaped, StagesHeld)
    assert "\x1b" not in escaped.stages[0].name and "\n" not in escaped.stages[1].because
