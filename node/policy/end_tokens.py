"""Which tokens end a completion: usually one, and several where a model's files name several.

They are the token that ends a turn under the chat template in use, the tokenizer's end-of-sequence, and the
``eos_token_id`` of generation_config.json and of config.json, a number or a list. The first is what is appended to a
completion of another tokenizer that ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from protocol.errors import ConfigurationError

_FILES: Final = ("generation_config.json", "config.json")


def declared_end_ids(folder: Path) -> list[int]:
    """Returns the ids that the files of the model in ``folder`` name, in order, with repetitions.

    Raises ``ConfigurationError`` for a file that is not JSON and for an id that is not a number.
    """
    return [token_id for name in _FILES for token_id in _declared(folder / name)]


def _declared(path: Path) -> list[int]:
    try:
        declared = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not a readable JSON object ({error}): fetch the model again") from error
    ids = declared if isinstance(declared, list) else [] if declared is None else [declared]
    if not all(isinstance(token_id, int) for token_id in ids):
        raise ConfigurationError(f"{path}: eos_token_id is {declared!r}, wanted a number or a list of numbers")
    return ids


def end_ids(of_turn: int | None, of_sequence: int | None, declared: Iterable[int]) -> tuple[int, ...]:
    """Returns the tokens that end a completion: the one that is appended first, the others by number.

    Raises ``ConfigurationError`` if there is none.
    """
    known = [token_id for token_id in (of_turn, of_sequence) if token_id is not None]
    ordered = [*known, *sorted(declared)]
    if not ordered:
        raise ConfigurationError(
            "the tokenizer has no end-of-sequence token: set eos_token in tokenizer_config.json, or eos_token_id in "
            "generation_config.json"
        )
    first = ordered[0]
    return (first, *sorted(set(ordered) - {first}))
