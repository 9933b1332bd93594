"""How many questions tasks have, as ``starling tasks`` says it."""

from __future__ import annotations

from node.tasks.question_counts import GENERATED, GENERATED_COUNTS, estimated_count, question_count


def test_counts_that_are_written_down_are_those_that_drawing_gives() -> None:
    counted = {task.name: estimated_count(task) for task in GENERATED}
    assert {name: count for name, count in counted.items() if count is not None} == GENERATED_COUNTS
    assert all(question_count(task) == counted[task.name] for task in GENERATED)
