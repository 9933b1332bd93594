"""Chat templates, which write a prompt as a user's turn, and the tokens that end a completion.

``policy.chat`` is "off" (the prompt's text as it is), "on" (always the tokenizer's template), or "auto": the template
if there is one and the model can stop under it, that is, if the template writes a special token right after an answer.
That token is found by rendering an answer and reading what follows, not from a list of names. It ends completions
(``end_ids``), so that a base model, which was trained to end texts and not turns, has a token to stop with.

A template that knows ``enable_thinking`` (Qwen3) is rendered with it off: a thought is thousands of tokens long there,
and tasks allow hundreds. A model that reasons before its answer does so in the answer.

Usually one token ends a completion, and several where a model's files name several: the token that ends a turn under
the template in use, the tokenizer's end-of-sequence, and the ``eos_token_id`` of generation_config.json and of
config.json, a number or a list. The first is what is appended to a completion of another tokenizer that ended.

Templates come from the user's own model folder, never from a peer, and run in transformers' sandboxed Jinja.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from transformers import PreTrainedTokenizerFast

from node.configuration import ChatMode
from protocol.errors import ConfigurationError

Tool = Mapping[str, Any]  # as ``node.tasks.task.Prompt`` has them
_QUESTION: Final = "1 + 1 = ?"
_ANSWER: Final = "starling-8d41"  # rendered to see what a template writes after an answer; no template writes it itself
_REPLY: Final = "starling-27c6"
_CALLED: Final = (
    'To call one, answer with {"name": NAME, "arguments": {ARGUMENT: VALUE}}. Any other text is your answer.'
)
_CALM: Final = "{%- set enable_thinking = enable_thinking | default(false) -%}\n"
_PLAIN: Final = """\
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}{{ message.content + END }}
{%- elif not loop.first -%}{{ '\\n' + message.content + '\\n' }}
{%- else -%}{{ BEGIN + message.content }}
{%- if tools -%}{{ '\\n\\nThere are tools:' }}
{%- for tool in tools -%}{{ '\\n' + tool.function.name + '(' }}
{%- for name, each in tool.function.parameters.properties.items() -%}
{{ name + ': ' + each.type + ('' if loop.last else ', ') }}
{%- endfor -%}{{ '): ' + tool.function.description }}
{%- endfor -%}{{ '\\n' + CALLED }}
{%- endif -%}{%- endif -%}{%- endfor -%}
"""
_FILES: Final = ("generation_config.json", "config.json")


def uses_template(tokenizer: PreTrainedTokenizerFast, mode: ChatMode, end_of_turn: int | None) -> bool:
    """Returns whether prompts are written by the template. Raises ``ConfigurationError`` for "on" without one."""
    if mode == "on" and not tokenizer.chat_template:
        raise ConfigurationError(
            'policy.chat is "on", and the model\'s tokenizer has no chat template: set policy.chat = "auto", or choose '
            "an instruct model"
        )
    return mode == "on" or (mode == "auto" and end_of_turn is not None)


def written_prompt(
    tokenizer: PreTrainedTokenizerFast, text: str, tools: Sequence[Tool] = (), said: Sequence[str] = ()
) -> str:
    """Returns the turn of a user who says ``text``, up to where the model's turn begins. ``tools`` are told as the
    template tells them, or where it tells none, in the user's turn. ``said`` has what the model and its environment
    said after that, in turn; the next turn of the model begins at the end.

    Raises ``ConfigurationError`` for a template that raises.
    """
    turns = [{"role": "user", "content": text}]
    if said:
        roles = cycle(("assistant", reply_role(tokenizer, of_tool=bool(tools))))
        turns += [{"role": role, "content": each} for role, each in zip(roles, said, strict=False)]
    if not tools:
        return _rendered(tokenizer, turns, begins_answer=True)
    told = _rendered(tokenizer, turns[:1], begins_answer=True, tools=tools)
    if all(tool["function"]["name"] in told.replace(text, "") for tool in tools):
        return _rendered(tokenizer, turns, begins_answer=True, tools=tools) if said else told
    turns[0]["content"] = with_tools(text, tools)
    return _rendered(tokenizer, turns, begins_answer=True)


def extends(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Returns whether the template writes a conversation as the one before it, extended. Many do not once an answer has
    a thought, which they leave out of earlier turns, or an empty one, which they put before the answer that follows."""
    first = written_prompt(tokenizer, _QUESTION)
    for answer in (_ANSWER, f"<think>\n{_ANSWER}\n</think>\n\n{_ANSWER}"):
        turns = [("user", _QUESTION), ("assistant", answer), ("user", _REPLY)]
        rendered = _rendered(tokenizer, [{"role": r, "content": text} for r, text in turns], begins_answer=True)
        if not rendered.startswith(first) or not rendered.removeprefix(first).lstrip().startswith(answer):
            return False  # some write a space before an answer
    return True


def trained_template(tokenizer: PreTrainedTokenizerFast, begin: str, end: str | None) -> str | None:
    """Returns the template with which whoever uses the model writes turns as training did; None: the tokenizer's own.

    ``end`` is what ends a completion where no template is used: prompts are then their text after ``begin``, replies
    stand on lines of their own, and tools after the prompt. Otherwise the tokenizer's, without thinking.
    """
    if end is None:
        own = str(tokenizer.chat_template)
        return _CALM + own if "enable_thinking" in own else None
    return (
        _PLAIN.replace("BEGIN", json.dumps(begin))
        .replace("END", json.dumps(end))
        .replace("CALLED", json.dumps(_CALLED))
    )


def with_tools(text: str, tools: Sequence[Tool]) -> str:
    """Returns a prompt's text with its tools, for a model without a template that tells them."""
    lines = [text, "", "There are tools:"] if tools else [text]
    for tool in (each["function"] for each in tools):
        arguments = ", ".join(f"{name}: {each['type']}" for name, each in tool["parameters"]["properties"].items())
        lines.append(f"{tool['name']}({arguments}): {tool['description']}")
    return "\n".join([*lines, *([_CALLED] if tools else [])])


def written_reply(tokenizer: PreTrainedTokenizerFast, *, of_tool: bool = False) -> tuple[str, str]:
    """Returns what the template writes between the model's answer and a user's reply to it, or with ``of_tool`` what a
    tool returned, where it knows tools; and what after the reply up to where the model's next turn begins. The first
    begins with the end of the model's turn.

    Raises ``ConfigurationError`` for a template that raises, or loses an earlier answer.
    """
    return _around_reply(tokenizer, reply_role(tokenizer, of_tool=of_tool))


def reply_role(tokenizer: PreTrainedTokenizerFast, *, of_tool: bool) -> str:
    """Returns who a reply to the model is from, as the template knows it."""
    if of_tool:
        with contextlib.suppress(ConfigurationError):  # it wants calls of another form, or knows no tools
            _around_reply(tokenizer, "tool")
            return "tool"
    return "user"


def _around_reply(tokenizer: PreTrainedTokenizerFast, role: str) -> tuple[str, str]:
    turns = [("user", _QUESTION), ("assistant", _ANSWER), (role, _REPLY)]
    rendered = _rendered(tokenizer, [{"role": r, "content": text} for r, text in turns], begins_answer=True)
    _, answered, after = rendered.partition(_ANSWER)
    front, replied, back = after.partition(_REPLY)
    if not answered or not replied:
        raise ConfigurationError(
            "the model's chat template does not write a user's reply after the model's answer, so that there is no "
            'conversation: set policy.chat = "off", or train on tasks with one answer'
        )
    return front, back


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


def _rendered(
    tokenizer: PreTrainedTokenizerFast,
    turns: list[dict[str, str]],
    *,
    begins_answer: bool,
    tools: Sequence[Tool] = (),
) -> str:
    try:
        return str(
            tokenizer.apply_chat_template(
                turns,
                tools=[dict(each) for each in tools] or None,
                add_generation_prompt=begins_answer,
                tokenize=False,
                enable_thinking=False,
            )
        )
    except Exception as error:  # a template may raise anything
        raise ConfigurationError(
            f"the model's chat template failed ({type(error).__name__}: {error}): mend it in the model's folder, or "
            'set policy.chat = "off"'
        ) from error


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
