"""Phases that run out of memory: repeated, halved, waited for, left out, given up; and what is told of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, repeat

import pytest
import torch

from node.events import Event, OutOfMemory, decode_event, encode_event
from node.fit.fitted import FLOORS, Sizes
from node.learner.memory.abandoned import WaitAbandoned
from node.learner.memory.decisions import QUIET_ROUNDS
from node.learner.memory.device_memory import DeviceMemory
from node.learner.memory.phases import PhaseRunner, SizePlan
from protocol.errors import StorageError, TooLittleMemoryError

GIB = 1 << 30
TAKEN = DeviceMemory(total_bytes=8 * GIB, free_bytes=0, own_bytes=2 * GIB)


class Bench:
    """A runner with everything around it, and a phase that fails as often as it is told to."""

    def __init__(self, sizes: Sizes, *, memory: DeviceMemory | None = None, floors: Sizes = FLOORS) -> None:
        self.used: list[Sizes] = []
        self.remembered: list[Sizes] = []
        self.slept: list[float] = []
        self.events: list[Event] = []
        self.dropped = 0
        self.disk_is_full = False
        self.runner = PhaseRunner(
            SizePlan(sizes, sizes, floors, remember=self._remember, sleep=self._sleep),
            use=self.used.append, report=self.events.append, clock=lambda: 5.0, memory=lambda: memory,
        )  # fmt: skip
        self.runner.round = 7

    def _remember(self, sizes: Sizes) -> None:
        if self.disk_is_full:
            raise StorageError("the disk is full")
        self.remembered.append(sizes)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def drop(self) -> None:
        self.dropped += 1

    @property
    def told(self) -> list[OutOfMemory]:
        return [event for event in self.events if isinstance(event, OutOfMemory)]


def failing(
    times: int | None, result: str = "done", error: type[Exception] = torch.OutOfMemoryError
) -> Callable[[], str]:
    """Returns work that fails so many times; None: always."""
    fails = chain(repeat(True, times), repeat(False)) if times is not None else repeat(True)

    def work() -> str:
        if next(fails):
            raise error("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return result

    return work


def test_a_phase_that_does_not_fail_is_run_once_and_nothing_is_told() -> None:
    bench = Bench(Sizes(8, 2048))
    assert bench.runner.run("learn", failing(0), bench.drop) == "done"
    assert bench.dropped == 0 and bench.events == [] and bench.used == [Sizes(8, 2048)]


def test_each_failure_drops_halves_tells_and_remembers() -> None:
    bench = Bench(Sizes(8, 2048))
    assert bench.runner.run("learn", failing(2), bench.drop) == "done"
    assert bench.dropped == 2
    assert bench.remembered == [Sizes(8, 1024), Sizes(8, 512)]
    assert bench.used == [Sizes(8, 2048), *bench.remembered]
    assert bench.runner.sizes == Sizes(8, 512)
    first = bench.told[0]
    assert (first.round, first.phase, first.then, first.key) == (7, "learn", "halve", "learner.batch_tokens")
    assert (first.before, first.after, first.time_seconds, first.total_bytes) == (2048, 1024, 5.0, None)
    assert "Tried to allocate" in first.detail
    assert [decode_event(encode_event(event)) for event in bench.events] == bench.events


def test_at_the_floor_it_is_repeated_as_it_is_and_then_given_up_with_a_remedy() -> None:
    bench = Bench(Sizes(1, 256))
    assert bench.runner.run("generate", failing(2)) == "done"
    assert bench.remembered == []
    with pytest.raises(TooLittleMemoryError, match=r"engine\.rows = 1.*`starling fit MODEL`"):
        bench.runner.run("generate", failing(None))
    with pytest.raises(TooLittleMemoryError, match=r"batch_tokens = 256.*learner\.recompute.*`starling fit MODEL`"):
        bench.runner.run("learn", failing(None))
    with pytest.raises(TooLittleMemoryError, match=r"engine new weights.*policy\.four_bit"):
        bench.runner.run("publish", failing(None))


def test_beside_a_program_that_took_the_card_it_waits_and_then_goes_on() -> None:
    bench = Bench(Sizes(1, 256), memory=TAKEN)
    assert bench.runner.run("learn", failing(5)) == "done"
    assert [event.then for event in bench.told] == ["again", "again", "wait", "wait", "wait"]
    assert sum(bench.slept) == 5 + 10 + 20 and max(bench.slept) <= 1.0
    assert bench.told[-1].others_bytes == 6 * GIB and bench.told[-1].wait_seconds == 20.0


def test_a_request_to_stop_ends_the_waiting_within_a_second() -> None:
    bench = Bench(Sizes(1, 256), memory=TAKEN)
    bench.runner.should_stop = lambda: "asked" if len(bench.slept) == 3 else None
    with pytest.raises(WaitAbandoned):
        bench.runner.run("learn", failing(None))
    assert bench.slept == [1.0, 1.0, 1.0]


def test_an_optional_phase_is_left_out_and_its_result_may_be_nothing_or_false() -> None:
    bench = Bench(Sizes(1, 256), memory=TAKEN)
    assert bench.runner.attempt("checkpoint", failing(None)) is None
    assert bench.told[-1].then == "skip" and bench.slept == []
    assert bench.runner.attempt("average", lambda: False) is False


def test_other_errors_pass_unchanged_and_nothing_is_dropped() -> None:
    bench = Bench(Sizes(8, 2048))
    with pytest.raises(ValueError, match="Tried"):
        bench.runner.run("learn", failing(1, error=ValueError), bench.drop)
    assert bench.dropped == 0 and bench.events == []


def test_a_full_disk_does_not_end_the_round_that_ran_out_of_memory() -> None:
    bench = Bench(Sizes(8, 2048))
    bench.disk_is_full = True
    assert bench.runner.run("learn", failing(1)) == "done"
    assert bench.runner.sizes == Sizes(8, 1024)


def test_quiet_rounds_bring_back_what_was_halved_but_no_more_than_planned() -> None:
    bench = Bench(Sizes(8, 2048))
    bench.runner.run("generate", failing(2))
    for _ in range(3 * QUIET_ROUNDS):
        bench.runner.round_done()
    assert bench.remembered == [Sizes(4, 2048), Sizes(2, 2048), Sizes(4, 2048), Sizes(8, 2048)]


def test_trouble_begins_the_count_of_quiet_rounds_anew() -> None:
    bench = Bench(Sizes(8, 2048))
    bench.runner.run("generate", failing(1))
    for _ in range(QUIET_ROUNDS - 1):
        bench.runner.round_done()
    bench.runner.attempt("checkpoint", failing(1))
    bench.runner.round_done()
    assert bench.runner.sizes == Sizes(4, 2048)


def test_recomputation_is_used_remembered_and_told() -> None:
    bench = Bench(Sizes(8, 4096), floors=Sizes(1, 256, recompute=True))
    assert bench.runner.run("learn", failing(2), bench.drop) == "done"
    assert bench.remembered == bench.used[1:] == [Sizes(8, 4096, True), Sizes(8, 2048, True)]
    assert [(event.then, event.key) for event in bench.told] == [
        ("recompute", None),
        ("halve", "learner.batch_tokens"),
    ]
