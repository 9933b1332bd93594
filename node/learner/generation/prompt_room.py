"""Whether prompts of the tasks leave room for an answer in the model's context: looked at before the first round."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from node.fit.workload import SAMPLED_PROMPTS
from node.policy.tokens import TokenTable
from node.tasks.split import training_prompt
from node.tasks.task import Task
from protocol.errors import ConfigurationError

log = logging.getLogger(__name__)


def check_prompt_room(tasks: Mapping[str, Task], tokens: TokenTable, context: int) -> None:
    """Looks at ``SAMPLED_PROMPTS`` prompts of each task, and warns of a task where some leave no room: rounds leave
    these out. Raises ``ConfigurationError`` where none of any task fits, or a task has no question that teaches."""
    fitting = 0
    for name, task in tasks.items():
        lengths = [len(tokens.prompt_ids(training_prompt(task, seed).text)) for seed in range(SAMPLED_PROMPTS)]
        short = sum(length < context for length in lengths)
        fitting += short
        if short < len(lengths):
            log.warning(
                "%d of %d prompts of %s leave no room for an answer in the model's context of %d tokens, the longest "
                "has %d: they will be left out", len(lengths) - short, len(lengths), name, context, max(lengths),
            )  # fmt: skip
    if tasks and not fitting:
        raise ConfigurationError(
            f"no prompt of {', '.join(sorted(tasks))} leaves room for an answer in the model's context of {context} "
            "tokens: choose shorter tasks, or a policy.model with a longer context"
        )
