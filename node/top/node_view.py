"""This node as lines of text: what it does now, its last round, charts over time, its last fault. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from node.api.answers import donor_lines, engine_line, stage_lines
from node.api.types import HistoryAnswer, NodeStatus
from node.cli.wording import evaluated_line, fault_line
from node.events import RoundDone
from node.quantities import duration, size, times
from node.top.text import Line, Span, Style, bars, fitted, number, percent, wrapped

TITLE_CELLS = 12  # of a fact
VALUE_CELLS = 7  # of the number before a chart
NAME_CELLS = 24  # of a chart
MAX_LINES = 3  # of one long text
MAX_HEIGHT = 4  # of one chart
MAX_NOTES = 5
SPEEDS = {"generated t/s": "generated_tokens_per_second", "trained t/s": "trained_tokens_per_second"}


def node_lines(
    status: NodeStatus, history: HistoryAnswer | None, now_seconds: float, cells: int, rows: int
) -> list[Line]:
    """Returns all lines of the view, the most important first; charts take the rows that are left."""
    facts = [*_facts(status, now_seconds, cells), ()]
    notes = [line for note in status.notes[: -MAX_NOTES - 1 : -1] for line in _long("note", note, cells, "")]
    charted = _charts(status.round, history)
    if not charted or history is None:
        return [*facts, *_long("charts", "none yet: no round is done", cells, "faint"), *notes]
    spare = rows - len(facts) - len(notes) - 1
    height = max(1, min(MAX_HEIGHT, spare // len(charted)))
    elapsed_seconds = history.rounds.time_seconds[-1] - history.rounds.time_seconds[0]
    heading = f"Reward by task (a full bar is 1) and tokens/s, over {duration(elapsed_seconds)}"
    lines: list[Line] = [*facts, (Span(heading, "title"),)]
    for name, value, values, high in charted:
        drawn = bars(values, cells - NAME_CELLS - VALUE_CELLS - 2, high=high, height=height)
        lead = [f"{'':{NAME_CELLS + VALUE_CELLS}}"] * (height - 1)
        lead.append(fitted(name, NAME_CELLS) + fitted(value, VALUE_CELLS, right=True))
        lines += [(Span(left), Span(f"  {bar}", "good")) for left, bar in zip(lead, drawn, strict=True)]
    return [*lines, *notes]


def _facts(status: NodeStatus, now_seconds: float, cells: int) -> list[Line]:
    done, swarm, saved = status.round, status.swarm, status.checkpoint
    half = cells // 2
    lines = _long("now", status.waiting_for or status.state, cells, "")
    if (learning := status.nothing_learnt or status.reward_falls) is not None:
        lines += _long("learning", learning, cells, "warn")
    if status.hangs is not None:
        lines += _long("hangs", status.hangs, cells, "bad")
    pairs = [
        ("round", f"{done.round:,}, took {done.seconds:.1f} s" if done else "none yet"),
        ("reward", f"{number(done.reward, 3)} last round" if done else "–"),
        ("generated", f"{number(done.tokens_per_second)} tokens/s" if done else "–"),
        ("in total", f"{number(done.tokens_generated_total)} tokens" if done else "–"),
        ("trained on", f"{number(done.trained_tokens_per_second)} tokens/s" if done else "–"),
        ("groups", f"{done.groups_offered_total:,} offered, {done.foreign_groups_used_total:,} used" if done else "–"),
        ("eff. sample", f"{percent(done.effective_sample_share)} of the batch" if done else "–"),
        ("staleness", _staleness(done)),
        ("memory", _memory(status)),
        ("traffic", f"{size(swarm.received_bytes)} in, {size(swarm.sent_bytes)} out" if swarm else "–"),
        ("checkpoint", f"round {saved.round}, {_ago(saved.time_seconds, now_seconds)}" if saved else "none yet"),
        ("peers", f"{swarm.connected_peers} connected" if swarm else "the swarm does not answer"),
    ]
    for left, right in zip(pairs[::2], pairs[1::2], strict=True):
        lines.append((*_fact(*left, half), *_fact(*right, cells - half)))
    if status.evaluated is not None:
        lines += _long("held-out", evaluated_line(status.evaluated), cells, "")
    lines += _long("averaged", _averaged(status, now_seconds), cells, "")
    if status.engine is not None and not status.engine.is_as_configured:
        lines += _long("engine", engine_line(status.engine), cells, "warn")
    for donor in donor_lines(status.donors) if status.donors is not None else ():
        lines += _long("donor", donor, cells, "")
    for stage in stage_lines(status.stages) if status.stages is not None else ():
        lines += _long("layers", stage, cells, "warn" if stage.startswith("nobody") else "")
    if swarm is not None and swarm.alone_because is not None:
        lines += _long("alone", swarm.alone_because, cells, "warn")
    if swarm is not None and (swarm.reach.relays or swarm.reach.is_out_of_reach):
        lines += _long("reach", swarm.reach.in_words, cells, "" if swarm.reach.relays else "warn")
    for each in status.withdrawn:
        lines += _long("caution", each.sentence, cells, "")
    if status.fault is not None:
        fault = status.fault
        when = _ago(fault.time_seconds, now_seconds)
        lines += _long("last fault", f"{when}, {fault_line(fault)}", cells, "bad" if fault.fatal else "warn")
    return lines


def _fact(title: str, value: str, cells: int) -> Line:
    return Span(fitted(title, TITLE_CELLS), "faint"), Span(fitted(value, cells - TITLE_CELLS))


def _long(title: str, text: str, cells: int, style: Style) -> list[Line]:
    texts = wrapped(text, cells - TITLE_CELLS, MAX_LINES)
    return [
        (Span(fitted(title if index == 0 else "", TITLE_CELLS), "faint"), Span(part, style))
        for index, part in enumerate(texts)
    ]


def _charts(
    done: RoundDone | None, history: HistoryAnswer | None
) -> Sequence[tuple[str, str, Sequence[float | None], float]]:
    """Returns name, last value, values, and the value of a full bar, for each chart."""
    if history is None or not history.rounds.time_seconds:
        return []
    values = {(series.name, series.task): series.values for series in history.rounds.series}
    rewards = {task: values["reward", task] for name, task in values if name == "reward" and task is not None}
    titled = sorted(rewards.items())
    if len(rewards) != 1 and ("reward", None) in values:
        titled.insert(0, ("reward, mean", values["reward", None]))
    speeds = [(name, values[key, None]) for name, key in SPEEDS.items() if (key, None) in values]
    highest = max((value for _, some in speeds for value in some if value is not None), default=0.0)
    return [(name, number(_last(some), 2), some, 1.0) for name, some in titled] + [
        (name, number(_last(some)), some, highest) for name, some in speeds
    ]


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _staleness(done: RoundDone | None) -> str:
    if done is None or done.staleness_mean is None:
        return "–"
    highest = "" if done.staleness_max is None else f", {done.staleness_max} at most"
    return f"{done.staleness_mean:.1f} versions{highest}"


def _memory(status: NodeStatus) -> str:
    usage = status.usage
    if usage is None:
        return "–"
    resident = (usage.supervisor_bytes, usage.learner_bytes, usage.swarm_bytes)
    device = status.round.device_memory_bytes if status.round is not None else None
    return size(sum(amount or 0 for amount in resident)) + (f", {size(device)} device" if device else "")


def _averaged(status: NodeStatus, now_seconds: float) -> str:
    """Describes the last outer step, and why the last offer of our weights led to none."""
    averaged, offered = status.averaged, status.offered
    missed = "" if offered is None or offered.partner is not None else f"; not at the last offer: {offered.because}"
    if averaged is None or averaged.partner is None:
        return f"never{missed}"
    apart = "" if averaged.distance is None else f", {percent(averaged.distance, 2)} apart"
    partner = fitted(averaged.partner, 16).rstrip()
    when = _ago(averaged.time_seconds, now_seconds)
    return f"{times(averaged.outer_steps)}, last {when} with {partner}{apart}{missed}"


def _ago(then_seconds: float, now_seconds: float) -> str:
    return f"{duration(max(0.0, now_seconds - then_seconds))} ago"
