"""What is left of --rounds and --tokens after a pause."""

from __future__ import annotations

import msgspec

from node.events import CheckpointSaved, LearnerReady, LearnerStart, Stopped
from node.supervision.pausing.pauses import RunBudget
from tests.factories import round_done


def ready(round_number: int) -> LearnerReady:
    return LearnerReady(
        time_seconds=1.0, model="m", family="ab", tokenizer="cd", parameters=1, trainable_parameters=1, device="cpu",
        dtype="float32", tasks=("add",), round=round_number, checkpoint=None, seconds=1.0,
    )  # fmt: skip


def left(budget: RunBudget) -> tuple[int, int]:
    config = msgspec.json.decode(budget.start(), type=LearnerStart).config
    return config["rounds"], config["tokens"]


def budget(rounds: int, tokens: int) -> RunBudget:
    return RunBudget(msgspec.json.encode(LearnerStart("/h", {"rounds": rounds, "tokens": tokens})))


def done(round_number: int) -> object:
    event = round_done()
    return msgspec.structs.replace(
        event, round=round_number, tokens_generated=100, tokens_generated_total=100 * round_number
    )


def test_a_learner_that_ended_in_order_leaves_what_it_has_not_done() -> None:
    run = budget(30, 3000)
    run.saw(ready(10))
    for number in range(11, 16):
        run.saw(done(number))  # type: ignore[arg-type]
    run.saw(Stopped(time_seconds=1.0, round=15, because="paused", tokens_generated_total=1500, checkpoint="/c"))
    assert left(run) == (25, 2500)
    run.saw(ready(15))
    run.saw(done(16))  # type: ignore[arg-type]
    run.saw(Stopped(time_seconds=1.0, round=16, because="paused", tokens_generated_total=1600, checkpoint="/c"))
    assert left(run) == (24, 2400)


def test_of_a_learner_that_was_killed_only_what_its_checkpoint_holds_counts() -> None:
    run = budget(30, 3000)
    run.saw(ready(0))
    for number in range(1, 9):
        run.saw(done(number))  # type: ignore[arg-type]
    run.saw(CheckpointSaved(time_seconds=1.0, round=5, path="/c", size_bytes=1, seconds=0.1))
    assert left(run) == (25, 2500)


def test_without_limits_and_before_the_first_round_nothing_changes() -> None:
    assert left(budget(0, 0)) == (0, 0)
    assert left(budget(30, 3000)) == (30, 3000)


def test_a_limit_that_was_reached_leaves_one_round_and_never_none() -> None:
    run = budget(3, 0)
    run.saw(ready(0))
    run.saw(Stopped(time_seconds=1.0, round=3, because="paused", tokens_generated_total=300, checkpoint="/c"))
    assert left(run) == (1, 0)
