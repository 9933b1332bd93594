"""What reads all of a model whose layers are on several machines."""

from __future__ import annotations

import pytest

from node.configuration import PolicySection
from node.evaluation import restored
from protocol.errors import ConfigurationError


def test_it_is_refused_before_it_loads_anything_where_this_machine_cannot_hold_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    section = PolicySection(model="builtin:robin", adapter_rank=4, four_bit=False, device="cpu", stages=2)
    assert restored.load_untrained(section, None).label == "robin+lora4"
    monkeypatch.setattr(restored, "host_memory_bytes", lambda: 500_000_000)
    with pytest.raises(ConfigurationError, match=r"on 3 machines.*500\.0 MB"):
        restored.load_untrained(section, None)
    whole = section.model_copy(update={"stages": 0})
    assert restored.load_untrained(whole, None).label == "robin+lora4"
