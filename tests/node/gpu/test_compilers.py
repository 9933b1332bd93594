"""The Triton kernels compile for every generation of cards, within what its smallest card has.

Nothing is run. Compilers report shared memory and spilled registers; the code of the kernels whose results nodes
compare byte by byte has no instruction that could round otherwise. Each kernel is compiled once for each target, and
for ``ALL_CONFIGURATIONS`` also with the other arguments that change its code. What compilers reported is kept in
``compiled/``: a kernel is compiled here when it, its arguments, Triton or ``compiled_kernels`` have changed since.
gfx90a and sm_89 are left out, for the time it takes: they have the back ends of gfx942 and sm_80.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

from tests.node.gpu.compiled_kernels import ALL_CONFIGURATIONS, TARGETS, Compiled

ROOT: Final = Path(__file__).resolve().parents[3]
MOST_SHARED_BYTES: Final = MappingProxyType({"sm_": 48 << 10, "gfx": 64 << 10})  # that a program gets without asking
BY_LENGTHS: Final = frozenset({"_attend_rows", "_query_slopes", "_key_slopes"})
ASKED_SHARED_BYTES: Final = 99 << 10  # that these may ask for: so much have the smallest cards since Ampere
EXACT: Final = frozenset(
    {"_select", "_sum_squares", "_quantise", "_subtract", "_add", "_divide"}
    | {"_pack", "_compare", "_collect", "_add_steps"}
)
IN_ALL_CONFIGURATIONS: Final = Counter(
    _choose=3, _fold=2, _slope=2, _rotate_and_keep=3, _attend=3, _attend_rows=2, _key_slopes=4
)
# Most that a thread may spill, where it is not nothing: target, kernel, head size.
KNOWN_SPILLS: Final[Mapping[tuple[str, str, int | None], int]] = MappingProxyType(
    {
        ("sm_80", "_slope", None): 4,  # one register of 80, with 8192 logits in the registers of 256 threads
        # In RDNA 3 both halves of a warp hold a product's operands: they crowd the sums, 16 × head size in float32.
        ("gfx1100", "_attend", 128): 2,
        ("gfx1100", "_attend", 256): 112,
        ("gfx1100", "_attend_rows", 64): 2,
        ("gfx1100", "_query_slopes", 64): 18,
    }
)


def launched_kernels() -> set[str]:
    """Returns the names of all kernels that the project launches."""
    sources = (path.read_text() for path in (ROOT / "node/kernels").rglob("triton_*.py"))
    return {name for source in sources for name in re.findall(r"^ +(_\w+)\[[^]]*\]\(", source, re.MULTILINE)}


@pytest.mark.processes
@pytest.mark.parametrize("maker", TARGETS)
def test_kernels_compile_within_the_smallest_cards_limits_and_the_exact_ones_round_nowhere_else(maker: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.node.gpu.compiled_kernels", maker]
    done = subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    compiled = [Compiled(**json.loads(line)) for line in done.stdout.splitlines()]
    targets = TARGETS[maker]
    for target in targets:
        missing = launched_kernels() - {each.kernel for each in compiled if each.target == target}
        # Passes on Turing attend by torch, and compute adapters by PEFT.
        assert missing == ({*BY_LENGTHS, "_add_product"} if target == "sm_75" else set()), target
    configurations = Counter(each.kernel for each in compiled if each.target == ALL_CONFIGURATIONS)
    assert configurations >= IN_ALL_CONFIGURATIONS or ALL_CONFIGURATIONS not in targets
    for each in compiled:
        asks = each.kernel in BY_LENGTHS and maker == "nvidia"
        assert each.shared_bytes <= (ASKED_SHARED_BYTES if asks else MOST_SHARED_BYTES[each.target[:3]]), each
        assert each.threads <= 16 * (64 if each.target.startswith("gfx9") else 32), each
        assert each.spilled <= KNOWN_SPILLS.get((each.target, each.kernel, each.head_size), 0), each
        if each.kernel in EXACT:
            division = each.kernel == "_divide"
            assert each.divides_exactly is division and not each.approximate, each
            assert each.fused == 0 or (division and maker == "amd"), each  # AMD's exact division is made of them
        assert not each.truncates, each
