"""The chat template of an exported model: the one with which it was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from node.configuration import ChatMode
from node.policy.tokens import load_tokens

TEMPLATE: Final = "chat_template.jinja"  # transformers takes it before one in tokenizer_config.json


def write_chat_format(target: Path, base: Path, chat: ChatMode) -> None:
    """Writes the template into the folder ``target``, beside the files of the tokenizer in ``base``, unless it is the
    tokenizer's own."""
    template = load_tokens(base, chat).trained_template()
    if template is not None:
        (target / TEMPLATE).write_text(template, encoding="utf-8")
