"""What a model is called by its own node and by its peers."""

from __future__ import annotations

import pytest

from node.policy.model_name import model_name
from protocol.limits import NAME_BYTES


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("builtin:wren", "wren"),
        ("Qwen/Qwen3-0.6B", "Qwen3-0.6B"),
        ("/data/models/small/", "small"),
        ("./small", "small"),
        ("/", "/"),
    ],
)
def test_a_model_is_called_by_the_last_part_of_what_is_configured(model: str, name: str) -> None:
    assert model_name(model) == name


def test_an_adapter_is_part_of_the_name_and_a_name_fits_into_a_heartbeat() -> None:
    assert model_name("builtin:wren", 8) == "wren+lora8"
    assert model_name("Qwen/Qwen3-0.6B", 16, four_bit=True) == "Qwen3-0.6B+qlora16"
    assert len(model_name("é" * NAME_BYTES).encode()) <= NAME_BYTES
