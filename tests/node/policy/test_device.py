"""The dtype and the attention kernels that a policy is loaded with."""

from __future__ import annotations

import pytest
import torch

from node.configuration import PolicySection
from node.policy.device import choose_dtype, device_memory_bytes
from node.policy.policy import Policy


@pytest.mark.parametrize(("computes", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_a_card_that_only_emulates_bfloat16_trains_in_float32(
    monkeypatch: pytest.MonkeyPatch, computes: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or computes
    )
    assert choose_dtype("auto", torch.device("cuda")) is dtype


def test_attention_of_cudnn_which_plans_each_length_anew_is_off_once_a_policy_is_loaded() -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    Policy.load(PolicySection(model="builtin:wren", device="cpu"))
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_the_memory_of_a_card_is_found_whether_or_not_the_device_has_a_number(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda.memory, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 8 << 30))
    # torch's own checks of its arguments run; only what the driver would answer is given.
    monkeypatch.setattr(torch._C, "_cuda_getMemoryFraction", lambda index: [0.5][index], raising=False)
    assert device_memory_bytes(torch.device(name)) == 4 << 30
