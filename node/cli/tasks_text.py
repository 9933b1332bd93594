"""What ``starling tasks`` prints: pure functions of tasks, samples and judged answers."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from node.environments.audit import MOST_SHOWN, Audit
from node.environments.conversation import Exchange
from node.printable import printable
from node.tasks.catalogue import JudgedAnswer, TaskSample, TaskSummary
from node.tasks.parameters import GENERATORS, PREFIX, TABLE
from node.tasks.question_counts import MANY_QUESTIONS
from node.tasks.split import Part

if TYPE_CHECKING:
    from node.policy.shown_prompt import ShownPrompt

EXAMPLE_CHARACTERS = 48
LINE_CHARACTERS = 400
LIST_COLUMNS = 118
SHOWN_LINES = 40
SHARED = "Nodes with this configuration share their conversations of it, once it has passed its audit on each."


def list_lines(tasks: Sequence[TaskSummary], plugins: Sequence[str]) -> Iterator[str]:
    """Yields one line a task, with a star where the node would train on it, and the names of installed plug-ins."""
    name = max(len(task.name) for task in tasks)
    scoring = max(len(task.scoring) for task in tasks)
    yield f"  {'task':<{name}}  questions  tokens  {'scored by':<{scoring}}  begins with"
    for task in tasks:
        star = "*" if task.configured else " "
        example = printable(" ".join(task.example.split()), EXAMPLE_CHARACTERS)
        yield (
            f"{star} {printable(task.name):<{name}}  {_count(task.questions):>9}  {task.max_new_tokens:>6}  "
            f"{task.scoring:<{scoring}}  {example}"
        )
    yield ""
    yield "* what this configuration trains on. tasks.names takes names, and the sets default, sapo, reasoning and"
    yield "conversations."
    yield "Questions: different texts, about. One in eight is never trained on, by any node: these measure."
    yield ""
    yield f"Generators that take parameters in node.toml; `starling tasks {PREFIX}NAME` shows those of one:"
    yield from textwrap.wrap(", ".join(GENERATORS), LIST_COLUMNS, initial_indent="  ", subsequent_indent="  ")
    if plugins:
        yield ""
        yield f"Installed plug-ins, which tasks.names takes too: {', '.join(map(printable, plugins))}"


def sample_lines(sample: TaskSample, shown: ShownPrompt | None, called: str) -> Iterator[str]:
    """Yields the question as the policy gets it, and what is known of it. ``called``: how the person names the task."""
    yield f"{printable(sample.task)}, seed {sample.seed}: up to {sample.max_new_tokens} tokens, {sample.scoring}"
    use = "nodes train on it" if sample.part is Part.TRAINING else f"it only measures ({sample.part} set)"
    yield f"one of {_count(sample.questions)} questions; {use}"
    if shown is not None:
        how = "by its chat template" if shown.uses_chat else "as it is"
        ends = ", ".join(map(printable, shown.end_tokens))
        yield f"for {printable(shown.model)}, written {how}: {shown.tokens} tokens; a completion ends at {ends}"
    yield "----"
    yield sample.question if shown is None else shown.text
    if sample.conversation is None:
        yield "----"
        yield _right_answer(sample)
    else:
        for each in sample.conversation:
            yield from exchange_lines(each)
        yield "----"
        if sample.conversation:
            yield f"reward {sample.conversation[-1].reward:g}"
        yield f"Play it: starling tasks {printable(called)} --play"
        yield SHARED
    if sample.parameters is not None:
        yield ""
        yield "Its parameters, for node.toml; those that are left out are the library's:"
        yield from _table(sample.task.removeprefix(PREFIX), sample.parameters)


def exchange_lines(exchange: Exchange) -> Iterator[str]:
    yield f"> {_indented(exchange.action)}"
    if exchange.observation:
        yield _indented(exchange.observation)


def audit_lines(audit: Audit) -> Iterator[str]:
    """Yields what an audit found."""
    yield f"{printable(audit.environment)}, configuration {audit.config_hash}"
    yield f"{audit.episodes} episodes in two processes, {audit.turns:,} observations"
    yield (
        f"slowest turn {audit.most_seconds * 1000:.1f} ms (training allows {audit.limit_seconds:g} s for all turns "
        f"of an episode together); longest observation {audit.most_bytes} bytes of {audit.limit_bytes}"
    )
    for title, found in (("differs between the processes", audit.differs), ("fails", audit.faults)):
        for each in found[:MOST_SHOWN]:
            yield f"{title}: {printable(each, LINE_CHARACTERS)}"
        if len(found) > MOST_SHOWN:
            yield f"… and {len(found) - MOST_SHOWN} more"
    if audit.passed:
        yield "passed: equal actions gave equal observations and rewards"
        yield SHARED
    else:
        yield "not passed: an episode may depend on its reference and the actions alone (docs/environments.md)"


def _table(generator: str, parameters: Mapping[str, Any]) -> Iterator[str]:
    """Yields the parameters as TOML. JSON writes such values alike, but for None, which has no text in TOML."""
    yield f"[{TABLE}.{generator}]"
    for name, value in parameters.items():
        yield f"# {name} is not set" if value is None else f"{name} = {json.dumps(value)}"


def _count(questions: int | None) -> str:
    return f"{questions:,}" if questions is not None else f"> {MANY_QUESTIONS:,}"


def judged_lines(sample: TaskSample, judged: JudgedAnswer) -> Iterator[str]:
    """Yields the reward of an answer and what was judged."""
    yield f"reward {judged.reward:g}"
    if judged.extracted is None:
        yield f"no answer was found by {judged.found_by}"
    else:
        yield f"judged, found by {judged.found_by}: {_indented(judged.extracted)}"
    yield _right_answer(sample)
    if judged.fault is not None:
        yield f"fault: {printable(judged.fault, 400)}"


def _right_answer(sample: TaskSample) -> str:
    if sample.right_answer is None:
        return "right answer: any that the scoring accepts"
    return f"right answer: {_indented(sample.right_answer)}"


def _indented(text: str) -> str:
    """Returns one line as it is, and several below each other."""
    lines = [printable(line, LINE_CHARACTERS) for line in text.split("\n")[:SHOWN_LINES]]
    return lines[0] if len(lines) == 1 else "\n" + "\n".join(f"  {line}" for line in lines)
