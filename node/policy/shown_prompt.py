"""A prompt as the policy of a model gets it, for people to look at. No weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from node.configuration import ChatMode
from node.policy.chat import Tool
from node.policy.model_files import model_folder
from node.policy.tokens import load_tokens


class ShownPrompt(msgspec.Struct, frozen=True):
    """``text`` is what is tokenized; ``tokens`` counts the ids, a beginning of sequence among them."""

    model: str
    text: str
    tokens: int
    uses_chat: bool
    end_tokens: tuple[str, ...]  # any of them ends a completion


def shown_prompt(model: str, chat: ChatMode, question: str, tools: Sequence[Tool] = ()) -> ShownPrompt:
    """Raises ``ConfigurationError`` for a model whose tokenizer is missing or cannot be used."""
    tokens = load_tokens(model_folder(model), chat)
    return ShownPrompt(
        model=model,
        text=tokens.prompt_text(question, tools),
        tokens=len(tokens.prompt_ids(question, tools)),
        uses_chat=tokens.uses_chat,
        end_tokens=tuple(tokens.names_of(tokens.eos_ids)),
    )
