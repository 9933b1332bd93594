"""A disk without room: said at once, tried again until there is room, and named as lost where the run ends so."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node.api.answers import damaged_line, lost_line, not_saved_line
from node.checkpoints.checkpoint_files import room_fault
from node.checkpoints.checkpoints import BackgroundCheckpoints, write
from node.configuration import CheckpointSection, Config, LearnerSection, PolicySection
from node.events import CheckpointSaved, CheckpointsDamaged, DamagedCheckpoint, Event, Fault, NotSaved
from node.learner.state.continuing import continued
from node.learner.state.learner_state import LearnerState
from node.learner.state.persistence import Persistence, snapshot_of
from node.learner.state.unsaved import RETRY_SECONDS
from node.learner.steps.optimizer import MasterAdamW
from node.policy.policy import Policy
from tests.node.learner.enough_memory import enough_memory


@contextmanager
def no_room() -> Iterator[None]:
    """Lets this process write no file of a checkpoint's size: the kernel refuses as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Run:
    """A learner's persistence over rounds that change nothing else, with a clock of its own."""

    def __init__(
        self, folder: Path, saved_round: int = 0, on_sleep: Callable[[], None] = lambda: None, waits: float = 6
    ) -> None:
        self.policy = Policy.load(PolicySection(adapter_rank=0, device="cpu"))
        self.optimizer = MasterAdamW(self.policy.trainable(), LearnerSection())
        self.events: list[Event] = []
        self.seconds = 1000.0
        self.state = LearnerState(round=saved_round)
        self.slept: list[float] = []

        def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            self.seconds += seconds
            on_sleep()

        self.checkpoints = BackgroundCheckpoints(folder, keep=2)
        config = Config(checkpoint=CheckpointSection(every_rounds=100, wait_for_room_seconds=waits))
        self.persistence = Persistence(
            self.checkpoints, config, self.policy, self.optimizer, self.events.append, lambda: self.seconds,
            save_beside=False, saved_round=saved_round, sleep=sleep,
        )  # fmt: skip

    def rounds(self, count: int, seconds: float = 1.0) -> None:
        for _ in range(count):
            self.state.round += 1
            self.seconds += seconds
            self.persistence.after_round(self.state.round, lambda: (self.state, dict), enough_memory())

    def end(self) -> NotSaved | None:
        self.persistence.save_last((self.state, dict), enough_memory())
        self.checkpoints.close()
        return self.persistence.lost(self.state.round)

    def seen(self) -> list[tuple[str, int]]:
        return [(type(e).__name__, e.round) for e in self.events if isinstance(e, Fault | NotSaved | CheckpointSaved)]


def test_checkpoint_that_fails_is_tried_again_after_half_a_minute_until_there_is_room(tmp_path: Path) -> None:
    run = Run(tmp_path, saved_round=90)
    with no_room():
        run.rounds(10)
        assert run.seen() == [("Fault", 100), ("NotSaved", 100)]
        run.rounds(int(RETRY_SECONDS) - 1)
        assert len(run.seen()) == 2
        run.rounds(1)
    assert run.seen()[2:] == [("NotSaved", 130)], "a fault is told once, what is not saved again and again"
    run.rounds(int(RETRY_SECONDS))
    assert run.seen()[3:] == [("CheckpointSaved", 160)]
    run.rounds(39)
    assert run.seen()[4:] == [], "then as usual"
    assert run.end() is None


def test_run_that_ends_waits_for_room_and_saves_what_it_learnt(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def room_again() -> None:
        if len(run.slept) == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    run = Run(tmp_path, on_sleep=room_again)
    with no_room():
        run.rounds(3)
        assert run.end() is None
    assert run.seen()[-1] == ("CheckpointSaved", 3) and run.slept == [2.0, 2.0]
    ending = [event for event in run.events if isinstance(event, NotSaved) and event.ends_in_seconds]
    assert [event.ends_in_seconds for event in ending] == [6.0]


def test_run_that_waits_for_room_never_says_that_it_goes_on(tmp_path: Path) -> None:
    run = Run(tmp_path, waits=40)
    with no_room():
        run.rounds(3)
        run.end()
    told = [event.ends_in_seconds for event in run.events if isinstance(event, NotSaved)]
    assert told[-2:] == [40.0, 10.0], "at its beginning, and after half a minute"


def test_run_that_ends_without_room_names_the_rounds_that_are_lost(tmp_path: Path) -> None:
    run = Run(tmp_path, saved_round=20)
    with no_room():
        run.rounds(8)
        lost = run.end()
    assert lost is not None and (lost.saved_round, lost.round) == (20, 28)
    assert sum(run.slept) == 6.0
    assert lost_line(lost).startswith("LOST: rounds 21 to 28 were never saved (the last checkpoint is of round 20): ")
    assert lost_line(lost).endswith(" The next start goes on after round 20.")
    assert "rounds 21 to 28 are in memory alone" in not_saved_line(lost)


def test_run_that_did_no_round_loses_nothing_and_does_not_wait(tmp_path: Path) -> None:
    run = Run(tmp_path, saved_round=20)
    with no_room():
        assert run.end() is None
    assert run.slept == []


def test_missing_room_is_known_before_a_byte_is_written() -> None:
    folder = Path("/proc/self")  # a file system on which nothing is free
    assert "are free at /proc/self" in (room_fault(folder, 1_000_000) or "")
    assert room_fault(folder, 0) is None


def test_room_is_looked_at_after_the_first_round_not_when_the_first_checkpoint_is_due() -> None:
    run = Run(Path("/proc/self/checkpoints"))
    run.rounds(1)
    assert run.seen() == [("Fault", 1), ("NotSaved", 1)]
    run.checkpoints.close()


@pytest.mark.parametrize("count", [1, 2])
def test_directory_that_lost_all_checkpoints_in_an_earlier_start_still_knows_it(tmp_path: Path, count: int) -> None:
    run = Run(tmp_path)
    run.checkpoints.close()
    for number in range(1, count + 1):
        path, _ = write(
            tmp_path, snapshot_of(Config(), run.policy, run.optimizer, LearnerState(round=number), dict), keep=9
        )
        (path / "state.json").write_text("{")
    for _ in range(2):
        found = continued(tmp_path, run.policy, run.optimizer)
        assert found.has_lost_all and [each.name[-1] for each in found.damaged] == ["2", "1"][-count:]
        told = found.event(0.0, asks_peers=True)
        assert told is not None and told.continues_from is None
    write(tmp_path, snapshot_of(Config(), run.policy, run.optimizer, LearnerState(round=1), dict), keep=9)
    again = continued(tmp_path, run.policy, run.optimizer)
    assert not again.has_lost_all and again.event(0.0, asks_peers=False) is None


@pytest.mark.parametrize(
    ("from_round", "asks", "follows"),
    [(7, False, "of round 7"), (None, True, "asks its peers for weights"), (None, False, "starts again")],
)
def test_what_is_damaged_is_told_with_its_place_and_what_follows(
    from_round: int | None, asks: bool, follows: str
) -> None:
    damaged = DamagedCheckpoint("round-000008", "is torn\x1b[2J", "/x/set-aside-round-000008-1")
    event = CheckpointsDamaged(time_seconds=0.0, damaged=(damaged,), continues_from=from_round, asks_peers=asks)
    line = damaged_line(event)
    assert "round-000008 (is torn\\x1b[2J)" in line and "/x/set-aside-round-000008-1" in line and follows in line
