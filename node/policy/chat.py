"""Chat templates: a prompt written as a user's turn, and the token that ends the model's turn after it.

``policy.chat`` is "off" (the prompt's text as it is), "on" (always the tokenizer's template), or "auto": the template
if there is one and the model can stop under it, that is, if the template writes a special token right after an answer.
That token is found by rendering an answer and reading what follows, not from a list of names. It ends completions
(``end_tokens``), so that a base model, which was trained to end texts and not turns, has a token to stop with.

A template that knows ``enable_thinking`` (Qwen3) is rendered with it off: a thought is thousands of tokens long there,
and tasks allow hundreds. A model that reasons before its answer does so in the answer.

Templates come from the user's own model folder, never from a peer, and run in transformers' sandboxed Jinja.
"""

from __future__ import annotations

from typing import Final

from transformers import PreTrainedTokenizerFast

from node.configuration import ChatMode
from protocol.errors import ConfigurationError

_QUESTION: Final = "1 + 1 = ?"
_ANSWER: Final = "starling-8d41"  # rendered to see what a template writes after an answer; no template writes it itself


def uses_template(tokenizer: PreTrainedTokenizerFast, mode: ChatMode, end_of_turn: int | None) -> bool:
    """Returns whether prompts are written by the template. Raises ``ConfigurationError`` for "on" without one."""
    if mode == "on" and not tokenizer.chat_template:
        raise ConfigurationError(
            'policy.chat is "on", and the model\'s tokenizer has no chat template: set policy.chat = "auto", or choose '
            "an instruct model"
        )
    return mode == "on" or (mode == "auto" and end_of_turn is not None)


def written_prompt(tokenizer: PreTrainedTokenizerFast, text: str) -> str:
    """Returns the turn of a user who says ``text``, up to where the model's turn begins.

    Raises ``ConfigurationError`` for a template that raises.
    """
    return _rendered(tokenizer, [{"role": "user", "content": text}], begins_answer=True)


def end_of_turn(tokenizer: PreTrainedTokenizerFast, mode: ChatMode) -> int | None:
    """Returns the special token that the template writes after an answer.

    None if the mode is "off", if there is no template, or if it writes none. Raises ``ConfigurationError`` for a
    template that raises.
    """
    if mode == "off" or not tokenizer.chat_template:
        return None
    turns = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]
    _, found, after = _rendered(tokenizer, turns, begins_answer=False).rpartition(_ANSWER)
    ids = list(tokenizer(after.lstrip(), add_special_tokens=False)["input_ids"]) if found else []
    return ids[0] if ids and ids[0] in special_ids(tokenizer) else None


def special_ids(tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """Returns the control tokens: those that ordinary text is never tokenized to."""
    return frozenset(token_id for token_id, added in tokenizer.added_tokens_decoder.items() if added.special)


def _rendered(tokenizer: PreTrainedTokenizerFast, turns: list[dict[str, str]], *, begins_answer: bool) -> str:
    try:
        return str(
            tokenizer.apply_chat_template(
                turns, add_generation_prompt=begins_answer, tokenize=False, enable_thinking=False
            )
        )
    except Exception as error:  # a template may raise anything
        raise ConfigurationError(
            f"the model's chat template failed ({type(error).__name__}: {error}): mend it in the model's folder, or "
            'set policy.chat = "off"'
        ) from error
