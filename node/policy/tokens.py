"""The bytes that each token of a tokenizer stands for.

Guarantee: ``text_of(ids)`` is the exact concatenation of the tokens' byte strings, so that byte offsets of one
tokenizer can be compared with those of another. Three notations are supported: byte-level merges (GPT-2's table of 256
printable characters), sentencepiece (``▁`` for a space, ``<0x0A>`` for a byte), and plain text (characters or words). A
special token stands for its literal text, except end-of-sequence, which stands for nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from protocol.errors import ConfigurationError

FINGERPRINT_BYTES: Final = 16
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LOSSY_DECODERS: Final = frozenset({"WordPiece", "BPEDecoder", "CTC"})
_SHAPING_PARTS: Final = ("normalizer", "pre_tokenizer", "model", "added_tokens")  # what determines text → ids


class TokenTable:
    """A tokenizer and the byte string of each of its tokens.

    ``fingerprint``: 16 bytes, equal for two tokenizers exactly if they split text alike and their ids mean the same.
    ``vocabulary``: the number of ids, the highest id plus one. ``eos_id``: the end-of-sequence token.
    Raises ``ConfigurationError`` for a tokenizer without end-of-sequence, or whose decoder loses bytes.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        if tokenizer.eos_token_id is None:
            raise ConfigurationError(
                "the tokenizer has no end-of-sequence token: set eos_token in tokenizer_config.json"
            )
        self._tokenizer = tokenizer
        self.eos_id: Final[int] = int(tokenizer.eos_token_id)
        serialized: str = tokenizer.backend_tokenizer.to_str()
        definition: dict[str, Any] = json.loads(serialized)
        self._bytes: Final[list[bytes]] = _token_bytes(tokenizer, definition, self.eos_id)
        self.vocabulary: Final[int] = len(self._bytes)
        self.fingerprint: Final[bytes] = _fingerprint(self._bytes, definition, self.eos_id)
        # For text of peers: "<|end|>" written in it stays text and never becomes a control token.
        self._plain = Tokenizer.from_str(serialized)
        self._plain.no_truncation()
        self._plain.no_padding()
        self._plain.encode_special_tokens = True
        self._id_of_byte: Final[dict[int, int]] = _byte_ids(self._plain, self._bytes, definition)

    def prompt_ids(self, text: str) -> list[int]:
        """Returns a prompt's ids, at least one: by the chat template if there is one, otherwise BOS and text."""
        if self._tokenizer.chat_template:
            turn = [{"role": "user", "content": text}]
            written = self._tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
            ids = list(self._tokenizer(str(written), add_special_tokens=False)["input_ids"])
        else:
            ids = list(self._tokenizer(text)["input_ids"])
        return ids or [self.eos_id]

    def text_of(self, ids: Iterable[int]) -> bytes:
        """Returns the tokens' byte strings joined; end-of-sequence and ids that the tokenizer lacks are empty."""
        return b"".join(self._of(ids))

    def byte_lengths(self, ids: Iterable[int]) -> list[int]:
        """Returns the number of bytes that each token stands for; they sum to ``len(text_of(ids))``."""
        return [len(token) for token in self._of(ids)]

    def tokenize_completion(self, text: bytes) -> tuple[list[int], list[int]] | None:
        """Returns ids and byte lengths of a completion's text, without end-of-sequence.

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
        if self.eos_id in ids or self.text_of(ids) != text:
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


def _token_bytes(tokenizer: PreTrainedTokenizerFast, definition: dict[str, Any], eos_id: int) -> list[bytes]:
    """Returns the byte string of each id; empty for end-of-sequence and for ids without a token."""
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


def _fingerprint(table: Sequence[bytes], definition: dict[str, Any], eos_id: int) -> bytes:
    """Returns SHA-256[:16] over ids and their bytes, the parts that split text, and the end-of-sequence id."""
    digest = hashlib.sha256(b"starling/tokenizer/1\0")
    for token in table:
        digest.update(len(token).to_bytes(4, "big") + token)
    shaping = {part: definition.get(part) for part in _SHAPING_PARTS}
    digest.update(json.dumps(shaping, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode())
    digest.update(eos_id.to_bytes(8, "big"))
    return digest.digest()[:FINGERPRINT_BYTES]
