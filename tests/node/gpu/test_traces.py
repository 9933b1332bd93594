"""What every path of a round does on a GPU that is not there: no mixed devices, no wait without a reason, few launches.

``traced_paths`` runs the paths, ``stand_in_device`` says what is seen of them and what is not. A count that falls is
better: lower its record. A wait in a new place needs a reason here, or goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import pytest

from tests.node.gpu.conftest import FAULTS, ROUNDS, STEPS, Paths

pytestmark = pytest.mark.processes

AFTER_A_LOOK: Final = "rows join, leave and get the keys of their draws after a look, when nothing is queued"
COPIED: Final = "copies of all weights or moments, tensor by tensor"
PACKED: Final = "how many bytes a blob has is known on the device alone"
# Where the host waits for the device, and why: file and function.
REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "node/engines/batch.py:_steps": "a look: what was sampled is read",
        "node/engines/batch.py:_admit": AFTER_A_LOOK,
        "node/engines/batch.py:_keep": AFTER_A_LOOK,
        "node/engines/decoder.py:right_aligned": AFTER_A_LOOK,
        "node/engines/draws.py:<genexpr>": AFTER_A_LOOK,
        "node/engines/draws.py:prepare": AFTER_A_LOOK,
        "node/engines/lean/decoder.py:<genexpr>": AFTER_A_LOOK,
        "node/engines/lean/decoder.py:join": AFTER_A_LOOK,
        "node/engines/lean/device_rows.py:_copy": AFTER_A_LOOK,
        "node/engines/lean/passes.py:join": AFTER_A_LOOK,
        "node/engines/lean/seated_prompts.py:_seats_of": AFTER_A_LOOK,
        "node/engines/lean/seated_prompts.py:add": AFTER_A_LOOK,
        "node/engines/lean/timeline.py:_starts_changed": AFTER_A_LOOK,
        "node/policy/device.py:sent": "what goes to Apple's GPUs is read later, so it must stay",
        "node/kernels/linear_logp.py:_check": "a target outside of the vocabulary would end CUDA's context",
        "node/kernels/linear_logp.py:backward": "which targets are in a block of the vocabulary, in float32 alone",
        "node/learner/objective/report.py:report_of_micro_batch": "figures of a micro-batch, in one transfer",
        "node/learner/objective/report.py:report_of_movement": "how far a step moved the policy; of few steps",
        "node/learner/steps/optimizer.py:_norm": "a step with a norm that is not finite is not taken",
        "node/learner/steps/adamw/slices.py:gradient": "the moments are in main memory",
        "node/learner/steps/adamw/slices.py:write": "the moments are in main memory",
        "node/learner/steps/undo.py:<dictcomp>": COPIED,
        "node/checkpoints/checkpoints.py:<dictcomp>": COPIED,
        "node/averaging/noloco.py:<dictcomp>": COPIED,
        "node/averaging/noloco.py:overlapped": COPIED,
        "node/averaging/rules.py:moved": COPIED,
        "node/learner/steps/optimizer.py:write": COPIED,
        "node/learner/steps/optimizer.py:put_in_place": COPIED,
        "node/learner/steps/adamw/float32_moments.py:take": COPIED,
        "node/engines/encoded_weights.py:rounded": COPIED,
        "node/engines/encoded_weights.py:<listcomp>": COPIED,
        "node/engines/encoded_weights.py:_load_diff": COPIED,
        "node/state_sync/rebuild.py:<listcomp>": COPIED,
        "node/state_sync/rebuild.py:copy_into": COPIED,
        "node/kernels/weight_diff_kernels.py:_array": "hashes are computed from main memory",
        "node/kernels/triton_diff.py:host_patterns": PACKED,
        "node/kernels/triton_diff.py:find_changes_on_device": PACKED,
        "node/kernels/triton_diff.py:pack_diff_on_device": PACKED,
        "node/kernels/triton_diff.py:move_on_device": PACKED,
        "node/kernels/triton_bits.py:host_bytes": PACKED,
        "node/kernels/triton_bits.py:rice": PACKED,
        "node/kernels/triton_top_k.py:sparsify_on_device": PACKED,
        "node/kernels/triton_top_k.py:_quantised": PACKED,
        "node/kernels/triton_top_k.py:pack_update_on_device": PACKED,
    }
)
# Launches and waits on CUDA, at most; of decoding in ``STEPS`` steps of a model with one layer. Of both rounds it is
# measured how far their steps moved the policy, which takes 123 launches and 2 waits; later it is of one in 32.
RECORD: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "round": (1500, 170),
        "decode, own prompts": (16 * STEPS, 0),
        "decode, shared prompts": (16 * STEPS, 0),
        "decode, adapter beside": (27 * STEPS, 0),
        "step": (832, 3),
        "step, head in blocks": (847, 3),
        "step, recomputed": (1236, 3),
        "step, adapter": (1112, 3),
        "step, KL": (1092, 4),
        "step, moments on the host": (732, 53),
        "step, 8 bits": (832, 3),
        "step, attention by lengths": (605, 3),
        "4 bits": (7, 0),
        "averaging, dense": (100, 100),
        "averaging, sparse": (125, 125),
        "diff": (1, 150),
        "diff, on the device": (27, 9),
        "sparse update, on the device": (27, 9),
        "undo": (1766, 156),
    }
)
BOTH: Final = pytest.mark.parametrize("kind", ["cuda", "mps"])
DECODING: Final = ("decode, own prompts", "decode, shared prompts", "decode, adapter beside")


@BOTH
def test_the_stand_in_sees_what_a_gpu_would_mind(kind: str, everything: Callable[[str], Paths]) -> None:
    found = everything(kind)[FAULTS]
    assert list(found["mixed"].values()) == list(found["misaligned"].values()) == [1]
    assert list(found["float64"].values()) == [1]
    assert {place.partition(" ")[2] for place in found["waits"]} == {"_local_scalar_dense", "index by mask"}


@BOTH
def test_no_operator_has_tensors_of_two_devices_and_masks_begin_where_kernels_read_them(
    kind: str, paths: Callable[[str], Paths]
) -> None:
    for name, found in paths(kind).items():
        assert (found["mixed"], found["misaligned"]) == ({}, {}), name


@BOTH
def test_the_host_waits_for_the_device_only_where_a_reason_is_given(kind: str, paths: Callable[[str], Paths]) -> None:
    found = {place.partition(" ")[0]: name for name, found in paths(kind).items() for place in found["waits"]}
    assert {place: name for place, name in found.items() if place not in REASONS} == {}


@BOTH
def test_a_decode_step_between_two_looks_waits_for_nothing(kind: str, paths: Callable[[str], Paths]) -> None:
    assert {name: paths(kind)[name]["waits"] for name in DECODING if paths(kind)[name]["waits"]} == {}


def test_nothing_is_made_in_float64_on_a_device_that_has_none(paths: Callable[[str], Paths]) -> None:
    assert {name: found["float64"] for name, found in paths("mps").items() if found["float64"]} == {}


def test_a_round_gives_cached_blocks_back_on_apples_gpu(paths: Callable[[str], Paths]) -> None:
    assert paths("mps")["round"]["launches"]["empty_cache"] == ROUNDS


def test_paths_wait_and_launch_no_more_often_than_recorded(paths: Callable[[str], Paths]) -> None:
    counted = {
        name: (sum(found["launches"].values()), sum(found["waits"].values())) for name, found in paths("cuda").items()
    }
    assert counted.keys() == RECORD.keys()
    worse = {name: found for name, found in counted.items() if any(map(int.__gt__, found, RECORD[name]))}
    assert worse == {}
