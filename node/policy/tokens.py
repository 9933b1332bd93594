"""The bytes that each token of a tokenizer stands for.

Guarantee: ``text_of(ids)`` is the exact concatenation of the tokens' byte strings, so that byte offsets of one
tokenizer can be compared with those of another. Three notations are supported: byte-level merges (GPT-2's table of 256
printable characters), sentencepiece (``▁`` for a space, ``<0x0A>`` for a byte), and plain text (characters or words). A
special token stands for its literal text, except those that end a completion, which stand for nothing.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from node.configuration import ChatMode
from node.policy.chat import (
    Tool,
    declared_end_ids,
    end_ids,
    end_of_turn,
    extends,
    special_ids,
    trained_template,
    uses_template,
    with_tools,
    written_prompt,
    written_reply,
)
from node.policy.model_files import tokenizer_file
from protocol.errors import ConfigurationError

FINGERPRINT_BYTES: Final = 16
_MARK: Final = "\ue000"
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LOSSY_DECODERS: Final = frozenset({"WordPiece", "BPEDecoder", "CTC"})
_SHAPING_PARTS: Final = ("normalizer", "pre_tokenizer", "model", "added_tokens")  # what determines text → ids


def load_tokens(folder: Path, chat: ChatMode) -> TokenTable:
    """Returns the tokens of the model in ``folder``. Raises ``ConfigurationError`` for files that cannot be used."""
    tokenizer_file(folder)
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # tokenizers raises bare Exception for a file that it cannot read
        raise ConfigurationError(f"the tokenizer in {folder} does not load: {error}") from error
    return TokenTable(tokenizer, chat=chat, declared=declared_end_ids(folder))


class TokenTable:
    """A tokenizer and the byte string of each of its tokens.

    ``fingerprint``: 16 bytes, equal for two tokenizers exactly if they split text alike, their ids mean the same, and
    the same tokens end a completion. ``vocabulary``: the number of ids, the highest id plus one. ``eos_ids``: the
    tokens that end a completion, at least one; ``eos_id``, the first, is the one to append. Of the ids in ``declared``
    the special tokens are among them; an ordinary token there is a mistake of the model's files and ignored.

    Raises ``ConfigurationError`` for a tokenizer without such a token or whose decoder loses bytes, and for a chat
    template that raises.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, *, chat: ChatMode = "auto", declared: Iterable[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        of_turn = end_of_turn(tokenizer, chat)
        self.uses_chat: Final[bool] = uses_template(tokenizer, chat, of_turn)
        self._special: Final[frozenset[int]] = special_ids(tokenizer)
        declared_ends = self._special.intersection(declared)
        self.eos_ids: Final[tuple[int, ...]] = end_ids(of_turn, tokenizer.eos_token_id, declared_ends)
        serialized: str = tokenizer.backend_tokenizer.to_str()
        definition: dict[str, Any] = json.loads(serialized)
        self._bytes: list[bytes] = _token_bytes(tokenizer, definition, self.eos_ids)
        self.vocabulary: int = len(self._bytes)
        self.fingerprint: Final[bytes] = _fingerprint(self._bytes, definition, self.eos_ids)
        # For text of peers: "<|end|>" written in it stays text and never becomes a control token.
        self._plain = Tokenizer.from_str(serialized)
        self._plain.no_truncation()
        self._plain.no_padding()
        self._plain.encode_special_tokens = True
        self._scaffolds: dict[bool, tuple[str, str]] = {}  # around a user's reply, and around a tool's
        self._replies: dict[bool, tuple[list[int], list[int]]] = {}  # the same as ids
        self._id_of_byte: Final[dict[int, int]] = _byte_ids(self._plain, self._bytes, definition)

    @property
    def eos_id(self) -> int:
        return self.eos_ids[0]

    def within(self, vocabulary: int) -> Self:
        """Returns the tokens that a model with ``vocabulary`` embeddings has.

        Special tokens beyond its embeddings, such as those for images in a model of text, are left out. Raises
        ``ConfigurationError`` if a token of text or one that ends a completion lies beyond.
        """
        if self.vocabulary <= vocabulary:
            return self
        beyond = range(vocabulary, self.vocabulary)
        lost = [i for i in beyond if i in self.eos_ids or (self._bytes[i] and i not in self._special)]
        if lost:
            raise ConfigurationError(
                f"the tokenizer goes beyond the model's {vocabulary} embeddings, with {len(lost)} ids such as "
                f"{lost[0]}: it belongs to another model; use the tokenizer that came with the weights, or resize "
                "the embeddings"
            )
        fitting = copy.copy(self)
        fitting._bytes, fitting.vocabulary = self._bytes[:vocabulary], vocabulary
        return fitting

    def prompt_text(self, text: str, tools: Sequence[Tool] = ()) -> str:
        """Returns what is tokenized for a prompt: the turn that the chat template writes, or the text as it is, each
        with the tools that an answer may call."""
        return written_prompt(self._tokenizer, text, tools) if self.uses_chat else with_tools(text, tools)

    def prompt_ids(self, text: str, tools: Sequence[Tool] = ()) -> list[int]:
        """Returns a prompt's ids, at least one: by the chat template if it is used, otherwise BOS and text."""
        written = self.prompt_text(text, tools)
        ids = list(self._tokenizer(written, add_special_tokens=not self.uses_chat, verbose=False)["input_ids"])
        return ids or [self.eos_id]

    def reply_ids(self, text: str, *, after: int, of_tool: bool = False) -> list[int]:
        """Returns the ids of what is said to the model in reply to a completion that ended with token ``after``, up to
        where its next one begins. They are tokenized alone, so that what was sampled before keeps its ids; control
        tokens written in ``text`` stay text. ``of_tool``: a tool returned it, rather than a user said it.

        By the chat template if it is used, with the end of the model's turn unless ``after`` is that; otherwise on
        lines of its own. Raises ``ConfigurationError`` for a template that writes no reply.
        """
        if not self.uses_chat:
            return self._ids_of_text(f"\n{text}\n")
        if of_tool not in self._replies:
            scaffold = self._around_reply(of_tool)
            front, back = (self._tokenizer(part, add_special_tokens=False)["input_ids"] for part in scaffold)
            self._replies[of_tool] = list(front), list(back)
        front, back = self._replies[of_tool]
        if after in front:
            front = front[front.index(after) + 1 :]
        return [*front, *self._ids_of_text(text), *back]

    def _around_reply(self, of_tool: bool) -> tuple[str, str]:
        if of_tool not in self._scaffolds:
            self._scaffolds[of_tool] = written_reply(self._tokenizer, of_tool=of_tool)
        return self._scaffolds[of_tool]

    @cached_property
    def extends(self) -> bool:
        """Whether a conversation that is written again begins with what the model saw and said (``chat.extends``)."""
        return not self.uses_chat or extends(self._tokenizer)

    def heard_ids(
        self, text: str, tools: Sequence[Tool], said: Sequence[str], *, after: int
    ) -> tuple[tuple[int, ...], bool]:
        """Returns the ids that the model of a conversation reads next, and whether they are all that it reads: where
        the template writes the turns before differently than the model read and said them, it reads all of them anew.
        Otherwise the ids are those of ``reply_ids`` for ``after``, and are appended.

        The conversation began with the prompt ``text``; ``said`` has what the model and its environment said after
        that, in turn. Control tokens written in any of it stay text. A template that raises for what the model or a
        stranger said writes nothing, and the ids are appended.
        """
        if not self.extends:
            with suppress(ConfigurationError):
                before, now = (written_prompt(self._tokenizer, text, tools, each) for each in (said[:-2], said))
                front, back = self._around_reply(bool(tools))
                if now != f"{before}{said[-2]}{front}{said[-1]}{back}":
                    return tuple(self._ids_written_again(text, tools, said)), True
        return tuple(self.reply_ids(said[-1], after=after, of_tool=bool(tools))), False

    def _ids_written_again(self, text: str, tools: Sequence[Tool], said: Sequence[str]) -> list[int]:
        """Returns a conversation as the template writes it. Control tokens in its texts are told from the template's
        own by a mark around them, which is longer than any run of its character there."""
        texts = [text, *said]
        mark = _MARK * (1 + max((len(run) for each in texts for run in re.findall(f"{_MARK}+", each)), default=0))
        control = sorted(filter(None, self.names_of(self._special)), key=len, reverse=True)
        written_out = re.compile("|".join(map(re.escape, control)) or "(?!)")
        first, *rest = (written_out.sub(lambda m: f"{mark}{control.index(m[0])}{mark}", each) for each in texts)
        ids: list[int] = []
        for place, part in enumerate(
            re.split(f"{mark}([0-9]+){mark}", written_prompt(self._tokenizer, first, tools, rest))
        ):
            if place % 2:
                ids += self._ids_of_text(control[int(part)])
            else:
                ids += self._tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def trained_template(self) -> str | None:
        """Returns the chat template that writes turns as prompts and replies are written here; None: the tokenizer's
        own does."""
        if self.uses_chat:
            return trained_template(self._tokenizer, "", None)
        begun, bare = (list(self._tokenizer("a", add_special_tokens=each)["input_ids"]) for each in (True, False))
        begin = begun[: len(begun) - len(bare)] if begun[len(begun) - len(bare) :] == bare else []
        return trained_template(self._tokenizer, "".join(self.names_of(begin)), *self.names_of([self.eos_id]))

    def names_of(self, ids: Iterable[int]) -> list[str]:
        """Returns the tokens as the tokenizer writes them, control tokens too: for people."""
        return [str(self._tokenizer.convert_ids_to_tokens(token_id)) for token_id in ids]

    def text_of(self, ids: Iterable[int]) -> bytes:
        """Returns the tokens' byte strings joined; those that end a completion and unknown ids are empty."""
        return b"".join(self._of(ids))

    def byte_lengths(self, ids: Iterable[int]) -> list[int]:
        """Returns the number of bytes that each token stands for; they sum to ``len(text_of(ids))``."""
        return [len(token) for token in self._of(ids)]

    def knows(self, ids: NDArray[np.int64]) -> bool:
        """Returns whether all of ``ids``, (T,), are among the tokenizer's."""
        return bool(((ids >= 0) & (ids < self.vocabulary)).all())

    def tokenize_completion(self, text: bytes) -> tuple[list[int], list[int]] | None:
        """Returns ids and byte lengths of a completion's text, without a token that ends it.

        None if this tokenizer cannot represent the text exactly: a character is outside its alphabet, or a normaliser
        changes it.
        """
        ids: list[int] = []
        for part in re.split(r"([\udc80-\udcff])", text.decode("utf-8", "surrogateescape")):
            if len(part) == 1 and 0xDC80 <= ord(part) <= 0xDCFF:  # a byte that is not UTF-8
                byte_id = self._id_of_byte.get(ord(part) - 0xDC00)
                if byte_id is None:
                    return None
                ids.append(byte_id)
            elif part:
                ids.extend(self._ids_of_text(part))
        if not set(self.eos_ids).isdisjoint(ids) or self.text_of(ids) != text:
            return None
        return ids, self.byte_lengths(ids)

    def _ids_of_text(self, text: str) -> list[int]:
        """Returns the ids of ``text`` inside other text, without the space that sentencepiece puts in front."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        if self.text_of(ids) == text.encode():
            return ids
        front = "\n"
        front_ids: list[int] = self._plain.encode(front, add_special_tokens=False).ids
        both: list[int] = self._plain.encode(front + text, add_special_tokens=False).ids
        return both[len(front_ids) :] if both[: len(front_ids)] == front_ids else ids

    def _of(self, ids: Iterable[int]) -> Iterator[bytes]:
        table, size = self._bytes, self.vocabulary
        return (table[i] if 0 <= i < size else b"" for i in ids)


def _parts(definition: dict[str, Any], part: str) -> list[dict[str, Any]]:
    """Returns the steps of a tokenizer's part, a sequence flattened; none if the part is absent."""
    step = definition.get(part)
    if step is None:
        return []
    nested = step.get("decoders") or step.get("pretokenizers") or step.get("normalizers")
    return list(nested) if nested else [step]


def _byte_level_alphabet() -> dict[str, int]:
    """Returns GPT-2's table: one printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _is_byte_level(definition: dict[str, Any]) -> bool:
    steps = _parts(definition, "decoder") + _parts(definition, "pre_tokenizer")
    return any(step["type"] == "ByteLevel" for step in steps)


def _token_bytes(tokenizer: PreTrainedTokenizerFast, definition: dict[str, Any], eos_ids: Sequence[int]) -> list[bytes]:
    """Returns the byte string of each id; empty for what ends a completion and for ids without a token."""
    decoders = _parts(definition, "decoder")
    if lossy := [step["type"] for step in decoders if step["type"] in _LOSSY_DECODERS]:
        raise ConfigurationError(
            f"the tokenizer's decoder {lossy[0]} loses spaces, so that its tokens have no bytes of their own: "
            "choose a model with a byte-level, sentencepiece or character tokenizer"
        )
    alphabet = _byte_level_alphabet() if _is_byte_level(definition) else {}
    byte_fallback = bool(definition["model"].get("byte_fallback"))
    spaces = [step["replacement"] for step in decoders if step["type"] == "Metaspace"]
    spaces += [
        step["pattern"].get("String") for step in decoders if step["type"] == "Replace" and step["content"] == " "
    ]
    literal = {token["id"]: token["content"].encode() for token in definition["added_tokens"]}

    def written(token: str) -> bytes:
        if alphabet and all(character in alphabet for character in token):
            return bytes(alphabet[character] for character in token)
        if byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for mark in spaces:
            token = token.replace(mark, " ") if mark else token
        return token.encode()

    vocabulary = tokenizer.get_vocab()
    table = [b""] * (max(vocabulary.values()) + 1)
    for token, token_id in vocabulary.items():
        table[token_id] = literal.get(token_id) or written(token)
    for eos_id in eos_ids:
        table[eos_id] = b""
    return table


def _byte_ids(plain: Tokenizer, table: Sequence[bytes], definition: dict[str, Any]) -> dict[int, int]:
    """Returns, by byte, the ids that stand for single bytes which are not characters of their own (0x80 and up)."""
    if _is_byte_level(definition):
        names = {character: byte for character, byte in _byte_level_alphabet().items() if byte >= 0x80}
    else:
        names = {f"<0x{byte:02X}>": byte for byte in range(0x80, 0x100)}
    found = {byte: plain.token_to_id(name) for name, byte in names.items()}
    return {
        byte: token_id for byte, token_id in found.items() if token_id is not None and table[token_id] == bytes([byte])
    }


def _fingerprint(table: Sequence[bytes], definition: dict[str, Any], eos_ids: Sequence[int]) -> bytes:
    """Returns SHA-256[:16] over ids and their bytes, the parts that split text, and the ids that end a completion."""
    digest = hashlib.sha256(b"starling/tokenizer/1\0")
    for token in table:
        digest.update(len(token).to_bytes(4, "big") + token)
    shaping = {part: definition.get(part) for part in _SHAPING_PARTS}
    digest.update(json.dumps(shaping, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode())
    for eos_id in eos_ids:
        digest.update(eos_id.to_bytes(8, "big"))
    return digest.digest()[:FINGERPRINT_BYTES]
