"""The dtype and the attention kernels that a policy is loaded with."""

from __future__ import annotations

import pytest
import torch

from node.configuration import PolicySection
from node.policy.device import choose_dtype
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
