"""A conversation's keys and values, kept by the embedded engine from turn to turn, against prompting anew each turn.

    python -m scripts.bench.kept_turns [--episodes 64] [--turns 8] [--prompt 120] [--said 30] [--most 20] [--json]

Tokens a second of processor, all episodes in step, with what is said between the actions drawn at random: the same
tokens both ways, in turn, the best of ``RUNS``. The model's context is made as long as the conversations (rotations are
computed, weights stay). ``difference`` is of log-probabilities.
"""

from __future__ import annotations

import random
import time
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from node.configuration import PolicySection
from node.engines.engine import GenerationRequest, Sampling
from node.engines.torch import TorchEngine
from node.policy.policy import Policy
from scripts.bench.common.reporting import Figure, figures_parser, report

RUNS: Final = 3


def conversed(
    policy: Policy, episodes: int, turns: int, prompt: int, said: int, most: int, *, kept: bool
) -> tuple[float, int, NDArray[np.float32]]:
    """Returns the seconds of processor, the tokens sampled, and their log-probabilities."""
    engine, draws = TorchEngine(policy, rows=episodes, seed=0), random.Random(0)

    def text(tokens: int) -> list[int]:
        return [draws.randrange(5, policy.vocabulary) for _ in range(tokens)]

    rows, logps = [text(prompt) for _ in range(episodes)], []
    seconds = 0.0
    for turn in range(turns):
        requests = [
            GenerationRequest(tuple(row), 1, most, conversation=number if kept else None)
            for number, row in enumerate(rows)
        ]
        began = time.process_time()
        groups = engine.generate(requests, Sampling(1.0, turn))
        seconds += time.process_time() - began
        for row, (sample,) in zip(rows, groups, strict=True):
            row += [*sample.token_ids.tolist(), *text(said)]
            logps.append(sample.logps)
    columns = np.concatenate(logps)
    return seconds, len(columns), columns


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--model", default="builtin:robin")
    for name, value in (("episodes", 64), ("turns", 8), ("prompt", 120), ("said", 30), ("most", 20)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    torch.set_num_threads(1)
    policy = Policy.load(PolicySection(model=given.model))
    policy.base.config.max_position_embeddings = given.prompt + given.turns * (given.said + given.most)
    sizes = (given.episodes, given.turns, given.prompt, given.said, given.most)
    runs = {kept: [conversed(policy, *sizes, kept=kept) for _ in range(RUNS)] for kept in (False, True)}
    (anew, tokens, logps), (kept, kept_tokens, kept_logps) = (
        min(runs[k], key=lambda run: run[0]) for k in (False, True)
    )
    assert tokens == kept_tokens, "the same seeds give the same tokens"
    figures = [
        Figure("prompted anew", tokens / anew, "tokens/s", "higher"),
        Figure("kept", tokens / kept, "tokens/s", "higher"),
        Figure("ratio", anew / kept, "×", "higher", "at least 2.5"),
        Figure("difference", float(np.abs(logps - kept_logps).max()), "nats", "lower"),
    ]
    report("kept_turns", figures, as_json=given.json)


if __name__ == "__main__":
    main()
