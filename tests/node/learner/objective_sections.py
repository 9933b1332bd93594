"""Objectives for tests: keys of ``[objective]`` and ``[objective.research]`` side by side."""

from __future__ import annotations

from typing import Any

from node.configuration import ObjectiveSection, ResearchSection


def objective_section(**keys: Any) -> ObjectiveSection:
    """The section with these keys, each where it belongs."""
    research = {key: keys.pop(key) for key in list(keys) if key in ResearchSection.model_fields}
    return ObjectiveSection.model_validate(keys | {"research": research})
