"""A whole node alone on this device: ``starling up`` at the defaults, beside the band of recorded runs on a CPU.

Two models: a built-in one, which learns, and one of a published shape with random weights, which shows memory and time.
"""

from __future__ import annotations

import statistics
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Final

import torch

from scripts.bench.gpu.bench import Bench
from scripts.bench.gpu.shapes import random_policy, shape_tokenizer

NEEDED: Final = ("aiohttp", "libp2p", "pydantic_settings", "reasoning_gym", "textual", "trio", "typer", "zeroconf")
BUILTIN: Final = "wren"
PUBLISHED: Final = "Qwen2.5-0.5B"
BELOW: Final = 1  # windows of ten rounds that may be below the band: one in forty is, by chance


def whole_node(bench: Bench) -> None:
    for name in NEEDED:
        import_module(name)
    with tempfile.TemporaryDirectory(prefix="st-") as folder:
        _builtin(bench, Path(folder) / BUILTIN, rounds=bench.at_scale(tiny=2, quick=20, full=30))
        if bench.scale != "tiny":
            _published(bench, Path(folder), rounds=3)


def _builtin(bench: Bench, home: Path, rounds: int) -> None:
    from node.report.expected_curves import against, expected_curve
    from node.report.facts import run_facts
    from scripts.expected import run_alone

    run_alone(home, f"builtin:{BUILTIN}", 0, rounds)
    _figures(bench, BUILTIN, home)
    windows = against(run_facts(home / "metrics.jsonl"), expected_curve(BUILTIN)).windows
    for each in windows:
        band = f"{each.expected.low:.2f} to {each.expected.high:.2f} expected"
        bench.figure(f"{BUILTIN}: reward of rounds {each.first_round} to {each.last_round}, {band}", each.reward, "")
    bench.check(f"{BUILTIN}: windows below the band", sum(each.side < 0 for each in windows), BELOW)


def _published(bench: Bench, folder: Path, rounds: int) -> None:
    from scripts.expected import run_alone

    policy = random_policy(PUBLISHED, bench.device, torch.bfloat16)
    policy.model.save_pretrained(str(folder / "model"))
    shape_tokenizer(policy.tokens.vocabulary).save_pretrained(folder / "model")
    del policy
    torch.cuda.empty_cache()
    run_alone(folder / PUBLISHED, str(folder / "model"), 0, rounds)
    _figures(bench, PUBLISHED, folder / PUBLISHED)


def _figures(bench: Bench, name: str, home: Path) -> None:
    import msgspec

    from node.api.record import events_in
    from node.events import Fault, LearnerReady, Planned, RoundDone

    decoder = msgspec.json.Decoder(Fault | LearnerReady | Planned | RoundDone)
    events = list(events_in(home / "metrics.jsonl", decoder))
    faults = [f"{each.kind}: {each.detail}" for each in events if isinstance(each, Fault)]
    bench.same(f"{name}: faults", faults, [])
    done = [each for each in events if isinstance(each, RoundDone)]
    (ready,) = (each for each in events if isinstance(each, LearnerReady))
    (planned,) = (each for each in events if isinstance(each, Planned))
    bench.same(f"{name}: runs on {ready.device} in {ready.dtype}", ready.device.partition(":")[0], bench.device.type)
    bench.figure(f"{name}: learner ready after", ready.seconds, "s")
    for phase in ("generate", "score", "learn", "publish"):
        spent = statistics.median(getattr(each.phases, phase) for each in done)
        bench.figure(f"{name}: {phase}, median of {len(done)} rounds", 1e3 * spent, "ms")
    bench.figure(f"{name}: a round", 1e3 * statistics.median(each.seconds for each in done), "ms")
    bench.figure(f"{name}: generated, over whole rounds", done[-1].tokens_per_second, "tokens/s")
    if planned.device_bytes is not None:
        bench.figure(f"{name}: memory of the device, planned", planned.device_bytes, "B")
        bench.figure(f"{name}: memory of the device, held", done[-1].device_memory_bytes or 0, "B")
    gaps = [each.engine_kl for each in done if each.engine_kl is not None]
    if gaps:
        bench.figure(f"{name}: KL of engine and learner a token, worst round", max(gaps), "nats")
