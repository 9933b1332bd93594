"""The tasks' own rewards for a contender in another environment: a line of JSON in, ``[[task, seed, text], …]``, a line
of JSON out, one reward each; until standard input ends.

    python -m scripts.bench.contenders.reward_process
"""

from __future__ import annotations

import json
import sys

from node.configuration import TasksSection
from node.tasks.registry import load_tasks


def main() -> None:
    tasks = load_tasks(TasksSection())
    for line in sys.stdin:
        asked = json.loads(line)
        prompts = [tasks[task].prompt(tasks[task].ref(seed)) for task, seed, _ in asked]
        rewards = [tasks[p.ref.task].rewards(p, [text])[0] for p, (_, _, text) in zip(prompts, asked, strict=True)]
        print(json.dumps(rewards), flush=True)


if __name__ == "__main__":
    main()
