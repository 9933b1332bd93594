"""Guesses from earlier answers: tokens a second of the embedded engine with them and without.

The six tasks of the default swarm in turn, answered by ``builtin:wren`` as it is shipped (fresh), and after rounds of
reinforcement learning on them by itself (trained). Both engines sample the same prompts with the same seeds; one
guesses from what it sampled itself and from right answers of ``builtin:robin`` and ``builtin:finch``, written in wren's
tokens, as a node gets them from its peers; the fresh one also from what it sampled in about twenty rounds before, the
trained one from what its own learning sampled.

``builtin`` is the model itself, where the engine would not guess by itself. ``40M`` and ``0.5B`` are the same function
at the cost of a larger model (``widened``): a trained model's answers, without a large model that was trained.

A round is as many calls as it takes until each of the six tasks had equally many prompts: calls differ, since some
tasks have longer answers, or ones that are easier to guess. ``unlike`` is what must cost nothing: random prompts and
answers, sampled at a temperature at which no token follows from another, nothing remembered.

Beside tokens a second of wall time, those of the process's CPU time are printed: they hold where other programs use the
cores too. Equal samples: token ids and log-probabilities to the bit.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from node.configuration import Config, EngineSection, LearnerSection, PolicySection
from node.engines.cache_size import ROW_MULTIPLE
from node.engines.engine import Ended, Enough, GenerationProgress, GenerationRequest, Sample, Sampling
from node.engines.torch import TorchEngine
from node.events import RoundDone
from node.learner.assembly.wiring import learner_of
from node.learner.foreign.intake import RolloutIntake
from node.learner.state.learner_state import LearnerState
from node.learner.steps.optimizer import MasterAdamW
from node.policy.policy import Policy
from node.tasks.default_swarm import DEFAULT_TASKS
from node.tasks.scorer import Scores
from node.tasks.task import Prompt
from protocol.messages import PromptRef
from scripts import REPOSITORY
from scripts.bench.common.reporting import Figure
from scripts.bench.common.widened import WiderShape, write_widened

SHAPES: Final = {
    "builtin": None,
    "40M": WiderShape(layers=12, hidden=512, intermediate=1536, heads=16, kv_heads=4, vocabulary=16_384),
    "0.5B": WiderShape(layers=24, hidden=896, intermediate=4864, heads=28, kv_heads=4, vocabulary=151_936),
}
COMPLETIONS: Final = 4
ROWS: Final = {"builtin": (8, 128), "40M": (8, 16, 32), "0.5B": (8, 24)}  # completions of a call
ENGINE_ROWS: Final = 128
PEERS: Final = ("robin", "finch")
PEERS_PROMPTS: Final = 600  # that each peer has answered
OWN_PROMPTS: Final = 600  # that the fresh model has answered
PEERS_SEED, MEASURED_SEED, OWN_SEED = 1_000_000, 2_000_000, 3_000_000  # of prompts; learning draws from others
UNLIKE: Final = 8.0  # a temperature
CLOCKS: Final = {"wall": time.perf_counter, "CPU": time.process_time}

Answers = list[tuple[Sequence[int], Sequence[int]]]  # prompt and answer, in wren's tokens


class DefaultTasks:
    """Scores in this process."""

    by_name: Final = {task.name: task for task in DEFAULT_TASKS}

    def prompt(self, number: int, seed: int) -> Prompt:
        task = DEFAULT_TASKS[number % len(DEFAULT_TASKS)]
        return task.prompt(task.ref(seed + number))

    def score(self, items: Sequence[tuple[PromptRef, Sequence[str]]]) -> list[Scores]:
        prompts = [self.by_name[ref.task].prompt(ref) for ref, _ in items]
        rewards = [self.by_name[p.ref.task].rewards(p, texts) for p, (_, texts) in zip(prompts, items, strict=True)]
        return [Scores(tuple(each), (None,) * len(each)) for each in rewards]


TASKS: Final = DefaultTasks()


class RecordingEngine(TorchEngine):
    """Keeps what it samples."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy, rows=ENGINE_ROWS, seed=0)
        self.answers: Answers = []

    def advance(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        enough: Enough | None = None,
        ended: Ended | None = None,
    ) -> list[GenerationProgress]:
        reached = super().advance(requests, sampling, enough)
        for request, progress in zip(requests, reached, strict=True):
            self.answers += [(request.prompt_ids, each.token_ids.tolist()) for each in progress.sequences]
        return reached


def load(model: str) -> Policy:
    return Policy.load(PolicySection(model=model, device="cpu", dtype="float32"))


def requests_of(policy: Policy, prompts: Sequence[Prompt], completions: int) -> list[GenerationRequest]:
    limits = [TASKS.by_name[prompt.ref.task].max_new_tokens for prompt in prompts]
    return [
        GenerationRequest(policy.tokens.prompt_ids(prompt.text), completions, limit)
        for prompt, limit in zip(prompts, limits, strict=True)
    ]


def trained(policy: Policy, rounds: int) -> Answers:
    """Trains ``policy`` alone on the default tasks; returns what it sampled meanwhile, and prints its success."""
    section = LearnerSection(foreign_groups=0)
    config = Config(name="bench", learner=section, engine=EngineSection(rows=ENGINE_ROWS), rounds=rounds)
    engine, done = RecordingEngine(policy), list[RoundDone]()
    learner = learner_of(
        config,
        policy,
        TASKS.by_name,
        engine,
        TASKS,
        RolloutIntake(None, TASKS.by_name, section, time.time),
        MasterAdamW(policy.trainable(), section),
        LearnerState(),
        report=lambda event: done.append(event) if isinstance(event, RoundDone) else None,
        clock=time.time,
    )
    learner.run(lambda: None)
    first, last = (statistics.fmean(each.reward or 0.0 for each in part) for part in (done[:10], done[-10:]))
    print(f"{rounds} rounds of learning: mean reward {first:.2f}, then {last:.2f}", file=sys.stderr, flush=True)
    return engine.answers


def right_answers_of_peers(policy: Policy) -> Answers:
    """Returns right answers of the other built-in models, in ``policy``'s tokens."""
    answers: Answers = []
    for name in PEERS:
        peer = load(f"builtin:{name}")
        prompts = [TASKS.prompt(number, PEERS_SEED) for number in range(PEERS_PROMPTS)]
        given = TorchEngine(peer, rows=ENGINE_ROWS, seed=0).generate(
            requests_of(peer, prompts, COMPLETIONS), Sampling(seed=0)
        )
        for prompt, samples in zip(prompts, given, strict=True):
            texts = [peer.tokens.text_of(each.token_ids.tolist()) for each in samples]
            rewards = TASKS.score([(prompt.ref, [text.decode("utf-8", "replace") for text in texts])])[0].rewards
            for text, sample, reward in zip(texts, samples, rewards, strict=True):
                written = policy.tokens.tokenize_completion(text)
                if reward > 0 and written is not None:
                    end = [policy.tokens.eos_id] if int(sample.token_ids[-1]) in peer.tokens.eos_ids else []
                    answers.append((policy.tokens.prompt_ids(prompt.text), [*written[0], *end]))
    return answers


@dataclass
class Contest:
    """One model and number of rows: tokens and seconds of both engines, round by round."""

    seconds: dict[tuple[bool, str], list[float]] = field(default_factory=dict)  # with guesses?, clock
    tokens: list[int] = field(default_factory=list)
    equal: int = 0
    samples: int = 0

    def ratio(self, clock: str) -> float:
        """The median over the rounds, of which each had the same prompts and seeds twice."""
        pairs = zip(self.seconds[True, clock], self.seconds[False, clock], strict=True)
        return statistics.median(without / with_guesses for with_guesses, without in pairs)

    def speed(self, drafts: bool) -> float:
        pairs = zip(self.tokens, self.seconds[drafts, "wall"], strict=True)
        return statistics.median(tokens / seconds for tokens, seconds in pairs)


Asking = Callable[[int], list[GenerationRequest]]  # the requests of a call


def task_requests(policy: Policy, rows: int) -> Asking:
    groups = rows // COMPLETIONS

    def asked(call: int) -> list[GenerationRequest]:
        prompts = [TASKS.prompt(call * groups + number, MEASURED_SEED) for number in range(groups)]
        return requests_of(policy, prompts, COMPLETIONS)

    return asked


def unlike_requests(policy: Policy, rows: int) -> Asking:
    def asked(call: int) -> list[GenerationRequest]:
        random = np.random.default_rng(call)
        prompts = random.integers(2, policy.tokens.vocabulary, (rows // COMPLETIONS, 16))
        return [GenerationRequest(prompt.tolist(), COMPLETIONS, 12) for prompt in prompts]

    return asked


def contest(
    policy: Policy, history: Answers, rows: int, rounds: int, asking: Asking, temperature: float = 1.0
) -> tuple[Contest, TorchEngine]:
    """The engines take turns at each call of ``rounds`` rounds, after one round that is not counted."""
    engines = {drafts: TorchEngine(policy, rows=ENGINE_ROWS, seed=0, drafts=drafts) for drafts in (False, True)}
    drafting = engines[True].drafting
    assert drafting is not None
    for prompt, answer in history:
        drafting.index.remember(prompt, answer)
        drafting.index.look_at_waiting()
    result = Contest({(drafts, clock): [0.0] * rounds for drafts in engines for clock in CLOCKS}, [0] * rounds)
    calls = len(DEFAULT_TASKS) // math.gcd(len(DEFAULT_TASKS), rows // COMPLETIONS)
    for call in range(calls * (rounds + 1)):
        counted, asked = call // calls - 1, asking(call)
        given: dict[bool, list[Sample]] = {}
        for drafts in (False, True) if call % 2 else (True, False):
            began = {clock: now() for clock, now in CLOCKS.items()}
            samples = engines[drafts].generate(asked, Sampling(temperature, call))
            seconds = {clock: now() - began[clock] for clock, now in CLOCKS.items()}
            given[drafts] = [each for group in samples for each in group]
            for clock in CLOCKS:
                if counted >= 0:
                    result.seconds[drafts, clock][counted] += seconds[clock]
        if counted >= 0:
            result.tokens[counted] += sum(len(each.token_ids) for each in given[False])
        result.samples += len(given[False])
        result.equal += sum(map(_equal, given[False], given[True]))
    return result, engines[True]


def own_answers(policy: Policy) -> Answers:
    """Returns what ``policy`` sampled in about twenty rounds before it learnt anything."""
    prompts = [TASKS.prompt(number, OWN_SEED) for number in range(OWN_PROMPTS)]
    engine = RecordingEngine(policy)
    engine.generate(requests_of(policy, prompts, COMPLETIONS), Sampling(seed=1))
    return engine.answers


def _equal(one: Sample, other: Sample) -> bool:
    return np.array_equal(one.token_ids, other.token_ids) and np.array_equal(one.logps, other.logps)


def measure_drafts(folder: Path, shapes: Sequence[str], rounds: int, training_rounds: int) -> list[Figure]:
    figures: list[Figure] = []
    fresh, learning = load("builtin:wren"), load("builtin:wren")
    peers = right_answers_of_peers(fresh)
    own = trained(learning, training_rounds)
    learning.base.save_pretrained(folder / "trained")
    for each in (REPOSITORY / "node" / "models" / "wren").glob("token*"):
        (folder / "trained" / each.name).write_bytes(each.read_bytes())
    sources = {
        "fresh": (REPOSITORY / "node" / "models" / "wren", [*peers, *own_answers(fresh)]),
        "trained": (folder / "trained", [*peers, *own]),
    }
    for shape in shapes:
        for name, (source, history) in sources.items():
            model, wider = source, SHAPES[shape]
            if wider is not None:
                model = folder / f"{name} {shape}"
                write_widened(source, wider, model)
            policy = load(str(model))
            for rows in ROWS[shape]:
                result, engine = contest(policy, history, rows, rounds, task_requests(policy, rows))
                figures += _figures(f"drafts: {shape}, {name}, {rows} rows", result, engine, "≥ 1.3")
            if name == "fresh" and wider is not None:
                rows = ROWS[shape][0]
                result, engine = contest(policy, [], rows, rounds, unlike_requests(policy, rows), UNLIKE)
                figures += _figures(f"drafts: {shape}, unlike, {rows} rows", result, engine)
    return figures


def _figures(title: str, result: Contest, engine: TorchEngine, bar: str | None = None) -> list[Figure]:
    assert engine.drafting is not None
    counts, seconds = engine.drafting.counts, engine.drafting.seconds
    held = counts.held / counts.guesses if counts.guesses else 0.0
    ratios = ", ".join(f"{clock} × {result.ratio(clock):.3f}" for clock in CLOCKS)
    equal = f"{result.equal} of {result.samples} samples equal"
    guesses = f"{held:.2f} of {counts.guesses} guesses held"
    print(f"{title}: {ratios}; {guesses}; {equal}", file=sys.stderr, flush=True)
    return [
        Figure(f"{title}: without", result.speed(False), "tokens/s", "higher"),
        Figure(f"{title}: with", result.speed(True), "tokens/s", "higher"),
        Figure(f"{title}: with / without", result.ratio("wall"), "×", "higher", bar),
        Figure(f"{title}: the same, CPU time", result.ratio("CPU"), "×", "higher"),
        Figure(f"{title}: guesses that held", held, "", "higher"),
        *(
            Figure(
                f"{title}: a pass of {size * ROW_MULTIPLE} positions, against 8",
                seconds.of(size) / seconds.of(1),
                "×",
                "lower",
            )
            for size in (2, 4, 8)
        ),
        Figure(f"{title}: equal samples", result.equal / result.samples, "", "higher", "1"),
    ]
