"""Writes tests/vectors/trl_losses.json: the loss and gradient of TRL's GRPOTrainer for given log-probabilities.

    python -m scripts.make_trl_vectors      needs TRL 1.16; without it, continues in .venv-trl, made the first time

TRL's own ``_compute_loss`` runs, in float64, with the model's forward pass replaced by the given numbers. The
importance sampling ratio for another sampler, which TRL computes during generation, is computed here by its formula.
Six completions of up to seven tokens; the last has advantage 0.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from scripts import REPOSITORY
from scripts.bench.contenders.environments import TRL_PYTHON, prepare_trl

VECTORS = REPOSITORY / "tests" / "vectors" / "trl_losses.json"
LENGTHS = [7, 3, 5, 1, 6, 4]
LONGEST = 7
MAX_COMPLETION_LENGTH = 9
LOW, HIGH, CISPO_HIGH, DELTA = 0.2, 0.28, 1.5, 1.35
GSPO_LOW, GSPO_HIGH = 0.05, 0.06  # wide enough that some sequences lie inside
CAP, OFF_POLICY_NATS = 2.0, 0.5


def in_trl_environment() -> int:
    """Runs this module in TRL's environment; returns its exit code."""
    prepare_trl()
    command = [str(TRL_PYTHON), "-m", "scripts.make_trl_vectors", *sys.argv[1:]]
    return subprocess.run(command, check=False, cwd=REPOSITORY).returncode


def inputs() -> dict[str, Any]:
    """Returns the inputs, (B, T) each, advantages (B,)."""
    import torch

    seeded = torch.Generator().manual_seed(7)

    def normal(scale: float) -> torch.Tensor:
        return torch.randn(len(LENGTHS), LONGEST, generator=seeded, dtype=torch.float64) * scale

    logps = -normal(1.0).abs() - 0.05
    return {
        "logps": logps,
        "old_logps": (logps + normal(0.3)).clamp(max=-1e-3),
        "sampling_logps": (logps + normal(0.8)).clamp(max=-1e-3),
        "reference_logps": (logps + normal(0.4)).clamp(max=-1e-3),
        "mask": (torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]).long(),
        "advantages": torch.tensor([1.2, -0.7, 0.4, -1.5, -0.3, 0.0], dtype=torch.float64),
    }


def cases() -> list[dict[str, Any]]:
    """Returns every loss with and without KL and two-sided clipping, some with corrections for another sampler."""
    found: list[dict[str, Any]] = []
    for loss in ("grpo", "bnpo", "dapo", "dr_grpo", "cispo", "gspo"):
        for beta in (0.0, 0.05):
            found.append({"loss": loss, "beta": beta, "delta": None, "sampler": None})
        if loss not in ("cispo", "gspo"):
            found.append({"loss": loss, "beta": 0.05, "delta": DELTA, "sampler": None})
    for loss in ("grpo", "dapo", "dr_grpo", "cispo"):
        for sampler in ("token_truncate", "sequence_truncate"):
            found.append({"loss": loss, "beta": 0.05, "delta": None, "sampler": sampler})
    found.append({"loss": "gspo", "beta": 0.05, "delta": None, "sampler": "sequence_truncate"})
    for loss in ("grpo", "dapo", "gspo"):
        found.append({"loss": loss, "beta": 0.0, "delta": None, "sampler": "off_policy_mask"})
    return found


def sampling_ratio(given: dict[str, Any], mode: str) -> Any:
    """Returns the ratio as TRL's ``_generate_and_score_completions`` computes it."""
    import torch

    difference = (given["old_logps"] - given["sampling_logps"]) * given["mask"]
    if mode.startswith("sequence"):
        difference = difference.sum(dim=-1, keepdim=True)
    return torch.clamp(torch.exp(difference), max=CAP)


def trainer_for(case: dict[str, Any], logps: Any) -> Any:
    """Returns a GRPOTrainer with what ``_compute_loss`` reads, and no model."""
    import torch
    from trl import GRPOTrainer

    class Fed(GRPOTrainer):  # type: ignore[misc]  # TRL is untyped
        def __init__(self) -> None:
            pass

        def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> Any:
            return logps, torch.zeros_like(logps), None

    trainer: Any = Fed()
    gspo = case["loss"] == "gspo"
    masked = case["sampler"] == "off_policy_mask"
    trainer.loss_type = "grpo" if gspo else case["loss"]
    trainer.importance_sampling_level = "sequence" if gspo else "token"
    trainer.epsilon_low = GSPO_LOW if gspo else LOW
    trainer.epsilon_high = {"gspo": GSPO_HIGH, "cispo": CISPO_HIGH}.get(case["loss"], HIGH)
    trainer.beta = case["beta"]
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = bool(case["sampler"]) and not masked
    trainer.off_policy_mask_threshold = OFF_POLICY_NATS if masked else None
    trainer.max_completion_length = MAX_COMPLETION_LENGTH
    trainer.top_entropy_quantile, trainer.aux_loss_enabled = 1.0, False
    trainer._entropy_bonus_enabled = trainer.use_adaptive_entropy = False
    trainer.current_gradient_accumulation_steps = 1
    trainer.args = SimpleNamespace(delta=case["delta"], use_bias_correction_kl=False, steps_per_generation=1)
    trainer.model = SimpleNamespace(training=True)
    trainer._metrics = {"train": defaultdict(list)}
    trainer.accelerator = SimpleNamespace(
        num_processes=1, gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x
    )
    return trainer


def outcome(case: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Returns TRL's loss and its gradient with respect to every log-probability."""
    import torch

    logps = given["logps"].clone().requires_grad_()
    batch = {
        "prompt_ids": torch.zeros(len(LENGTHS), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(LENGTHS), 1, dtype=torch.long),
        "completion_ids": torch.zeros(len(LENGTHS), LONGEST, dtype=torch.long),
        "completion_mask": given["mask"],
        "advantages": given["advantages"],
        "old_per_token_logps": given["old_logps"],
        "ref_per_token_logps": given["reference_logps"],
        "num_items_in_batch": given["mask"].sum(),
    }
    if case["sampler"] == "off_policy_mask":
        batch["sampling_per_token_logps"] = given["sampling_logps"]
    elif case["sampler"]:
        batch["importance_sampling_ratio"] = sampling_ratio(given, case["sampler"])
    loss = trainer_for(case, logps)._compute_loss(None, batch)
    (gradient,) = torch.autograd.grad(loss, logps)
    return {**case, "value": loss.item(), "gradient": (gradient * given["mask"]).tolist()}


def main() -> int:
    if importlib.util.find_spec("trl") is None:
        return in_trl_environment()
    import trl

    given = inputs()
    constants = {
        "low": LOW,
        "high": HIGH,
        "cispo_high": CISPO_HIGH,
        "gspo_low": GSPO_LOW,
        "gspo_high": GSPO_HIGH,
        "cap": CAP,
        "max_completion_length": MAX_COMPLETION_LENGTH,
    }
    vectors = {
        "made_by": f"scripts/make_trl_vectors.py with TRL {trl.__version__}",
        "constants": constants,
        "inputs": {name: tensor.tolist() for name, tensor in given.items()},
        "cases": [outcome(case, given) for case in cases()],
    }
    lines = ",\n  ".join(json.dumps(case) for case in vectors.pop("cases"))
    VECTORS.write_text(f'{json.dumps(vectors)[:-1]},\n "cases": [\n  {lines}\n ]}}\n')
    print(f"{len(cases())} losses of TRL {trl.__version__} to {VECTORS.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
