"""What ``starling report`` prints."""

from __future__ import annotations

from node.printable import printable
from node.quantities import duration, size
from node.report.facts import RunFacts


def report_lines(facts: RunFacts) -> list[str]:
    shared = facts.sharing
    lasted = (facts.ended_seconds or 0.0) - (facts.began_seconds or 0.0)
    lines = [
        f"model    {printable(facts.model or 'unknown')} on {facts.device or 'an unknown device'}",
        f"run      {facts.rounds:,} rounds, {facts.tokens_generated:,} tokens in {duration(lasted)}, "
        f"{facts.starts} start{'' if facts.starts == 1 else 's'}",
        f"sharing  {shared.shared:,} groups shared, {shared.used:,} of others used and {shared.replayed:,} used again, "
        f"{size(shared.fetched_bytes)} fetched",
        f"traffic  {size(facts.traffic.sent_bytes)} sent, {size(facts.traffic.received_bytes)} received",
        f"averaged {facts.averaged_total:,} times",
        f"faults   {facts.faults_total:,}",
    ]
    width = max((len(task) for task in facts.last_reward), default=0)
    for task, last in sorted(facts.last_reward.items()):
        lines.append(f"reward   {printable(task):<{width}}  {facts.first_reward[task]:.3f} → {last:.3f}")
    if facts.lines_passed_over:
        lines.append(f"note     {facts.lines_passed_over} lines of another version, or cut short, were passed over")
    return lines
