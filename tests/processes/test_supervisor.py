"""The supervisor over small stand-in children: what it starts again, what it ends, and what it says."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import msgspec
import pytest

from node.api.types import NodeState, NodeStatus, PeersAnswer
from node.configuration import ApiSection, Config, MachineSection
from node.events import (
    STOP_LINE,
    Evaluated,
    Event,
    Fault,
    LearnerReady,
    LearnerStart,
    OutOfMemory,
    PhaseBegan,
    SampledAnswer,
    SampledGroup,
    Samples,
    encode_event,
)
from node.home import Home, Lock, is_locked, lock_home
from node.supervision.children import ChildSpec
from node.supervision.outcome import RunOutcome
from node.supervision.supervisor import Supervisor
from swarm.exit_codes import ExitCode
from tests.factories import round_done
from tests.hang_guard import HANG_SECONDS

pytestmark = pytest.mark.processes

OBEDIENT = "import sys\nfor line in sys.stdin:\n    if line == 'stop\\n': break"  # or at the end of its input
FAULT = Fault(time_seconds=1.0, kind="test", detail="said", round=7, fatal=False)
RAN_OUT = OutOfMemory(
    time_seconds=1.0,
    round=7,
    phase="learn",
    then="halve",
    detail="CUDA out of memory.",
    key="learner.batch_tokens",
    before=8192,
    after=4096,
)
ROUND = round_done()
READY = LearnerReady(
    time_seconds=1.0, model="m", family="ab", tokenizer="cd", parameters=1, trainable_parameters=1, device="cpu",
    dtype="float32", tasks=("add",), round=0, checkpoint=None, seconds=1.0,
)  # fmt: skip


class Heard:
    """Remembers what the supervisor says; ``on`` may react to a part of a note."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.events: list[Event] = []
        self.on: dict[str, Callable[[], None]] = {}

    def on_event(self, line: bytes, event: Event) -> None:
        self.events.append(event)
        self._react(line.decode())

    def on_note(self, text: str) -> None:
        self.notes.append(text)
        self._react(text)

    def on_tick(self, status: NodeStatus, peers: PeersAnswer) -> None:
        pass

    def _react(self, text: str) -> None:
        for part, reaction in list(self.on.items()):
            if part in text:
                del self.on[part]
                reaction()


@pytest.fixture
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="st-") as root:
        yield Home(Path(root))


async def supervised(
    home: Home,
    heard: Heard,
    *,
    learner: str,
    swarm: str = OBEDIENT,
    react: Callable[[Supervisor], None] | None = None,
    trackers: Sequence[ChildSpec] = (),
    machine: MachineSection | None = None,
) -> RunOutcome:
    """Runs a supervisor over two Python programs; ``react`` may arrange what happens on which words."""
    lock = lock_home(home)
    assert isinstance(lock, Lock)
    start = msgspec.json.encode(LearnerStart(str(home.path), {}))
    supervisor = Supervisor(
        home,
        Config(name="test", api=ApiSection(port=0), machine=machine or MachineSection()),
        peer="12D3KooWx",
        swarm=ChildSpec("swarm", (sys.executable, "-c", swarm), b"{}", lock.descriptor),
        learner=ChildSpec("learner", (sys.executable, "-c", learner), start, lock.descriptor, STOP_LINE.encode()),
        observer=heard,
        trackers=trackers,
    )
    if react is not None:
        react(supervisor)
    try:
        return await asyncio.wait_for(supervisor.run(), HANG_SECONDS)
    finally:
        lock.release()


def saying(event: Event, then: str = "") -> str:
    return f"import os, sys, time\nos.write(1, {encode_event(event) + chr(10).encode()!r})\n{then}"


async def test_a_learner_that_ends_by_itself_ends_the_node_well(home: Home) -> None:
    outcome = await supervised(home, Heard(), learner="pass")
    assert outcome.exit_code is ExitCode.DONE
    assert not is_locked(home)


async def test_events_reach_the_observer_and_the_metrics_and_other_output_the_log(home: Home) -> None:
    heard = Heard()
    await supervised(
        home, heard, learner=saying(FAULT, "print('a library says hello'); print('a warning', file=sys.stderr)")
    )
    assert heard.events == [FAULT]
    lines = [line for line in home.metrics.read_bytes().splitlines() if b'"usage"' not in line]
    assert lines == [encode_event(FAULT)]
    log = home.log("learner").read_text()
    assert "a library says hello" in log and "a warning" in log


async def test_a_phase_that_ran_out_of_memory_is_told_in_a_note_and_written_to_the_metrics(home: Home) -> None:
    heard = Heard()
    await supervised(home, heard, learner=saying(RAN_OUT))
    (note,) = heard.notes
    assert "round 7, phase learn" in note and "learner.batch_tokens is 4096 instead of 8192" in note
    assert encode_event(RAN_OUT) in home.metrics.read_bytes().splitlines()


async def test_what_is_only_to_be_looked_at_is_kept_for_the_api_and_never_recorded(home: Home) -> None:
    heard, kept = Heard(), list[Supervisor]()
    group = SampledGroup(None, "add", "1+1=", "2", (SampledAnswer("a secret", False, 1.0),), 1, 1.0)
    sample = Samples(time_seconds=1.0, round=1, ours=group, learnt_from=None)
    after = f"os.write(1, {encode_event(FAULT) + chr(10).encode()!r}); print('a library says hello')"
    await supervised(home, heard, learner=saying(sample, after), react=kept.append)
    assert kept[0].record.samples == sample and heard.events == [FAULT]
    assert b"a secret" not in home.metrics.read_bytes() and "a secret" not in home.log("learner").read_text()


class EndsOnceUsageIsTold(Heard):
    """Stops the node when memory was told and the learner has said ``events`` things."""

    def __init__(self, events: int) -> None:
        super().__init__()
        self.supervisor: Supervisor | None = None
        self._wanted = events

    def on_tick(self, status: NodeStatus, peers: PeersAnswer) -> None:
        if self.supervisor is not None and status.usage is not None and len(self.events) == self._wanted:
            self._wanted = -1
            self.supervisor.request_stop("test", typed=True)

    def watch(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor


async def test_memory_and_traffic_are_told_and_what_an_earlier_start_recorded_is_in_the_charts(home: Home) -> None:
    first, second = EndsOnceUsageIsTold(1), EndsOnceUsageIsTold(0)
    await supervised(home, first, learner=saying(ROUND, OBEDIENT), react=first.watch)
    told = [msgspec.json.decode(line) for line in home.metrics.read_bytes().splitlines()]
    usage = next(line for line in told if line["event"] == "usage")
    assert usage["supervisor_bytes"] > 1_000_000 and usage["sent_bytes_total"] is None  # no swarm process answers
    await supervised(home, second, learner=OBEDIENT, react=second.watch)
    assert second.supervisor is not None
    history = second.supervisor.record.history.answer()
    assert history.restored and history.rounds.time_seconds == (ROUND.time_seconds,)
    assert len(history.usage.time_seconds) >= 2


async def test_a_child_that_fails_is_started_again_and_its_last_words_are_told_escaped(home: Home) -> None:
    heard = Heard()
    once = home.path / "once"
    program = (
        f"import pathlib, sys\np = pathlib.Path({str(once)!r})\n"
        "if not p.exists():\n    p.touch(); sys.exit('went \\x1b[31mwrong')"
    )
    outcome = await supervised(home, heard, learner=program)
    assert outcome.exit_code is ExitCode.DONE
    (note,) = heard.notes
    assert "learner failed with exit code 1" in note and "went \\x1b[31mwrong" in note and "again in 0.5 s" in note


async def test_a_child_with_bad_settings_ends_the_node_with_its_code_and_reason(home: Home) -> None:
    outcome = await supervised(
        home, Heard(), learner=OBEDIENT, swarm="import sys; print('no such', file=sys.stderr); sys.exit(78)"
    )
    assert outcome.exit_code is ExitCode.BAD_CONFIGURATION and "no such" in outcome.because


async def test_what_a_killed_child_leaves_behind_is_killed_too(home: Home) -> None:
    pid_file = home.path / "grandchild"
    orphaning = (
        "import os, pathlib, signal, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
        f"p = pathlib.Path({str(pid_file)!r})\n"
        "if p.exists(): child.kill(); sys.exit(0)\n"
        "p.write_text(str(child.pid)); os.kill(os.getpid(), signal.SIGKILL)"
    )
    heard = Heard()
    outcome = await supervised(home, heard, learner=orphaning)
    assert outcome.exit_code is ExitCode.DONE
    assert "killed (signal 9)" in heard.notes[0]
    assert not home.fitted.exists()  # not for its memory: it was small
    stat = Path("/proc") / pid_file.read_text() / "stat"
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


async def test_the_first_stop_lets_the_learner_finish_before_the_swarm_ends(home: Home) -> None:
    heard = Heard()
    order = home.path / "order"
    finishing = saying(
        FAULT,
        f"assert sys.stdin.readline() and sys.stdin.readline().strip() == 'stop'\n"
        f"import select; assert not select.select([0], [], [], 0.3)[0], 'a supervisor that waits must not look gone'\n"
        f"open({str(order)!r}, 'a').write('learner ')",
    )
    leaving = f"{OBEDIENT}\nopen({str(order)!r}, 'a').write('swarm')"

    def react(supervisor: Supervisor) -> None:
        heard.on['"event":"fault"'] = lambda: supervisor.request_stop("test", typed=True)

    assert await supervised(home, heard, learner=finishing, swarm=leaving, react=react) == RunOutcome(
        ExitCode.DONE, "test"
    )
    assert order.read_text() == "learner swarm"


async def test_the_second_stop_ends_children_that_do_not_listen(home: Home) -> None:
    heard = Heard()
    deaf = saying(FAULT, "time.sleep(1000)")

    def react(supervisor: Supervisor) -> None:
        def once_more_soon() -> None:
            asyncio.get_running_loop().call_later(0.2, partial(supervisor.request_stop, "twice", typed=True))

        heard.on['"event":"fault"'] = lambda: supervisor.request_stop("once", typed=True)
        heard.on["Stopping (once)"] = once_more_soon

    outcome = await supervised(home, heard, learner=deaf, swarm="import time; time.sleep(1000)", react=react)
    assert outcome.exit_code is ExitCode.INTERRUPTED
    assert not is_locked(home)


async def test_a_hang_up_however_often_it_comes_is_one_request_and_the_learner_finishes(home: Home) -> None:
    heard = Heard()
    finishing = saying(ROUND, "assert sys.stdin.readline() and sys.stdin.readline().strip() == 'stop'; time.sleep(0.5)")

    def react(supervisor: Supervisor) -> None:
        def hang_up() -> None:
            for _ in range(3):
                supervisor.request_stop("SIGHUP", typed=False)

        heard.on['"event":"round"'] = hang_up

    assert await supervised(home, heard, learner=finishing, react=react) == RunOutcome(ExitCode.DONE, "SIGHUP")
    assert "Ending now." not in heard.notes


async def test_rounds_that_a_second_typed_request_loses_are_named(home: Home) -> None:
    heard = Heard()

    def react(supervisor: Supervisor) -> None:
        def twice() -> None:
            supervisor.request_stop("SIGINT", typed=True)
            supervisor.request_stop("SIGINT", typed=True)

        heard.on['"event":"round"'] = twice

    outcome = await supervised(home, heard, learner=saying(ROUND, "time.sleep(1000)"), react=react)
    assert outcome.exit_code is ExitCode.INTERRUPTED
    assert f"round {ROUND.round} is in no checkpoint" in outcome.because or f"1 to {ROUND.round} are" in outcome.because


async def test_a_learner_that_fails_while_stopping_makes_the_end_a_fault(home: Home) -> None:
    heard = Heard()

    def react(supervisor: Supervisor) -> None:
        heard.on['"event":"fault"'] = lambda: supervisor.request_stop("test", typed=True)

    failing = saying(FAULT, "sys.stdin.readline(), sys.stdin.readline()\nsys.exit('the disk is full')")
    outcome = await supervised(home, heard, learner=failing, react=react)
    assert outcome.exit_code is ExitCode.FAULT and "the disk is full" in outcome.because


async def test_a_tracker_gets_the_rounds_and_one_that_hangs_or_dies_changes_nothing_of_the_node(home: Home) -> None:
    heard, copy = Heard(), home.path / "copy"

    def react(supervisor: Supervisor) -> None:
        def on_round() -> None:
            if "out of order" in str(heard.notes) and copy.exists() and b"round/reward" in copy.read_bytes():
                supervisor.request_stop("test", typed=True)
                supervisor.request_stop("test", typed=True)  # once alone waits for the tracker that hangs, for a while
            else:
                heard.on['"event":"round"'] = on_round

        heard.on['"event":"round"'] = on_round

    programs = {
        "copies": f"import sys\nfor line in sys.stdin: print(line, file=open({str(copy)!r}, 'a'), flush=True)",
        "hangs": "import time; time.sleep(1000)",
        "dies": "raise RuntimeError('out of order')",
    }
    specs = [ChildSpec(name, (sys.executable, "-c", code), b"{}", None) for name, code in programs.items()]
    line = encode_event(ROUND) + b"\n"
    rounds = saying(ROUND, f"while True: time.sleep(0.01); os.write(1, {line!r})")
    outcome = await supervised(home, heard, learner=rounds, react=react, trackers=specs)
    assert outcome.exit_code is ExitCode.INTERRUPTED
    (note,) = [note for note in heard.notes if "out of order" in note]
    assert "the tracker dies failed with exit code 1" in note
    assert not is_locked(home)


async def test_the_status_says_that_the_node_evaluates_until_the_result_is_there(home: Home) -> None:
    heard, said = Heard(), list[str]()
    began = PhaseBegan(time_seconds=1.0, round=ROUND.round + 1, phase="evaluate")
    result = Evaluated(
        time_seconds=2.0, round=ROUND.round, policy_version=7, prompts=1, reward=0.5, reward_by_task={"add": 0.5},
        validation=0.5, best_round=ROUND.round, best_reward=0.5, seconds=1.0,
    )  # fmt: skip

    def react(supervisor: Supervisor) -> None:
        for tag in ("phase", "evaluated"):
            heard.on[f'"event":"{tag}"'] = lambda: said.append(supervisor.status().waiting_for)

    told = "\n".join(saying(event) for event in (READY, ROUND, began, result))
    await supervised(home, heard, learner=told, react=react)
    assert said == ["round 8: answering held-out prompts", "round 8 under way"]


def test_the_lock_outlives_a_supervisor_as_long_as_a_child_lives(home: Home) -> None:
    lock = lock_home(home)
    assert isinstance(lock, Lock)
    import subprocess

    with subprocess.Popen(
        [sys.executable, "-c", OBEDIENT], stdin=subprocess.PIPE, pass_fds=(lock.descriptor,)
    ) as child:
        lock.release()
        assert is_locked(home)
        assert child.stdin is not None
        child.stdin.close()
        child.wait(HANG_SECONDS)
    assert not is_locked(home)
    assert os.path.exists(home.lock)  # noqa: PTH110


RESTING = saying(
    READY,
    """
for line in sys.stdin:
    if line in ('pause\\n', 'stop\\n'):
        print('asked to', line, file=sys.stderr, flush=True)
        break
""",
)  # ready at once, and ends when it is asked to


async def becomes(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  the supervisor tells its state to those who ask
        await asyncio.sleep(0.01)


async def test_a_pause_ends_the_learner_and_a_resume_starts_it_again_while_the_swarm_process_stays(home: Home) -> None:
    heard = Heard()
    tasks: list[asyncio.Task[None]] = []

    async def story(supervisor: Supervisor) -> None:
        async def until(holds: Callable[[NodeStatus], bool]) -> NodeStatus:
            await becomes(lambda: holds(supervisor.status()))
            return supervisor.status()

        first = await until(lambda status: status.state is NodeState.TRAINING)
        assert first.paused is None
        assert supervisor.pause(7200.0, at_once=False) == supervisor.status().paused is not None
        resting = await until(lambda status: status.learner_process.pid is None)
        assert resting.state is NodeState.PAUSED and resting.paused is not None
        assert resting.paused.until == pytest.approx(resting.paused.since + 7200.0)
        assert resting.learner_process.restarts == 0 and "asked by its owner" in resting.waiting_for
        assert resting.swarm_process == first.swarm_process
        assert supervisor.resume(None) is None
        again = await until(lambda status: status.state is NodeState.TRAINING)
        assert again.learner_process.pid not in (None, first.learner_process.pid)
        supervisor.request_stop("test", typed=True)

    outcome = await supervised(
        home, heard, learner=RESTING, react=lambda supervisor: tasks.append(asyncio.create_task(story(supervisor)))
    )
    await tasks[0]
    assert outcome.exit_code is ExitCode.DONE
    assert [note for note in heard.notes if "aused" in note or "again" in note.lower()][-1] == "Training again."
    assert home.log("learner").read_text().count("asked to pause") == 1


async def test_a_learner_that_does_not_stop_for_a_pause_at_once_is_killed_and_its_end_is_no_failure(home: Home) -> None:
    heard, tasks = Heard(), list[asyncio.Task[None]]()

    async def story(supervisor: Supervisor) -> None:
        await becomes(lambda: supervisor.status().state is NodeState.TRAINING)
        supervisor.pause(None, at_once=True)
        await becomes(lambda: supervisor.status().learner_process.pid is None)
        assert supervisor.status().learner_process.restarts == 0
        supervisor.request_stop("test", typed=True)

    outcome = await supervised(
        home,
        heard,
        learner=saying(READY, "time.sleep(600)"),
        react=lambda supervisor: tasks.append(asyncio.create_task(story(supervisor))),
    )
    await tasks[0]
    assert outcome.exit_code is ExitCode.DONE


async def test_outside_its_schedule_a_node_starts_no_learner_and_says_until_when(home: Home) -> None:
    heard, tasks = Heard(), list[asyncio.Task[None]]()
    now = datetime.now()
    later = f"{now + timedelta(hours=3):%H:%M}-{now + timedelta(hours=4):%H:%M}"

    async def story(supervisor: Supervisor) -> None:
        await becomes(lambda: any("schedule" in note for note in heard.notes))
        status = supervisor.status()
        assert status.state is NodeState.PAUSED and status.paused is not None and status.paused.until is not None
        assert status.learner_process.pid is None and f"{now + timedelta(hours=3):%H:%M}" in status.waiting_for
        supervisor.request_stop("test", typed=True)

    outcome = await supervised(
        home,
        heard,
        learner="raise SystemExit('started')",
        react=lambda supervisor: tasks.append(asyncio.create_task(story(supervisor))),
        machine=MachineSection(schedule=later),
    )
    await tasks[0]
    assert outcome.exit_code is ExitCode.DONE and not home.log("learner").exists()


async def test_a_learner_gets_no_more_threads_than_its_owner_allows(home: Home) -> None:
    await supervised(
        home,
        Heard(),
        learner="import os, sys; print(os.environ['MKL_NUM_THREADS'], os.environ['NUMBA_NUM_THREADS'])",
        machine=MachineSection(max_threads=1),
    )
    assert home.log("learner").read_text().split() == ["1", "1"]
