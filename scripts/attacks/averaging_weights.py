"""One of eight replicas is hostile in averaging: what becomes of the other seven.

    python -m scripts.attacks.averaging_weights [--only KIND] [--rounds 40] [--seeds 3] [--first-seed 0] [--json]

Replicas of one small model learn by reinforcement and average every five rounds; all learning, pairing and averaging is
the nodes' own code over the simulated network (``scripts.experiments.harness.nodes_run``). The hostile one learns like
the others, and offers

    negated      −2.9 θ
    ascent       a partner's last weights, moved up the loss on right answers, as far as replicas lie apart
    noise        the same, moved in a random direction
    stale        the weights of the start
    silent       its own weights, and never says that it holds a partner's

Measured: success on held-out prompts, sampled, at the end, and own reward over all rounds, means over the seven honest
replicas; steps that were taken back; all as shares of those with eight honest replicas (of the same seven).
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import anyio
import torch
from msgspec.structs import replace
from torch import Tensor

from node.averaging import noloco
from node.averaging.noloco import Weights
from node.averaging.rules import AveragingStep, DenseRule, State, from_bf16_bits
from node.policy.policy import Policy
from protocol.weights.dense_weights import open_dense
from protocol.weights.tensor_layout import TensorLayout
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.build_models import teaching_batch
from scripts.experiments import models
from scripts.experiments.harness.experiment import Condition, Measuring, run_plan
from scripts.experiments.harness.nodes_run import ExperimentNode, execute
from scripts.experiments.harness.simulated_swarm import SimulatedSwarm
from scripts.experiments.harness.skills import SKILLS, alphabet_of
from scripts.experiments.reports.success import success
from swarm.averaging.weights_difference import Difference

KINDS: Final = ("negated", "ascent", "noise", "stale", "silent")
NODES: Final = {f"node-{letter}": models.STUDENT.key for letter in "abcdefgh"}
HOSTILE: Final = "node-h"
EVERY: Final = 5
GROUPS: Final = 8
SETTINGS: Final[dict[str, Any]] = {
    "learner": {"own_groups": GROUPS, "completions": 8, "foreign_groups": 0, "share_groups": 0, "learning_rate": 3e-4},
    "averaging": {"every_rounds": EVERY, "encoding": "dense-bf16"},
}
MEASURING: Final = Measuring(times=1, prompts=100, samples=4)
FIRST_RADIUS: Final = 0.01  # times the length of the weights, until a partner's were seen


class HostileOffering:
    """Offers ``shown`` instead of ``weights``, and takes no step with what it gets."""

    def __init__(self, rule: HostileRule, weights: Weights, shown: Weights, steps: int, random: Random) -> None:
        self._rule, self._weights, self._steps = rule, weights, steps
        self._honest = DenseRule().offer(shown, None, afresh=True, random=random)
        self.content, self.size_bytes = self._honest.content, self._honest.size_bytes

    def learnt(self, since: Weights) -> float:
        return 1e6

    def averaged(self, theirs: memoryview, weight: float) -> AveragingStep:
        layout = self._honest.layout
        self._rule.saw(from_bf16_bits(open_dense(theirs, layout), layout), self._weights)
        return AveragingStep(noloco.begin(self._weights, steps=self._steps + 1), None)


class HostileRule:
    encoding: Final = DenseRule.encoding

    def __init__(self, kind: str, policy: Policy, seed: int) -> None:
        self._kind, self._policy, self._random = kind, policy, Random(seed)
        self._start = {name: tensor.detach().float().clone() for name, tensor in policy.trainable().items()}
        self._theirs: Weights | None = None
        self._apart = FIRST_RADIUS * _length(self._start)

    def saw(self, theirs: Weights, ours: Weights) -> None:
        """Remembers a partner's weights and how far they lie from ours."""
        self._theirs = {name: tensor.float() for name, tensor in theirs.items()}
        self._apart = _length({name: tensor - ours[name] for name, tensor in self._theirs.items()})

    def offer(self, weights: Weights, before: State | None, *, afresh: bool, random: Random) -> HostileOffering:
        shown = self._shown(weights)
        return HostileOffering(self, weights, shown, before.steps if before is not None else 0, random)

    def _shown(self, weights: Weights) -> Weights:
        centre = self._theirs or weights
        match self._kind:
            case "negated":
                return {name: -2.9 * tensor for name, tensor in weights.items()}
            case "stale":
                return self._start
            case "noise":
                generator = torch.Generator().manual_seed(self._random.getrandbits(32))
                return self._moved(
                    centre, {n: torch.randn(t.shape, generator=generator) for n, t in centre.items()}, self._apart
                )
            case "ascent":
                return self._up_the_loss(centre)
        return weights

    def _up_the_loss(self, centre: Weights, steps: int = 10) -> Weights:
        """Climbs in small steps, within the distance."""
        found = centre
        for _ in range(steps):
            found = self._moved(found, self._gradient(found), self._apart / steps)
        return found

    @staticmethod
    def _moved(centre: Weights, direction: Weights, length: float) -> dict[str, Tensor]:
        scale = length / max(_length(direction), 1e-12)
        return {name: tensor + scale * direction[name] for name, tensor in centre.items()}

    def _gradient(self, weights: Weights) -> dict[str, Tensor]:
        """Returns the gradient of the loss on right answers of every task."""
        prompts = [
            task.prompt(task.ref(self._random.randrange(1 << 20))) for task in SKILLS.values() for _ in range(16)
        ]
        tokenizer = models.character_tokenizer(alphabet_of(SKILLS))
        ids, labels = teaching_batch(tokenizer, [(prompt.text, str(prompt.answer)) for prompt in prompts])
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
        logits = torch.func.functional_call(self._policy.model, leaves, (ids,)).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return {n: torch.zeros_like(t) if g is None else g for (n, t), g in zip(leaves.items(), gradients, strict=True)}


def _length(weights: Weights) -> float:
    return float(sum(float(tensor.square().sum()) for tensor in weights.values()) ** 0.5)


async def _believe(encoding: str, theirs: Path, ours: Path, layout: TensorLayout) -> Difference:
    return Difference(1.0, 1.0)


async def _say_nothing(*arguments: object) -> None:
    return


async def _never_answer(*arguments: object) -> None:
    await anyio.sleep_forever()


def corrupt(node: ExperimentNode, swarm: SimulatedSwarm | None, *, kind: str, seed: int) -> None:
    """Makes the hostile replica so: it judges nothing that it gets, and offers what ``kind`` says."""
    if node.name != HOSTILE or swarm is None:
        return
    averaging: Any = swarm._services[HOSTILE]._averaging
    averaging._measure = _believe
    if kind == "silent":
        averaging._pairing._say = _say_nothing
        averaging._pairing._on_question = _never_answer
    else:
        replica: Any = node.replica
        replica._rule = HostileRule(kind, node.policy, seed)
        replica.take_back_if_harmful = lambda *arguments: False


def run(kind: str | None, seed: int, rounds: int) -> dict[str, float]:
    """Runs eight replicas, one of them of ``kind``; returns figures of the other seven."""
    condition = Condition(kind or "clean", "", SETTINGS)
    plan = run_plan("attack", condition, seed, rounds, nodes=NODES, tasks=tuple(SKILLS), measuring=MEASURING)
    made = partial(corrupt, kind=kind, seed=seed) if kind is not None else lambda *parts: None
    result = execute(replace(plan, measure_at=(rounds,)), models.MODELS_FOLDER, made=made)
    honest = [node for node in result.nodes if node.name != HOSTILE]
    successes = [success(node, rounds) for node in honest]
    return {
        "success": statistics.fmean(successes),
        "reward": statistics.fmean(statistics.fmean(node.reward) for node in honest),
        "outer steps": statistics.fmean(node.outer_steps for node in honest),
        "worst": min(successes),
        "taken back": float(sum(node.taken_back for node in honest)),
        "seconds": result.cpu_seconds,
    }


def logged(kind: str | None, seed: int, rounds: int) -> dict[str, float]:
    """Returns ``run``'s figures, and prints them: all runs together take long."""
    found = run(kind, seed, rounds)
    figures = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
    print(f"{kind or 'clean'} seed {seed}: {figures}", file=sys.stderr, flush=True)
    return found


def figures_of(kind: str, runs: Sequence[dict[str, float]], clean: Sequence[dict[str, float]]) -> list[Figure]:
    def mean(of: Sequence[dict[str, float]], name: str) -> float:
        return statistics.fmean(each[name] for each in of)

    figures = [
        Figure(f"{kind}: success at the end", mean(runs, "success"), "", "higher"),
        Figure(f"{kind}: success of the worst replica", mean(runs, "worst"), "", "higher"),
        Figure(f"{kind}: own reward over all rounds", mean(runs, "reward"), "", "higher"),
        Figure(f"{kind}: outer steps of a replica", mean(runs, "outer steps"), "", "higher"),
        Figure(f"{kind}: steps taken back, all replicas", mean(runs, "taken back"), "", "lower"),
        Figure(f"{kind}: processor seconds a run", mean(runs, "seconds"), "s", "lower"),
    ]
    if kind != "clean":
        share = mean(runs, "success") / mean(clean, "success")
        figures.append(Figure(f"{kind}: success as a share of clean", share, "", "higher", "≥ 0.98"))
    return figures


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--only", action="append", choices=KINDS, help="these attacks alone, and the clean run")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    models.ensure(models.STUDENT)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    clean = [logged(None, seed, options.rounds) for seed in seeds]
    figures = figures_of("clean", clean, clean)
    for kind in options.only or KINDS:
        figures += figures_of(kind, [logged(kind, seed, options.rounds) for seed in seeds], clean)
    report("averaging_weights", figures, as_json=options.json)


if __name__ == "__main__":
    main()
