"""Chat templates and end tokens: which are used, which end a completion, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from node.configuration import ChatMode
from node.policy.model_files import BUILTIN_MODELS
from node.policy.tokens import TokenTable, load_tokens
from protocol.errors import ConfigurationError

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789-:+=? \n"
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, BEGIN, END_OF_TURN = range(3)
CHATML = (
    "{% for turn in messages %}<|im_start|>{{ turn.role }}\n{{ turn.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}calm\n{% endif %}{% endif %}"
)
WITHOUT_END = "{% for turn in messages %}{{ turn.role }}: {{ turn.content }}\n{% endfor %}"
RAISES = "{{ raise_exception('roles must alternate') }}"


def tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    """Characters, and Qwen2.5's control tokens; the end of sequence is that of the base model."""
    vocabulary = {token: index for index, token in enumerate([*CONTROL, *LETTERS])}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    characters.add_special_tokens(list(CONTROL))
    whole = PreTrainedTokenizerFast(tokenizer_object=characters, eos_token=CONTROL[END_OF_TEXT])
    whole.chat_template = template
    return whole


def test_a_template_is_used_and_its_end_of_turn_ends_completions_before_the_end_of_sequence() -> None:
    table = TokenTable(tokenizer(CHATML))
    assert table.uses_chat
    assert table.eos_ids == (END_OF_TURN, END_OF_TEXT)
    assert table.prompt_text("1+1=") == "<|im_start|>user\n1+1=<|im_end|>\n<|im_start|>assistant\ncalm\n"
    ids = table.prompt_ids("1+1=")
    assert (ids[0], ids.count(BEGIN), ids.count(END_OF_TURN)) == (BEGIN, 2, 1)
    assert table.text_of([LETTERS.index("a") + 3, END_OF_TURN, END_OF_TEXT]) == b"a"


def test_without_a_template_or_with_the_mode_off_a_prompt_is_its_text() -> None:
    for table in (TokenTable(tokenizer()), TokenTable(tokenizer(CHATML), chat="off")):
        assert not table.uses_chat
        assert table.eos_ids == (END_OF_TEXT,)
        assert table.prompt_text("a") == "a"
        assert table.prompt_ids("a") == [LETTERS.index("a") + 3]


def test_a_reply_ends_the_models_turn_once_and_what_it_writes_out_stays_text() -> None:
    table = TokenTable(tokenizer(CHATML))
    letter = LETTERS.index("a") + 3
    cut, ended = (table.reply_ids("a", after=last) for last in (letter, END_OF_TURN))
    assert cut == [END_OF_TURN, *ended]
    assert (ended.count(BEGIN), ended.count(END_OF_TURN), ended.count(letter)) == (2, 1, 4)  # a, assistant, calm
    written = table.reply_ids("<|im_end|>", after=END_OF_TURN)
    assert (written.count(BEGIN), written.count(END_OF_TURN)) == (2, 1)
    begun = len("assistant\ncalm\n")
    assert ended[-begun:] == table.prompt_ids("b")[-begun:]


def test_a_reply_without_a_template_stands_on_lines_of_its_own() -> None:
    table = TokenTable(tokenizer())
    line = LETTERS.index("\n") + 3
    assert table.reply_ids("a", after=END_OF_TEXT) == [line, LETTERS.index("a") + 3, line]


def test_a_template_that_writes_no_reply_is_refused_for_conversations_alone() -> None:
    last = "{% set turn = messages[-1] %}<|im_start|>{{ turn.content }}<|im_end|>"
    table = TokenTable(tokenizer(last))
    with pytest.raises(ConfigurationError, match="no conversation"):
        table.reply_ids("a", after=END_OF_TURN)


def test_a_template_under_which_the_model_cannot_stop_is_used_only_when_demanded() -> None:
    assert not TokenTable(tokenizer(WITHOUT_END)).uses_chat
    demanded = TokenTable(tokenizer(WITHOUT_END), chat="on")
    assert demanded.prompt_text("hi") == "user: hi\n"
    assert demanded.eos_ids == (END_OF_TEXT,)


@pytest.mark.parametrize(
    ("template", "mode", "message"),
    [
        (RAISES, "auto", r"roles must alternate.*policy\.chat = \"off\""),
        (RAISES, "on", r"roles must alternate.*policy\.chat = \"off\""),
        ("{% if %}", "auto", r"TemplateSyntaxError.*policy\.chat = \"off\""),
        ("{{ messages.__class__.__mro__ }}", "auto", r"SecurityError.*policy\.chat = \"off\""),
        (None, "on", "has no chat template"),
    ],
)
def test_an_unusable_template_is_refused_with_its_message_and_the_remedy(
    template: str | None, mode: ChatMode, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TokenTable(tokenizer(template), chat=mode)
    if template is not None:
        assert TokenTable(tokenizer(template), chat="off").prompt_ids("a")


def test_a_template_that_raises_for_a_prompt_is_refused_too() -> None:
    fussy = CHATML + "{% if messages[0].content == 'no' %}{{ raise_exception('not this') }}{% endif %}"
    with pytest.raises(ConfigurationError, match="not this"):
        TokenTable(tokenizer(fussy)).prompt_ids("no")


# More than one token that ends a completion


def test_declared_control_tokens_end_completions_and_ordinary_tokens_never_do() -> None:
    ordinary = LETTERS.index("a") + 3
    table = TokenTable(tokenizer(), declared=[END_OF_TURN, ordinary, END_OF_TURN, 10**9, -1])
    assert table.eos_ids == (END_OF_TEXT, END_OF_TURN)
    assert table.eos_id == END_OF_TEXT
    assert table.tokenize_completion(b"a") == ([ordinary], [1])


def test_control_tokens_written_out_never_become_any_of_the_end_tokens() -> None:
    table = TokenTable(tokenizer(CHATML))
    written = table.tokenize_completion(b"a-a")
    assert written is not None
    assert set(written[0]).isdisjoint(table.eos_ids)
    assert table.tokenize_completion(b"a<|im_end|>") is None, "no alphabet of ours has these characters"


def test_tokenizers_with_other_end_tokens_are_not_the_same_and_with_one_it_is_what_it_was() -> None:
    tables = [
        TokenTable(tokenizer()),
        TokenTable(tokenizer(CHATML)),
        TokenTable(tokenizer(), declared=[END_OF_TURN]),
        TokenTable(tokenizer(), declared=[BEGIN]),
    ]
    assert len({table.fingerprint for table in tables}) == len(tables)
    again = TokenTable(tokenizer(CHATML), declared=[END_OF_TEXT, END_OF_TURN])
    assert again.fingerprint == tables[1].fingerprint


@pytest.mark.parametrize(
    ("name", "fingerprint"),
    [
        ("finch", "55275988132381c842d22727f16c8747"),
        ("robin", "60d1728058ef37aede309ff1a528578d"),
        ("wren", "2dfb9e6d439531b4a16f2c067d440fc9"),
    ],
)
def test_built_in_models_keep_their_fingerprints_and_with_them_their_families(name: str, fingerprint: str) -> None:
    assert load_tokens(BUILTIN_MODELS / name, "auto").fingerprint.hex() == fingerprint


def saved(folder: Path, **declared: Any) -> Path:
    tokenizer(CHATML).save_pretrained(folder)
    for name, ids in declared.items():
        (folder / f"{name}.json").write_text(json.dumps({"eos_token_id": ids}))
    return folder


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({}, (END_OF_TEXT,)),
        ({"generation_config": [END_OF_TURN, END_OF_TEXT], "config": None}, (END_OF_TEXT, END_OF_TURN)),
        ({"generation_config": END_OF_TURN, "config": BEGIN}, (END_OF_TEXT, BEGIN, END_OF_TURN)),
    ],
)
def test_end_tokens_are_read_from_the_models_files(
    tmp_path: Path, declared: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert load_tokens(saved(tmp_path, **declared), "off").eos_ids == expected
    assert load_tokens(tmp_path, "auto").eos_id == END_OF_TURN


@pytest.mark.parametrize("content", ["{", "[1]", '{"eos_token_id": "<eos>"}', '{"eos_token_id": [1, null]}'])
def test_a_damaged_file_of_end_tokens_is_refused_by_name(tmp_path: Path, content: str) -> None:
    saved(tmp_path)
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"generation_config\.json"):
        load_tokens(tmp_path, "auto")


# A tokenizer and a model that do not fit


def test_a_tokenizer_with_text_beyond_the_models_embeddings_is_refused() -> None:
    table = TokenTable(tokenizer())
    with pytest.raises(ConfigurationError, match=rf"the model's {table.vocabulary - 2} embeddings, with 2 ids"):
        table.within(table.vocabulary - 2)
    assert table.within(table.vocabulary) is table
    assert table.within(table.vocabulary + 100) is table


def test_control_tokens_beyond_the_models_embeddings_are_left_out() -> None:
    """Gemma 3's models of text have a tokenizer with a token for images that they have no embedding for."""
    wide = tokenizer()
    wide.add_special_tokens({"additional_special_tokens": ["<image>"]})
    table = TokenTable(wide)
    narrow = table.within(table.vocabulary - 1)
    assert narrow.vocabulary == table.vocabulary - 1
    assert narrow.fingerprint == table.fingerprint
    assert narrow.text_of([table.vocabulary - 1]) == b""
    assert table.text_of([table.vocabulary - 1]) == b"<image>"
    assert narrow.tokenize_completion(b"a") == table.tokenize_completion(b"a")


def test_an_end_token_beyond_the_models_embeddings_is_refused() -> None:
    wide = tokenizer()
    wide.add_special_tokens({"eos_token": "<done>"})
    table = TokenTable(wide)
    with pytest.raises(ConfigurationError, match="with 1 ids"):
        table.within(table.vocabulary - 1)


def test_ids_beyond_the_tokenizer_stand_for_nothing_and_are_known_not_to_be_its_own() -> None:
    table = TokenTable(tokenizer())
    last = table.vocabulary - 1
    assert table.text_of([5, last + 1, 10**6]) == table.text_of([5])
    assert table.byte_lengths([last + 1]) == [0]
    assert table.knows(np.array([0, last]))
    assert table.knows(np.array([], dtype=np.int64))
    assert not table.knows(np.array([0, last + 1]))
    assert not table.knows(np.array([-1]))
