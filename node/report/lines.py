"""What ``starling report`` prints."""

from __future__ import annotations

from node.api.gains_words import changed, in_steps
from node.api.types import GainsAnswer, end_of
from node.cli.wording import evaluated_line
from node.printable import printable
from node.quantities import counted, duration, size, times
from node.report.facts import RunFacts

MAX_PEERS_SHOWN = 5  # with what this node has from them
MAX_TASKS_SHOWN = 4  # of one peer
MAX_WITHDRAWALS_SHOWN = 3
LEAST_SHOWN = 0.005  # of reward


def report_lines(facts: RunFacts) -> list[str]:
    shared = facts.sharing
    lines = [
        f"model    {printable(facts.model or 'unknown')} on {facts.device or 'an unknown device'}",
        f"run      {facts.rounds:,} rounds, {facts.tokens_generated:,} tokens in {duration(facts.lasted_seconds)}, "
        f"{counted(facts.starts, 'start')}",
        f"sharing  {shared.offered:,} groups offered; of peers {shared.fetched:,} fetched "
        f"({size(shared.fetched_bytes)}), {shared.used:,} used, and {shared.replayed:,} used again",
        f"traffic  {size(facts.traffic.sent_bytes)} sent, {size(facts.traffic.received_bytes)} received",
        f"averaged {times(facts.averaged_total)}",
        f"faults   {facts.faults_total:,}",
    ]
    if shared.hints:
        right = f"{shared.hints_right:,} of {shared.hints:,} questions that peers had answered in free text"
        lines.insert(3, f"own words {right} were answered rightly, with the answer as a remark, and learnt")
    if facts.evaluated is not None:
        lines.append(f"held-out {evaluated_line(facts.evaluated)}; {times(facts.evaluated_total)} in total")
    lines += [f"reward   {line}" for line in reward_lines(facts.gains)]
    lines += [f"turns    {task.task}: {task.turns}" for task in facts.gains.tasks if task.turns is not None]
    if facts.rounds:
        lines += _gains(facts.gains)
    lines += _withdrawals(facts)
    if facts.lines_passed_over:
        lines.append(
            f"note     skipped lines that do not decode (another version's, or cut short): {facts.lines_passed_over}"
        )
    return lines


def reward_lines(gains: GainsAnswer) -> list[str]:
    """Returns a line for each task: its reward at first, before it learnt from others, now, and the change."""
    tasks = sorted(gains.tasks, key=lambda task: task.task)
    width = max((len(task.task) for task in tasks), default=0)
    alone = gains.others_since_round is None
    return [
        f"{task.task:<{width}}  {' → '.join(in_steps(task, alone=alone))}  {changed(task.change)}" for task in tasks
    ]


def _gains(gains: GainsAnswer) -> list[str]:
    """Returns what the node has from whom, a line for each peer that counts for something, and what it has lost."""
    lines = [f"gained   {gains.sentence}"]
    for peer in gains.peers[:MAX_PEERS_SHOWN]:
        best = sorted(peer.by_task.items(), key=lambda item: -abs(item[1]))[:MAX_TASKS_SHOWN]
        on = ", ".join(f"{printable(task)} {gain:+.2f}" for task, gain in best if abs(gain) >= LEAST_SHOWN)
        if on:
            name = printable(peer.name or end_of(peer.peer), 64)
            learnt = f"learnt from its groups {times(peer.groups)}; " if peer.groups else ""
            lines.append(f"from     {name}: {learnt}{on}")
    return lines + [f"lost     {loss.sentence}" for loss in gains.losses]


def _withdrawals(facts: RunFacts) -> list[str]:
    """Returns a line for each of the newest times that it learnt less from peers for a while."""
    shown = facts.withdrawals[-MAX_WITHDRAWALS_SHOWN:]
    earlier = facts.withdrawals_total - len(shown)
    lines = [f"caution  {each.sentence}" for each in shown]
    return [*lines, f"caution  {counted(earlier, 'earlier precaution')}"] if earlier else lines
