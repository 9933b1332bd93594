"""A newcomer that starts from the weights of peers, among two honest donors and ten liars.

    python -m scripts.attacks.newcomer [--trials 20] [--by-claims] [--json]

Every member is a real swarm process on a simulated network, the newcomer a real policy with the engine and the tasks of
the default swarm. The honest donors have builtin:robin with a little noise and claim what was measured of it.
Nine liars claim a success of 1; their weights are random, negated, 0, blind to the prompt, somewhat spoilt, and the
newcomer's own. The tenth announces a donor's state and claims a success of 0 for it. ``--by-claims`` believes every
claim, as the code did before it measured.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Final

import torch
from torch import Tensor

from node.configuration import DEFAULT_STORE_BYTES, Config, PolicySection
from node.events import Event, StateSyncing
from node.kernels.weight_diff_kernels import patterns_of, weights_hash_fast
from node.learner.round.report import heartbeat
from node.learner.state.learner_state import LearnerState
from node.policy.policy import Policy
from node.policy.weight_layout import layout_of
from node.state_sync.adoption import StateAdoption, Timing
from node.state_sync.measured_success import SuccessMeasurement
from node.state_sync.rebuild import bf16_copy, copy_into
from node.state_sync.state_choice import StateRequirements
from node.state_sync.state_verdict import MeasuredSuccess
from node.tasks.default_swarm import DEFAULT_TASKS
from protocol.messages import Heartbeat, StateAdvert, StateBlob, TaskSuccess
from protocol.weights.dense_weights import dense_bytes, encode_dense
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.experiments.harness.nodes_run import OwnProcessScorer
from scripts.experiments.harness.simulated_swarm import SimulatedSwarm
from swarm.announcements.state_sharing import MIN_SECONDS_BETWEEN_STATES

MODEL: Final = "builtin:robin"
TASKS: Final = {task.name: task for task in DEFAULT_TASKS}
DONORS: Final = ("donor-0", "donor-1")
LIARS: Final = tuple(f"liar-{number}" for number in range(10))
OWN_NOISE: Final = 1.0  # of the newcomer's weights, relative to each tensor's spread: it answers next to nothing
DONOR_NOISE: Final = 0.01
PATIENCE_SECONDS: Final = 120.0
CLAIMED_SAMPLES: Final = 1000

Weights = Mapping[str, Tensor]


def noisy(weights: Weights, share: float, seed: int) -> dict[str, Tensor]:
    """Returns ``weights`` with normal noise, ``share`` times each tensor's own spread."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor + share * tensor.std().nan_to_num(0.0) * torch.randn(tensor.shape, generator=generator)
        for name, tensor in weights.items()
    }


def one_token(weights: Weights, seed: int) -> dict[str, Tensor]:
    """Returns weights whose logits hardly depend on the prompt."""
    return {name: tensor * (0.01 if tensor.ndim == 2 else 1.0) for name, tensor in noisy(weights, 0.01, seed).items()}


KINDS: Final[tuple[Callable[[Weights, Weights, int], Weights], ...]] = (  # (trained, the newcomer's own, seed)
    lambda trained, own, seed: noisy(trained, 3.0, seed),
    lambda trained, own, seed: noisy({name: -2.9 * tensor for name, tensor in trained.items()}, 0.01, seed),
    lambda trained, own, seed: {name: torch.zeros_like(tensor) for name, tensor in trained.items()},
    lambda trained, own, seed: one_token(trained, seed),
    lambda trained, own, seed: noisy(trained, 0.3, seed),
    lambda trained, own, seed: noisy(own, 0.01, seed),
)


class Trial:
    """One newcomer and its swarm."""

    def __init__(self, seed: int, folder: Path, *, by_claims: bool) -> None:
        self._seed, self._by_claims = seed, by_claims
        self._policy = Policy.load(PolicySection(model=MODEL, device="cpu", dtype="float32"))
        self._trained = {name: tensor.detach().clone() for name, tensor in self._policy.trainable().items()}
        self._layout = layout_of(self._trained)
        self._measure = SuccessMeasurement(
            self._policy, TASKS, OwnProcessScorer(TASKS), rows=64, draws=Random(f"newcomer {seed}")
        )
        self._own = noisy(self._trained, OWN_NOISE, seed)
        self._swarm = SimulatedSwarm(("newcomer", *DONORS, *LIARS), folder, seed)
        self.failed = 0  # states that were fetched and not kept
        self.cpu_seconds = 0.0  # of looking, fetching and measuring

    def run(self) -> bool:
        """Returns whether the newcomer ended with an honest donor's weights."""
        with self._swarm:
            honest = [self._donate(name, number) for number, name in enumerate(DONORS)]
            *inventors, detractor = LIARS
            for number, name in enumerate(inventors):
                weights = KINDS[number % len(KINDS)](self._trained, self._own, 100 * self._seed + number)
                self._announce(name, weights, 1.0)
            self._announce(detractor, honest[0], 0.0)
            self._swarm.pass_time(2 * MIN_SECONDS_BETWEEN_STATES)
            self._hold(self._own)
            began = time.process_time()
            self._adopt()
            self.cpu_seconds = time.process_time() - began
        here = self._hash_of(self._policy.trainable())
        return here in [self._hash_of(weights) for weights in honest]

    def _donate(self, name: str, number: int) -> Weights:
        weights = noisy(self._trained, DONOR_NOISE, 100 * self._seed + number)
        self._hold(weights)
        self._announce(name, weights, self._measure().success)
        return weights

    def _announce(self, name: str, weights: Weights, success: float) -> None:
        member = self._swarm.member(name)
        blob = encode_dense(self._layout, patterns_of(bf16_copy(self._layout, weights)))
        anchor = StateBlob(member.put(blob), len(blob), self._hash_of(weights))
        claims = tuple(TaskSuccess(task, success, CLAIMED_SAMPLES) for task in TASKS)
        member.beat(self._heartbeat("learning"))
        member.share_state(StateAdvert(self._policy.family, self._layout.digest, 2**62, 2**62, claims, anchor, ()))

    def _adopt(self) -> None:
        member = self._swarm.member("newcomer")
        ours = StateRequirements(self._layout.digest, tuple(TASKS), dense_bytes(self._layout), DEFAULT_STORE_BYTES)
        adoption = StateAdoption(
            member,
            member,
            self._layout,
            ours,
            heartbeat=self._heartbeat,
            report=self._count,
            should_stop=lambda: None,
            measure=(lambda: MeasuredSuccess(1.0, CLAIMED_SAMPLES)) if self._by_claims else self._measure,
            timing=Timing(self._swarm.now_seconds, self._swarm.now_seconds, self._swarm.pass_time),
        )
        adoption.adopt_best(self._policy.trainable(), patience_seconds=PATIENCE_SECONDS)

    def _count(self, event: Event) -> None:
        self.failed += isinstance(event, StateSyncing) and event.stage == "failed"

    def _hold(self, weights: Weights) -> None:
        copy_into(self._policy.trainable(), self._layout, [weights[name] for name in self._layout.names])

    def _hash_of(self, weights: Weights) -> bytes:
        return weights_hash_fast(self._layout, bf16_copy(self._layout, weights))

    def _heartbeat(self, phase: str) -> Heartbeat:
        return heartbeat(Config(), self._policy, LearnerState(), phase, 0.0)


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--by-claims", action="store_true")
    arguments = parser.parse_args()
    honest, failed, seconds = 0, 0, 0.0
    for seed in range(arguments.trials):
        with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
            trial = Trial(seed, Path(folder) / "swarm", by_claims=arguments.by_claims)
            honest += trial.run()
        failed += trial.failed
        seconds += trial.cpu_seconds
    trials = arguments.trials
    report(
        "newcomer",
        [
            Figure(f"newcomers that start from an honest donor, of {trials}", honest, "", better="higher", bar="all"),
            Figure("states fetched and not kept, by one newcomer", failed / trials, "", better="lower"),
            Figure("processor time of one newcomer", seconds / trials, "s", better="lower"),
        ],
        as_json=arguments.json,
    )


if __name__ == "__main__":
    main()
