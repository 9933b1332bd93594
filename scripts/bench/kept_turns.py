"""Conversations in an engine that computes each token once, against prompting anew each turn.

    python -m scripts.bench.kept_turns [--episodes 64] [--turns 8] [--prompt 120] [--said 30] [--most 20]
                                       [--milliseconds 20] [--workers 8] [--process] [--json]

Actions are of uneven length: they end where the model ends them, after ``most`` tokens at last. ``said`` tokens follow
each, drawn at random. Three ways in turn, the best of ``RUNS`` each: prompted anew each turn, all in step; computed
once, in step, so that no row goes on before all have ended their action; computed once, each row at its own pace. First
with replies that are there at once: tokens a second of processor. Then with an environment of ``workers`` that takes 0
to ``milliseconds`` a step: tokens a second. The model's context is made as long as the conversations. With
``--process`` the engine is in a process of its own, and all are tokens a second.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Final

import torch

from node.configuration import PolicySection
from node.engines.engine import Engine, GenerationRequest, Heard, Sample, Sampling
from node.engines.process.engine_child import EngineChild
from node.engines.process.engine_setup import EngineSetup
from node.engines.process.process_engine import ProcessEngine
from node.engines.torch import TorchEngine
from node.engines.turns import in_step
from node.learner.generation.engine_weights import EngineWeights
from node.policy.model_files import model_folder
from node.policy.policy import Policy
from scripts.bench.common.reporting import Figure, figures_parser, report

RUNS: Final = 3
WAYS: Final = ("prompted anew", "computed once, in step", "computed once, at their own pace")


@dataclass(frozen=True)
class Shape:
    episodes: int
    turns: int
    prompt: int
    said: int
    most: int

    @property
    def tokens(self) -> int:
        """The most tokens of a conversation."""
        return self.prompt + self.turns * (self.said + self.most)


class Environment:
    """``Turns`` of one run. With ``in_step`` no reply is given before every conversation that goes on has acted."""

    rewrites = False

    def __init__(self, shape: Shape, vocabulary: int, threads: ThreadPoolExecutor | None, most_seconds: float) -> None:
        self._shape, self._threads, self._most_seconds = shape, threads, most_seconds
        self.in_step = False
        self._going = self._acting = shape.episodes
        draws = random.Random(0)
        self.prompts, self._said = (
            [[draws.randrange(5, vocabulary) for _ in range(tokens)] for _ in range(texts)]
            for tokens, texts in ((shape.prompt, shape.episodes), (shape.said, shape.episodes * shape.turns))
        )
        self._done = SimpleQueue[tuple[int, Heard | None]]()

    def acted(self, conversation: int, request: int, so_far: Sample) -> None:
        self._acting -= 1
        if self._threads is None:
            self._step(conversation, request, len(so_far.observed))
        else:
            self._threads.submit(self._step, conversation, request, len(so_far.observed))

    def replies(self, *, wait: bool) -> list[tuple[int, Heard | None]]:
        found: list[tuple[int, Heard | None]] = []
        if self.in_step and self._acting:
            return found
        least = self._going if self.in_step else int(wait)
        while True:
            try:
                found.append(self._done.get(block=len(found) < least))
            except Empty:
                break
        goes_on = sum(ids is not None for _, ids in found)
        self._going -= len(found) - goes_on
        self._acting += goes_on
        return found

    def _step(self, conversation: int, request: int, turn: int) -> None:
        if self._threads is not None:
            time.sleep(random.Random(f"{request} {turn}").uniform(0, self._most_seconds))
        ids = self._said[request * self._shape.turns + turn]
        self._done.put((conversation, Heard(ids) if turn + 1 < self._shape.turns else None))


def conversed(engine: Engine, shape: Shape, way: str, environment: Environment) -> tuple[float, float, int]:
    """Returns the seconds of processor and of the wall, and the tokens sampled."""
    whole = shape.tokens
    requests = [GenerationRequest(prompt, 1, shape.most, conversation_tokens=whole) for prompt in environment.prompts]
    environment.in_step = way == WAYS[1]
    cpu, wall = time.process_time(), time.perf_counter()
    if way == WAYS[0]:
        reached = in_step(engine.advance, requests, Sampling(1.0, 1), None, None, environment)
    else:
        reached = engine.advance(requests, Sampling(1.0, 1), turns=environment)
    taken = time.process_time() - cpu, time.perf_counter() - wall
    assert all(len(each.samples) == 1 for each in reached)
    return *taken, sum(each.tokens for each in reached)


def measured(
    engine: Engine, policy: Policy, shape: Shape, threads: ThreadPoolExecutor | None, seconds: float
) -> list[Figure]:
    runs: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(RUNS):
        for way in WAYS:
            environment = Environment(shape, policy.vocabulary, threads, seconds)
            cpu, wall, tokens = conversed(engine, shape, way, environment)
            engine.release()  # as after each round
            runs[way].append(tokens / (cpu if threads is None and engine.in_process else wall))
    best = {way: max(rates) for way, rates in runs.items()}
    place = "" if engine.in_process else "in a process, "
    named = place + ("replies at once" if threads is None else f"replies after 0 to {1000 * seconds:g} ms")
    anew, stepping, own = best.values()
    return [
        *(Figure(f"{named}: {way}", rate, "tokens/s", "higher") for way, rate in best.items()),
        Figure(f"{named}: at their own pace against anew", own / anew, "×", "higher", "at least 2.5"),
        Figure(f"{named}: at their own pace against in step", own / stepping, "×", "higher"),
    ]


@contextmanager
def in_a_process(policy: Policy, model: Path, rows: int) -> Iterator[Engine]:
    """Yields an engine in a process of its own, of the model in the folder ``model``, which is that of ``policy``."""
    section = PolicySection(model=str(model)).model_dump(mode="json")
    with TemporaryDirectory() as files:
        setup = EngineSetup(socket=f"{files}/engine.sock", files=files, policy=section, seed=0, merge_adapters=True)
        engine = ProcessEngine(
            policy,
            lambda: EngineChild(setup),
            lambda: TorchEngine(policy, rows=rows, seed=0, owns_weights=True),
            rows=rows,
            seed=0,
            files=Path(files),
            report=lambda change: None,
        )
        with closing(engine):
            EngineWeights(engine).load(1, policy.trainable())
            yield engine


def with_context(model: str, tokens: int, folder: Path) -> Path:
    """Puts a copy of ``model`` with a context of ``tokens`` into ``folder``, and returns that."""
    shutil.copytree(model_folder(model), folder, dirs_exist_ok=True)
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(written | {"max_position_embeddings": tokens}), encoding="utf-8")
    return folder


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--model", default="builtin:robin")
    for name, value in (("episodes", 64), ("turns", 8), ("prompt", 120), ("said", 30), ("most", 20), ("workers", 8)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--milliseconds", type=float, default=20.0)
    parser.add_argument("--process", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    shape = Shape(given.episodes, given.turns, given.prompt, given.said, given.most)
    with ExitStack() as stack:
        model = with_context(given.model, shape.tokens, Path(stack.enter_context(TemporaryDirectory())))
        policy = Policy.load(PolicySection(model=str(model)))
        engine: Engine = TorchEngine(policy, rows=given.episodes, seed=0)
        if given.process:
            engine = stack.enter_context(in_a_process(policy, model, given.episodes))
        threads = stack.enter_context(ThreadPoolExecutor(given.workers))
        figures = measured(engine, policy, shape, None, 0.0)
        figures += measured(engine, policy, shape, threads, given.milliseconds / 1000)
    report("kept_turns", figures, as_json=given.json)


if __name__ == "__main__":
    main()
