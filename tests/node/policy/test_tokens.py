from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from node.policy.tokens import TokenTable
from protocol.errors import ConfigurationError
from tests.examples import examples

CORPUS = [
    "the starling flies by watching its seven nearest neighbours",
    "naïve café — 12 + 30 = 42",
    "    deep indent\n\n",
]


def byte_level(special: tuple[str, ...] = ("<|end|>", "<|start|>"), vocabulary: int = 300) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def sentencepiece() -> PreTrainedTokenizerFast:
    """As Llama 2 writes it: a space in front of the text, ▁ for spaces, bytes for what has no piece."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "c", "▁a", "ab"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[("▁", "a"), ("a", "b")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def characters(alphabet: str = "abc 0123456789+=\n", eos: str = "<end>") -> PreTrainedTokenizerFast:
    vocabulary = {"<pad>": 0, eos: 1} | {character: index + 2 for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, pad_token="<pad>")


BYTE_LEVEL = TokenTable(byte_level())
SENTENCEPIECE = TokenTable(sentencepiece())
CHARACTERS = TokenTable(characters())


@examples(80)
@given(st.one_of(st.text(), st.sampled_from(CORPUS)).map(str.encode) | st.binary(max_size=40))
def test_byte_level_and_byte_fallback_tokenizers_write_any_bytes_exactly(text: bytes) -> None:
    for table in (BYTE_LEVEL, SENTENCEPIECE):
        tokenized = table.tokenize_completion(text)
        assert tokenized is not None
        ids, lengths = tokenized
        assert table.text_of(ids) == text
        assert lengths == table.byte_lengths(ids)
        assert sum(lengths) == len(text)
        assert table.eos_id not in ids


def test_merged_tokens_and_cut_characters_have_the_bytes_they_stand_for() -> None:
    ids, lengths = BYTE_LEVEL.tokenize_completion("é starling".encode()) or ([], [])
    assert max(lengths) > 1, "the corpus's words are merged"
    half = BYTE_LEVEL.tokenize_completion(b"\xc3")
    assert half is not None
    assert BYTE_LEVEL.text_of(half[0]) == b"\xc3"
    assert b"".join(BYTE_LEVEL.text_of([token]) for token in ids) == "é starling".encode()


def test_sentencepiece_completion_does_not_gain_the_space_that_a_prompt_gets() -> None:
    assert SENTENCEPIECE.tokenize_completion(b"ab") is not None
    ids, lengths = SENTENCEPIECE.tokenize_completion(b"ab c") or ([], [])
    assert (ids[0], lengths) == (264, [2, 1, 1])
    with_space = SENTENCEPIECE.tokenize_completion(b" ab")
    assert with_space is not None
    assert SENTENCEPIECE.text_of(with_space[0]) == b" ab"


def test_text_outside_a_character_tokenizers_alphabet_is_refused_and_inside_it_is_exact() -> None:
    assert CHARACTERS.tokenize_completion(b"1+2=3\n") == (CHARACTERS.tokenize_completion(b"1+2=3\n") or ([], []))
    assert CHARACTERS.tokenize_completion(b"a b") == ([2, 5, 3], [1, 1, 1])
    for outside in ("z", "a<pad>", "é", "\N{NO-BREAK SPACE}"):
        assert CHARACTERS.tokenize_completion(outside.encode()) is None
    assert CHARACTERS.tokenize_completion(b"\xff") is None


def test_control_tokens_written_out_in_a_peers_text_stay_text() -> None:
    ids, _ = BYTE_LEVEL.tokenize_completion(b"stop<|end|><|start|>") or ([], [])
    special = {BYTE_LEVEL.eos_id, BYTE_LEVEL.eos_id + 1}
    assert ids
    assert not special & set(ids)
    assert CHARACTERS.tokenize_completion(b"<end>") is None


def test_special_tokens_stand_for_their_text_and_end_of_sequence_for_nothing() -> None:
    assert CHARACTERS.text_of([2, 1, 0]) == b"a<pad>"
    assert CHARACTERS.byte_lengths([2, 1, 0]) == [1, 0, 5]
    assert CHARACTERS.text_of([10**6, -1]) == b""


def test_prompt_gets_bos_and_is_never_empty() -> None:
    assert SENTENCEPIECE.prompt_ids("a")[0] == 1
    assert CHARACTERS.prompt_ids("") == [CHARACTERS.eos_id]


def test_fingerprint_is_equal_for_equal_tokenizers_and_changes_with_vocabulary_merges_or_end_of_sequence() -> None:
    same = TokenTable(byte_level())
    assert same.fingerprint == BYTE_LEVEL.fingerprint
    assert len(same.fingerprint) == 16
    chatty = byte_level()
    chatty.chat_template = "{{ messages }}"
    assert TokenTable(chatty).fingerprint == same.fingerprint, "how prompts are wrapped is not what ids mean"
    definition = json.loads(byte_level().backend_tokenizer.to_str())
    definition["model"]["merges"][:2] = definition["model"]["merges"][1::-1]
    reordered = Tokenizer.from_str(json.dumps(definition))
    others = [
        byte_level(vocabulary=290),
        byte_level(special=("<|start|>", "<|end|>")),
        PreTrainedTokenizerFast(tokenizer_object=reordered, eos_token="<|end|>"),
        characters(),
        characters("abc"),
    ]
    fingerprints = {same.fingerprint, *(TokenTable(other).fingerprint for other in others)}
    assert len(fingerprints) == len(others) + 1


def test_tokenizer_without_end_of_sequence_or_without_bytes_is_refused_with_a_remedy() -> None:
    endless = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(ConfigurationError, match="eos_token"):
        TokenTable(endless)
    pieces = Tokenizer(models.WordPiece({"a": 0, "##b": 1, "[E]": 2}, unk_token="a"))
    pieces.decoder = decoders.WordPiece()
    with pytest.raises(ConfigurationError, match="WordPiece"):
        TokenTable(PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="[E]"))
