"""A learner that runs out of memory a hundred times, anywhere: it loses no round, and learns what it would have learnt.

Each pair of runs is the same node twice, in this process: the real ``Learner`` on a built-in model, with the real
engine, optimizer, checkpoints on disk and averaging with a partner that always offers the same. The second is
disturbed: an operation of torch that allocates raises ``torch.OutOfMemoryError`` instead of running. Which one is drawn
by the part of the round (generating, new weights for the engine, forward and backward passes, the optimizer's step,
averaging, checkpoints), then by the kind of operation, then by its place.

  kept     rows and passes are at their floors: phases are repeated as they are; weights must be equal to the bit
  halved   rows and passes are halved down to floors: weights must be equal up to rounding after each of many short runs

    python -m scripts.bench.out_of_memory [--errors 100] [--seed 0] [--json]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from node.averaging.rules import DenseRule, bf16_bits
from node.configuration import AveragingSection, CheckpointSection, Config, DtypeName, LearnerSection, PolicySection
from node.events import Averaged, CheckpointSaved, Event, OutOfMemory, RoundDone
from node.fit.fitted import Sizes
from node.learner.assembly.wiring import Extras, learner_of
from node.learner.foreign.intake import RolloutIntake
from node.learner.memory.phases import SizePlan
from node.learner.state.learner_state import LearnerState
from node.learner.state.persistence import Persistence
from node.policy.policy import Policy
from node.policy.weight_layout import layout_of
from protocol.blob_id import blob_id
from protocol.messages import Heartbeat
from protocol.streams.averaging_messages import Offer
from protocol.weights.dense_weights import encode_dense
from scripts.bench.common.compute_process import ensure_compute_environment
from scripts.bench.common.failing_node import Averager, Checkpoints, Engine, Injector, Optimizer
from scripts.bench.common.reporting import Figure, add_json_flag, report
from scripts.experiments.harness.nodes_run import OwnProcessScorer, relative_distance, tasks_named
from swarm import api
from swarm.averaging.weights_offer import WeightsOffer

WAIT_SECONDS: Final = 60.0  # a hang guard
TASKS: Final = ("basic_arithmetic", "number_sorting", "spell_backward")
LEARNER: Final = LearnerSection(own_groups=8, completions=4, foreign_groups=0, share_groups=0, learning_rate=1e-3)
COMPLETIONS: Final = LEARNER.own_groups * LEARNER.completions
KEPT: Final = Sizes(rows=COMPLETIONS, batch_tokens=256)
ROOMY: Final = Sizes(rows=64 * COMPLETIONS, batch_tokens=2048)
LEAST: Final = Sizes(rows=COMPLETIONS, batch_tokens=32)  # with fewer rows than completions, other samples are drawn
SHORT_ROUNDS: Final = 8
ROUNDING: Final = 1e-4  # relative distance of weights


class SteadyPartner:
    """The part of the swarm process that averaging uses: a partner that always offers the same weights."""

    def __init__(self, folder: Path, family: bytes, weights: Mapping[str, Tensor]) -> None:
        layout = layout_of(weights)
        generator = torch.Generator().manual_seed(5)
        theirs = {n: w + 0.01 * torch.randn(w.shape, generator=generator) for n, w in weights.items()}
        content = encode_dense(layout, bf16_bits(theirs, layout))
        self._path = folder / "partner"
        self._path.write_bytes(content)
        self._offer = Offer(family, layout.digest, DenseRule.encoding, 0, blob_id(content), len(content))
        beat = Heartbeat("partner", "", "", family, bytes(16), 1, 1, "", 1.0, 0, 0, ())
        self._peer = api.PeerStatus("partner", True, (), None, beat, 1.0, 0, 0, 0, 1.0, None)

    def peers(self) -> list[api.PeerStatus]:
        return [self._peer]

    def average(self, ours: WeightsOffer, *, deadline_seconds: float) -> api.AverageReply:
        return api.AverageReply("partner", self._offer, str(self._path), 1.0, "committed", 0.5)

    def judge(self, peer: str, blob: bytes, judgement: api.Judgement, detail: str = "") -> None:
        return

    def close(self) -> None:
        return


@dataclass
class Run:
    """One node's rounds."""

    events: list[Event] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)


def run(dtype: DtypeName, rounds: int, sizes: Sizes, floors: Sizes, injector: Injector) -> Run:
    """Runs so many rounds of a node. Raises what a round raises."""
    done = Run()
    with tempfile.TemporaryDirectory(prefix="out-of-memory-") as root:
        folder = Path(root)
        config = Config(
            name="node",
            learner=LEARNER,
            averaging=AveragingSection(every_rounds=3),
            checkpoint=CheckpointSection(every_rounds=2),
        )
        policy = Policy.load(PolicySection(model="builtin:wren", device="cpu", dtype=dtype))
        tasks = tasks_named(TASKS)
        optimizer = Optimizer(policy.trainable(), config.learner)
        partner = SteadyPartner(folder, policy.family, optimizer.masters())
        averager = Averager(
            partner, optimizer, policy.family, config.averaging, DenseRule(),
            report=done.events.append, clock=time.time, random=random.Random(1),
        )  # fmt: skip
        checkpoints = Checkpoints(folder / "checkpoints", keep=2)
        engine = Engine(policy, rows=sizes.rows, seed=0)
        engine.injector = optimizer.injector = averager.injector = checkpoints.injector = injector
        intake = RolloutIntake(None, tasks, config.learner, time.time)
        persistence = Persistence(checkpoints, config, policy, optimizer, done.events.append, time.time)
        extras = Extras(persistence=persistence, averager=averager, size_plan=SizePlan(sizes, sizes, floors))
        learner = learner_of(
            config, policy, tasks, engine, OwnProcessScorer(tasks), intake, optimizer, LearnerState(),
            report=done.events.append, clock=time.time, extras=extras,
        )  # fmt: skip
        try:
            for _ in range(rounds):
                injector.next_round()
                with injector:
                    learner.round()
                averager.settle(WAIT_SECONDS)
                while checkpoints.busy:
                    time.sleep(0.001)
        finally:
            learner.close()
            intake.close()
            averager.close()
            checkpoints.close()
        done.weights = {name: w.detach().clone() for name, w in optimizer.masters().items()}
        done.parameters = {name: w.detach().clone() for name, w in policy.trainable().items()}
    return done


@dataclass
class Trial:
    """A disturbed node, and what became of it compared with the undisturbed one."""

    plain: Run
    disturbed: Run
    injector: Injector

    def lost(self, kind: type[Event]) -> int:
        return self.plain.count(kind) - self.disturbed.count(kind)

    @property
    def unequal(self) -> int:
        """Tensors that are not equal to the bit."""
        pairs = [(self.plain.weights, self.disturbed.weights), (self.plain.parameters, self.disturbed.parameters)]
        return sum(not torch.equal(one[name], other[name]) for one, other in pairs for name in one)

    @property
    def distance(self) -> float:
        return relative_distance(self.plain.weights, self.disturbed.weights)


def kept_trials(dtype: DtypeName, errors: int, seed: int) -> list[Trial]:
    """One long run."""
    rounds = 3 * errors // 2 + 10
    injector = Injector(seed, errors)
    plain = run(dtype, rounds, KEPT, KEPT, Injector(seed, 0))
    return [Trial(plain, run(dtype, rounds, KEPT, KEPT, injector), injector)]


def halved_trials(dtype: DtypeName, errors: int, seed: int) -> list[Trial]:
    """Many short runs: over many rounds, rounding alone changes a sample and then everything after it."""
    plain = run(dtype, SHORT_ROUNDS, ROOMY, ROOMY, Injector(seed, 0))
    trials: list[Trial] = []
    while (left := errors - sum(trial.injector.raised.total() for trial in trials)) > 0:
        injector = Injector(seed + len(trials), min(left, SHORT_ROUNDS))
        trials.append(Trial(plain, run(dtype, SHORT_ROUNDS, ROOMY, LEAST, injector), injector))
    return trials


def figures_of(name: str, trials: Sequence[Trial], errors: int, *, exact: bool) -> list[Figure]:
    raised = sum((trial.injector.raised for trial in trials), Counter[str]())
    kinds = set().union(*(trial.injector.kinds for trial in trials))
    ran_out = [event for trial in trials for event in trial.disturbed.events if isinstance(event, OutOfMemory)]
    halvings = Counter(event.key for event in ran_out if event.then == "halve")
    done = [event for trial in trials for event in trial.disturbed.events if isinstance(event, RoundDone)]
    figures = [
        Figure(f"{name}: errors injected", raised.total(), "", "higher", f"≥ {errors}"),
        Figure(f"{name}: kinds of operation that failed", len(kinds), "", "higher"),
        *(Figure(f"{name}: errors in {part}", count, "", "higher") for part, count in sorted(raised.items())),
        *(Figure(f"{name}: halvings of {key}", count, "", "higher") for key, count in sorted(halvings.items())),
        Figure(f"{name}: rounds", len(done), "", "higher"),
        Figure(f"{name}: optimizer steps", sum(event.loss is not None for event in done), "", "higher"),
        Figure(f"{name}: rounds lost", sum(trial.lost(RoundDone) for trial in trials), "", "lower", "0"),
        Figure(f"{name}: checkpoints lost", sum(trial.lost(CheckpointSaved) for trial in trials), "", "lower", "0"),
        Figure(f"{name}: outer steps lost", sum(trial.lost(Averaged) for trial in trials), "", "lower", "0"),
    ]
    if exact:
        unequal = sum(trial.unequal for trial in trials)
        return [*figures, Figure(f"{name}: tensors that differ", unequal, "", "lower", "0")]
    farthest = max(trial.distance for trial in trials)
    return [*figures, Figure(f"{name}: farthest weights", farthest, "× norm", "lower", f"≤ {ROUNDING:g}")]


def main() -> None:
    ensure_compute_environment()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--errors", type=int, default=100, help="in each of the three cases")
    parser.add_argument("--seed", type=int, default=0)
    add_json_flag(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    errors, seed = arguments.errors, arguments.seed
    figures = [
        *figures_of("kept, float32", kept_trials("float32", errors, seed), errors, exact=True),
        *figures_of("kept, bfloat16", kept_trials("bfloat16", errors, seed), errors, exact=True),
        *figures_of("halved, float32", halved_trials("float32", errors, seed), errors, exact=False),
    ]
    report("out_of_memory", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
