"""How many examples a property test draws."""

from typing import Any

from hypothesis import settings

USUAL = 100  # of a test that says nothing; also Hypothesis' own default


def examples(count: int, **others: Any) -> settings:
    """A decorator: ``count`` examples where the profile draws the usual number, and more in proportion where more.

    Less than the usual number is for what takes long; more is for decoders of strangers' bytes.
    """
    return settings(max_examples=count * settings().max_examples // USUAL, **others)
