"""Compiles the Triton kernels for cards that are not there, through the functions that launch them on a GPU.

    python -m tests.node.gpu.compiled_kernels nvidia [--keep]

prints one JSON line for each kernel, configuration and target. Nothing is run: a launch ends after compilation, and
what a kernel would have written is zeros. ``compiled/`` has what compilers reported of the kernels as they were, which
takes minutes: only what has another key (that of Triton's own cache, and this module's text) is compiled again, and
``--keep`` replaces the reports. Run it with ``amd`` too, and commit them, once kernels have changed.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import tempfile
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import triton
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.backends.compiler import GPUTarget
from triton.compiler import get_cache_key, make_backend
from triton.runtime import driver
from triton.runtime.jit import JITFunction

TARGETS: Final = {
    "nvidia": ("sm_75", "sm_80", "sm_90", "sm_120"),  # Turing, Ampere and Ada, Hopper, Blackwell
    "amd": ("gfx942", "gfx1100", "gfx1201"),  # CDNA, RDNA 3, RDNA 4
}
REPORTS: Final = Path(__file__).parent / "compiled"
ALL_CONFIGURATIONS: Final = "sm_90"  # the target that each kernel is compiled for in every configuration


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler reports of one kernel in one configuration."""

    target: str
    kernel: str
    head_size: int | None  # of the decode step's kernels
    shared_bytes: int
    threads: int  # of a program
    registers: int  # of a thread
    spilled: int  # of a thread: registers on AMD's cards, bytes on NVIDIA's
    fused: int  # products that are contracted with sums
    approximate: bool  # whether denormal numbers may be flushed, or a result may be off by more than its rounding
    divides_exactly: bool
    truncates: bool  # whether something is rounded to bfloat16 towards 0


class AbsentCard:
    """Triton's driver for a card of this kind. ``number``: Triton keeps what it has compiled by it."""

    def __init__(self, number: int, target: GPUTarget) -> None:
        self._number, self._target = number, target

    def get_current_device(self) -> int:
        return self._number

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target


def compile_for(number: int, name: str) -> None:
    if name.startswith("gfx"):
        target = GPUTarget("hip", name, 64 if name.startswith("gfx9") else 32)
    else:
        target = GPUTarget("cuda", int(name.removeprefix("sm_")), 32)
    driver.set_active(AbsentCard(number, target))
    every = name == ALL_CONFIGURATIONS
    # Cards before Ampere emulate bfloat16, so that "auto" chooses float32 there.
    dtype = torch.float32 if name == "sm_75" else torch.bfloat16
    with torch.inference_mode():
        launch_exact()
        launch_draws(every)
        launch_head(every)
        launch_decoding(dtype)
        launch_rotation(dtype)
        launch_gate(dtype)
        launch_adapter(products=name != "sm_75")
        if name != "sm_75":  # for which Triton has no products of tensor cores: passes have torch's attention there
            launch_by_lengths(dtype, every)


class Reports:
    """Of kernels by their keys: those of this run, and those in ``file``."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._kept: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
        self.of_this_run: dict[str, dict[str, Any]] = {}

    def known(self, key: str) -> dict[str, Any] | None:
        return self.of_this_run.get(key) or self._kept.get(key)

    def add(self, key: str, report: dict[str, Any]) -> None:
        if key not in self.of_this_run:  # two launches may take one kernel
            self.of_this_run[key] = report
            print(json.dumps(report), flush=True)

    def keep(self) -> None:
        lines = (f"{json.dumps(key)}: {json.dumps(report)}" for key, report in sorted(self.of_this_run.items()))
        self._file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def compile_instead_of_launching(reports: Reports) -> None:
    launch, compile_afresh = JITFunction.run, triton.compiler.compile
    how = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return launch(self, *arguments, grid=grid, warmup=True, **options)

    def compile_once(source: Any, target: GPUTarget, options: dict[str, Any]) -> Any:
        backend = make_backend(target)
        chosen = backend.parse_options(options | source.parse_options())
        key = get_cache_key(source, backend, chosen, get_cache_invalidating_env_vars())
        key = hashlib.sha256(f"{how}-{key}".encode()).hexdigest()
        report = reports.known(key)
        if report is None:
            log = io.StringIO()
            with redirect_stdout(log):
                kernel = compile_afresh(source, target, options)
            constants = {source.fn.arg_names[path[0]]: value for path, value in source.constants.items()}
            report = asdict(described(kernel, log.getvalue(), constants.get("SIZE")))
        reports.add(key, report)

    JITFunction.run = run
    triton.compiler.compile = compile_once
    torch.empty, torch.empty_like = torch.zeros, torch.zeros_like  # type: ignore[assignment]
    triton.knobs.nvidia.dump_ptxas_log = True


def described(kernel: Any, log: str, head_size: int | None) -> Compiled:
    target, meta = kernel.metadata.target, kernel.metadata
    if target.backend == "hip":
        name, code = target.arch, kernel.asm["amdgcn"]
        report, patterns = code, (r"\.vgpr_count: *(\d+)", r"\.vgpr_spill_count: *(\d+)")
        # A conversion to 64 bits takes one, which is exact.
        conversions = sum(int(many or 1) for many in re.findall(r"fptosi (?:<(\d+) x )?float", kernel.asm["llir"]))
        fused = len(re.findall(r"v_(?:pk_|dual_)?(?:fma|fmac|fmaak|fmamk|mad|mac)_f32", code)) - conversions
        approximate, division = ".amdhsa_float_denorm_mode_32 3" not in code, "v_div_fixup_f32"
    else:
        name, code = f"sm_{target.arch}", kernel.asm["ptx"]
        report, patterns = log, (r"Used (\d+) registers", r"(\d+) bytes spill stores")
        fused = code.count("fma.")
        approximate, division = re.search(r"\.(ftz|approx|full)\b", code) is not None, "div.rn.f32"
    registers, spilled = (int(re.findall(pattern, report)[-1]) for pattern in patterns)
    return Compiled(
        target=name,
        kernel=meta.name,
        head_size=head_size,
        shared_bytes=meta.shared,
        threads=meta.num_warps * target.warp_size,
        registers=registers,
        spilled=spilled,
        fused=fused,
        approximate=approximate,
        divides_exactly=division in code,
        truncates="cvt.rz.bf16" in code,
    )


def launch_exact() -> None:
    """Kernels whose results are compared byte by byte: sparse updates and weight diffs."""
    from node.kernels import triton_bits, triton_diff, triton_top_k

    weights = torch.zeros(2 * 4096)
    sparse = triton_top_k.sparsify_on_device(weights, weights.clone(), decay=0.95, kept=64)
    triton_bits.rice(torch.zeros(64, dtype=torch.int32), 3)
    triton_bits.two_bits(torch.zeros(64, dtype=torch.uint8))
    triton_top_k.scatter_mean_on_device([sparse.host()], torch.device("cpu"))
    patterns = weights.to(torch.int16)
    triton_diff.find_changes_on_device(patterns, patterns)
    triton_diff.move_on_device(patterns, np.arange(16, dtype=np.uint32), np.zeros((2, 16), np.uint8), 1)


def launch_draws(every: bool) -> None:
    from node.kernels.drawing.draw_keys import DrawKeys
    from node.kernels.drawing.triton_draw import draw_on_device

    keys = DrawKeys(torch.tensor([5]), torch.arange(4), torch.zeros(4, dtype=torch.int64))
    draw_on_device(torch.zeros(4, 151_936, dtype=torch.bfloat16), 0.7, keys)
    if every:
        draw_on_device(torch.zeros(4, 151_936, dtype=torch.bfloat16), 0, keys)
        draw_on_device(torch.zeros(4, 1), 1.0, keys)


def launch_head(every: bool) -> None:
    from node.kernels.head.slopes import Slopes
    from node.kernels.head.triton_blocks import fold, slope_of

    running = torch.zeros(3, 64)
    slopes = Slopes(running[0], running[1], torch.zeros(64, dtype=torch.int64), running[2], running[2])
    blocks: list[tuple[int, torch.Tensor | None]] = [(8192, None)]
    if every:
        blocks.append((1, torch.zeros(1, dtype=torch.bfloat16)))
    for width, bias in blocks:
        fold(running[:, :4], torch.zeros(4, width), bias, 1.0)
        slope_of(torch.zeros(4, width), bias, 8192, 1.0, slopes.rows(slice(0, 4)))


def launch_decoding(dtype: torch.dtype) -> None:
    from node.kernels.decoding.triton_attention import Rows, attend, rotate_and_keep
    from node.kernels.decoding.triton_mlp import gate

    zeros = partial(torch.zeros, dtype=dtype)
    places = torch.zeros(4, dtype=torch.int32)
    for queries, size, shared in [(7, 64, True), (4, 128, True), (1, 256, False)]:
        cache = zeros(4, 2, 320, size)
        prompts = cache if shared else None
        rows = Rows(cache, cache, places, places, places.long(), prompts, prompts, places, places)
        heads = zeros(4, 2, queries + 2, size)
        rotate_and_keep(heads, None if shared else zeros(queries + 1, size), torch.zeros(64, size), 1e-6, rows)
        attend(heads, rows, 1000 if size == 128 else 1)
    gate(zeros(256, 4864), zeros(256, 4864), "silu")


def launch_rotation(dtype: torch.dtype) -> None:
    from node.kernels.training.triton_rotation import both_rotated

    for queries, size in [(14, 64), (28, 128)]:
        heads = [torch.zeros(2, count, 4, size, dtype=dtype) for count in (queries, 2)]
        angles = torch.zeros(1, 4, size, dtype=dtype)
        for back in (False, True):
            both_rotated(heads[0], heads[1], angles, angles, back=back)


def launch_gate(dtype: torch.dtype) -> None:
    from node.kernels.training.triton_gate import gate_slopes

    products = torch.zeros(256, 4864, dtype=dtype)
    gate_slopes(products, products, products)


def launch_adapter(*, products: bool) -> None:
    from node.kernels.training.triton_adapter import add_product, split_factors

    for rank in (8, 64):
        down, up = split_factors(torch.zeros(rank, 896), torch.zeros(4864, rank))
        thin = torch.zeros(300, 3 * rank)
        factors = (4864, up.view(-1, 3, rank).movedim(0, 2)), (896, down.view(3, rank, -1))
        for size, factor in factors if products else ():
            add_product(torch.zeros(300, size, dtype=torch.bfloat16), thin, 2.0, factor)


def launch_by_lengths(dtype: torch.dtype, every: bool) -> None:
    from node.kernels.training.row_lengths import Heads, RowLengths
    from node.kernels.training.triton_backward import slopes
    from node.kernels.training.triton_forward import attended

    places = torch.zeros(4, dtype=torch.int32)
    for queries, size in [(7, 64), (4, 128)] if every else [(7, 64)]:
        query, keys = (torch.zeros(4, heads, 100, size, dtype=dtype) for heads in (2 * queries, 2))
        rows = RowLengths(places, places, places, torch.zeros(5, dtype=torch.int32))
        heads = Heads(query, keys, keys, keys, keys)
        mixed, logs = attended(heads, rows, 0.1)
        slopes(mixed, mixed, logs, heads, rows, 0.1, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("maker", choices=TARGETS)
    parser.add_argument("--keep", action="store_true", help="replace the reports in compiled/")
    options = parser.parse_args()
    if options.maker == "amd":
        torch.version.hip = "0"  # as a PyTorch for these cards has it: constants of kernels follow from it
    reports = Reports(REPORTS / f"{options.maker}.json")
    compile_instead_of_launching(reports)
    # What Triton's own cache has is not compiled, so that nothing would be reported of it.
    with tempfile.TemporaryDirectory() as triton.knobs.cache.dir:
        for number, name in enumerate(TARGETS[options.maker]):
            compile_for(number, name)
    if options.keep:
        reports.keep()


if __name__ == "__main__":
    main()
