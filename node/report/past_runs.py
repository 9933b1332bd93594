"""What ``starling history`` shows: the run of each data directory, and the checkpoints that are there."""

from __future__ import annotations

from msgspec import Struct

from node.api.types import TaskGain
from node.checkpoints.best import best_checkpoint, evaluation_of
from node.checkpoints.checkpoint_files import kept_later, round_of, rounds
from node.home import Home
from node.printable import printable
from node.quantities import counted, day_time, duration
from node.report.facts import RunFacts, run_facts
from node.report.lines import reward_lines

PATH_CHARACTERS = 300


class CheckpointThere(Struct, frozen=True):
    """A checkpoint on disk. ``starling up --resume`` goes on from it."""

    round: int
    path: str
    held_out: float | None  # mean reward over the tasks, on questions that nobody trains on; None: not evaluated
    best: bool  # of those that the run goes on from, by other such questions
    later: bool  # an earlier one was gone on from instead


class PastRun(Struct, frozen=True):
    """The run of one data directory, over all its starts, which may not have ended."""

    home: str
    model: str | None
    began_seconds: float  # Unix time of the first record, ...
    ended_seconds: float  # ... and of the last
    starts: int
    rounds: int
    alone: bool  # it has learnt from nobody else
    tasks: tuple[TaskGain, ...]  # ``change`` is null where it may be chance
    checkpoints: tuple[CheckpointThere, ...]


def past_run(home: Home) -> tuple[PastRun, list[str]]:
    """Returns the run of a data directory, and as lines for people. Raises as ``run_facts``."""
    facts = run_facts(home.metrics)
    run = PastRun(
        home=str(home.path),
        model=facts.model,
        began_seconds=facts.began_seconds or 0.0,
        ended_seconds=facts.ended_seconds or 0.0,
        starts=facts.starts,
        rounds=facts.rounds,
        alone=facts.gains.others_since_round is None,
        tasks=facts.gains.tasks,
        checkpoints=_checkpoints(home),
    )
    return run, _lines(run, facts)


def _checkpoints(home: Home) -> tuple[CheckpointThere, ...]:
    best = best_checkpoint(home.checkpoints)
    there = []
    for path in [*rounds(home.checkpoints), *kept_later(home.checkpoints).values()]:
        measured = evaluation_of(path)
        there.append(
            CheckpointThere(
                round=round_of(path),
                path=str(path),
                held_out=measured.reward if measured is not None else None,
                best=best is not None and path == best.path,
                later=path.name != f"round-{round_of(path):06d}",
            )
        )
    return tuple(there)


def _lines(run: PastRun, facts: RunFacts) -> list[str]:
    lines = [
        printable(run.home, PATH_CHARACTERS),
        f"  run         {day_time(run.began_seconds)} to {day_time(run.ended_seconds)} "
        f"({duration(facts.lasted_seconds)}), {counted(run.starts, 'start')}, {counted(run.rounds, 'round')}",
        f"  model       {printable(run.model or 'unknown')}",
    ]
    lines += [f"  reward      {line}" for line in reward_lines(facts.gains)]
    for each in run.checkpoints:
        held_out = "not evaluated" if each.held_out is None else f"held-out reward {each.held_out:.2f}"
        said = ", the best" if each.best else ", kept when an earlier one was gone on from" if each.later else ""
        lines.append(f"  checkpoint  round {each.round}, {held_out}{said}")
    return lines
