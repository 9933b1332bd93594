"""How a layer's input and arguments are cut."""

from __future__ import annotations

import pytest
import torch

from node.learner.objective.network.recomputation import Piece, cut_arguments, piece_size
from protocol.errors import ConfigurationError


@pytest.mark.parametrize(
    ("rows", "width", "tokens", "expected"),
    [
        (4, 100, None, (4, 100)),
        (4, 100, 400, (4, 100)),
        (4, 100, 399, (3, 100)),
        (4, 100, 100, (1, 100)),
        (4, 100, 99, (1, 99)),
        (64, 1, 8, (8, 1)),
        (3, 7, 1, (1, 1)),
    ],
)
def test_piece_is_of_whole_rows_where_one_fits(
    rows: int, width: int, tokens: int | None, expected: tuple[int, int]
) -> None:
    assert piece_size(rows, width, tokens) == expected


def test_arguments_are_cut_to_the_rows_and_columns_of_the_piece() -> None:
    mask = torch.rand(4, 1, 6, 9)  # three columns before the call
    positions, rotations = torch.arange(24).reshape(4, 6), torch.rand(1, 6, 8)
    arguments = {
        "attention_mask": mask,
        "position_ids": positions,
        "position_embeddings": (rotations, rotations + 1),
        "use_cache": True,
    }
    cut = cut_arguments(arguments, Piece(slice(1, 3), slice(2, 5)), 4, 6)
    assert torch.equal(cut["attention_mask"], mask[1:3, :, 2:5, :8])
    assert torch.equal(cut["position_ids"], positions[1:3, 2:5])
    assert torch.equal(cut["position_embeddings"][0], rotations[:, 2:5])  # one row stands for all
    assert torch.equal(cut["position_embeddings"][1], rotations[:, 2:5] + 1)
    assert cut["use_cache"] is True


@pytest.mark.parametrize("name", ["alibi", "attention_mask", "position_ids", "position_embeddings"])
def test_tensor_of_unknown_meaning_is_refused_where_it_would_be_cut(name: str) -> None:
    whole = {name: torch.zeros(5)}
    assert cut_arguments(whole, Piece(slice(0, 1), slice(0, 6)), 1, 6) == whole
    with pytest.raises(ConfigurationError, match=rf"{name}.*learner\.recompute"):
        cut_arguments({name: torch.zeros(5)}, Piece(slice(0, 1), slice(0, 2)), 1, 6)
