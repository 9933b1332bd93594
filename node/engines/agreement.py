"""How far the engine's log-probabilities may be from the learner's, of the same tokens under the same weights.

Own samples that are learnt from are scored by the learner anyway, before its step. With Δ = log π_θ − log μ of a token,
π_θ the learner's and μ the engine's,

    mean |Δ|                     what one sees of a token
    KL(μ‖π_θ) ≈ mean e^Δ − Δ − 1     nats a token, no term negative, from samples of μ

Both would be 0 if engine and learner computed alike to the last bit. Only tokens that the present weights sampled
count, and of a round only completions with a gradient. The bounds are many times what was measured (docs/engines.md); a
round ``FAULTY`` times above its bound is a fault of the engine, not rounding.
"""

from __future__ import annotations

from typing import Final

EXACT: Final = 4e-4  # nats of KL a token: the learner in float32, and vLLM
ROUNDED: Final = 1e-3  # the learner in bfloat16 or on a base in 4 bits, and donors, who may compute in bfloat16
FAULTY: Final = 10.0


def agreement_bound(engine: str, *, dtype: str, four_bit: bool) -> float:
    """Returns the most nats of KL a token that are rounding, for an engine as ``Engine.label`` names it and the
    learner's precision."""
    exact = engine == "vllm" or (engine in ("torch", "process") and dtype == "float32" and not four_bit)
    return EXACT if exact else ROUNDED


def agreement_line(kl: float, gap: float, bound: float) -> str:
    """Returns in words how far the engine is from the learner; all in nats a token."""
    return (
        f"Its samples' log-probabilities are {gap:.1e} from the learner's, {kl:.1e} nats of KL a token "
        f"(up to {bound:.0e} is rounding)."
    )


def disagreement(engine: str, kl: float | None, bound: float) -> str | None:
    """Returns in words that the engine samples from other probabilities than the learner learns by, and what to do;
    None while its distance is within ``FAULTY`` times its bound, or is not known."""
    if kl is None or kl <= FAULTY * bound:  # NaN is a fault
        return None
    return (
        f"the engine ({engine}) gives its samples other probabilities than the learner does: {kl:.1e} nats of KL a "
        f"token, where up to {bound:.0e} is rounding. Learning corrects for part of it. Set another engine.backend, "
        'or with "torch" policy.dtype = "float32"; `starling doctor --report FILE` writes what a report of it needs'
    )
