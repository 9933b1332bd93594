"""Bytes and time of a rollout group on the wire, against the same group in plain MessagePack.

    python -m scripts.bench.wire [--groups 20] [--json]

The group is 8 completions of 64 tokens. Ours is everything that a receiver gets: the sealed announcement with its
one advert, and the blob. Plain is MessagePack of dicts: token ids as a list of integers, log-probabilities as a
list of float64, text as a string, the same metadata, neither compressed nor signed, and without the tokens' byte
lengths, which ours includes.

Two groups are measured. "typical": reasoning answers over a vocabulary of 151,936 whose ids grow with rarity, each
log-probability that of a token sampled from a softmax. "worst": every id and every log-probability uniformly random.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from protocol.identity import NodeKey
from protocol.messages import PromptRef, RolloutAdvert
from protocol.rollouts import GROUP_MAGIC, Completion, FinishReason, Group, advert_of, decode_group, encode_group
from protocol.wire import open_announcement, seal
from scripts.bench.common.reporting import Figure, figures_parser, report

COMPLETIONS = 8
TOKENS = 64
VOCABULARY = 151_936
SWARM_ID = bytes(range(16))
NOW_SECONDS = 1_790_000_000.0

SENTENCES = (
    "First, we compute the sum of {a} and {b}, which is {c}.",
    "So {a} plus {b} equals {c}.",
    "Let me check: {c} minus {a} is {b}, as expected.",
    "The problem asks for the number of legs of {a} chickens and {b} cows.",
    "Wait, I should subtract {b} from {a} instead.",
    "Each of the {a} boxes holds {b} apples, so there are {c} in total.",
    "We can rewrite this as {a} * {b} and simplify.",
    "Next, move the digit {b} to the left and carry {a}.",
    "Therefore the answer is {c}.",
    "If the list is sorted, then {a} comes before {b}.",
    "That means the remaining part has {b} elements, not {c}.",
    "Hmm, the second condition excludes {a}, because it is not a multiple of {b}.",
)


def reasoning_pieces(rng: np.random.Generator) -> list[str]:
    """Returns ``TOKENS`` pieces of an answer, as byte-pair tokenizers cut: words with their space, single digits."""
    text = ""
    while len(pieces := re.findall(r" ?[A-Za-z]+|\d|[^A-Za-z\d]", text)) < TOKENS:
        a, b = (int(n) for n in rng.integers(1, 200, size=2))
        text += SENTENCES[rng.integers(len(SENTENCES))].format(a=a, b=b, c=a + b) + " "
    return pieces[:TOKENS]


def token_id_of(piece: str) -> int:
    """Returns an id like one of byte-pair training: digits and signs first, longer pieces among the later merges."""
    if len(piece) == 1:
        return ord(piece) % 256
    spread = np.random.default_rng(int.from_bytes(piece.encode(), "big") % 2**63).random()
    return min(VOCABULARY - 1, int(256 * 4 ** (len(piece) / 2.5) * (1 + spread)))


def sampled_logps(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Returns (count,) log-probabilities of tokens drawn from softmaxes of normal logits, some flat, most peaked."""
    logits = rng.normal(size=(count, 1024)) * rng.uniform(1.0, 8.0, size=(count, 1))
    logps = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    drawn = [rng.choice(1024, p=np.exp(row) / np.exp(row).sum()) for row in logps]
    sampled: NDArray[np.float32] = logps[np.arange(count), drawn].astype(np.float32)
    return sampled


def typical_completion(rng: np.random.Generator) -> Completion:
    pieces = reasoning_pieces(rng)
    return Completion(
        text="".join(pieces).encode(),
        token_ids=np.array([token_id_of(piece) for piece in pieces]),
        token_bytes=np.array([len(piece) for piece in pieces]),
        logps=sampled_logps(rng, TOKENS),
        finish=FinishReason.LENGTH,
        reward=float(rng.integers(2)),
    )


def worst_completion(rng: np.random.Generator) -> Completion:
    token_bytes = rng.integers(1, 8, size=TOKENS)
    return Completion(
        text=bytes(rng.integers(32, 127, size=int(token_bytes.sum()), dtype=np.uint8)),
        token_ids=rng.integers(0, VOCABULARY, size=TOKENS),
        token_bytes=token_bytes,
        logps=-rng.uniform(0.0, 32.0, size=TOKENS).astype(np.float32),
        finish=FinishReason.LENGTH,
        reward=float(rng.random()),
    )


def group_of(completion: Callable[[np.random.Generator], Completion], seed: int) -> Group:
    rng = np.random.default_rng(seed)
    prompt = PromptRef("basic_arithmetic", 1, rng.bytes(16), int(rng.integers(2**62)))
    return Group(prompt, rng.bytes(16), rng.bytes(16), 1234, tuple(completion(rng) for _ in range(COMPLETIONS)))


def plain_message(group: Group) -> bytes:
    """Returns the group as a program without an optimised format would send it."""
    return msgspec.msgpack.encode(
        {
            "task": group.prompt.task,
            "version": group.prompt.version,
            "config_hash": group.prompt.config_hash,
            "seed": group.prompt.seed,
            "family": group.family,
            "tokenizer": group.tokenizer,
            "policy_version": group.policy_version,
            "completions": [
                {
                    "text": c.text.decode(),
                    "token_ids": c.token_ids.tolist(),
                    "logps": c.logps.tolist(),
                    "finish": str(c.finish),
                    "reward": c.reward,
                }
                for c in group.completions
            ],
        }
    )


def sealed_advert(key: NodeKey, group: Group, blob: bytes) -> bytes:
    body = RolloutAdvert(group.family, group.tokenizer, group.policy_version, (advert_of(group, blob),))
    return seal(key, swarm_id=SWARM_ID, sequence=1, time_seconds=NOW_SECONDS, body=body)


def microseconds(action: Callable[[], object], repeats: int) -> float:
    """Returns the time of the fastest of ``repeats`` runs, the one least delayed by other processes."""
    fastest = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        fastest = min(fastest, time.perf_counter() - started)
    return fastest * 1e6


def sizes(key: NodeKey, kind: str, groups: list[Group], *, bar: str | None) -> list[Figure]:
    blobs = [encode_group(group) for group in groups]
    adverts = [sealed_advert(key, group, blob) for group, blob in zip(groups, blobs, strict=True)]
    blob_bytes = float(np.mean([len(blob) for blob in blobs]))
    advert_bytes = float(np.mean([len(advert) for advert in adverts]))
    plain_bytes = float(np.mean([len(plain_message(group)) for group in groups]))
    return [
        Figure(f"{kind}: plain MessagePack", plain_bytes, "bytes", "lower"),
        Figure(f"{kind}: sealed advert", advert_bytes, "bytes", "lower"),
        Figure(f"{kind}: blob", blob_bytes, "bytes", "lower"),
        Figure(
            f"{kind}: advert and blob, of plain", 100 * (advert_bytes + blob_bytes) / plain_bytes, "%", "lower", bar
        ),
    ]


def alternatives(groups: list[Group], repeats: int) -> list[Figure]:
    """Measures zstd without a block for each column on the same groups: bytes, and time to compress."""
    contents = [zstandard.decompress(encode_group(group)[len(GROUP_MAGIC) :]) for group in groups]
    figures = [Figure("typical: uncompressed columns", float(np.mean([len(c) for c in contents])), "bytes", "lower")]
    for level in (3, 6, 19):
        compressor = zstandard.ZstdCompressor(level=level)
        size = float(np.mean([len(GROUP_MAGIC) + len(compressor.compress(content)) for content in contents]))
        took = microseconds(partial(compressor.compress, contents[0]), repeats)
        figures.append(Figure(f"typical: blob in one zstd block, level {level}", size, "bytes", "lower"))
        figures.append(Figure(f"zstd in one block, level {level}", took, "µs", "lower"))
    return figures


def times(key: NodeKey, group: Group, repeats: int) -> list[Figure]:
    blob = encode_group(group)
    raw = sealed_advert(key, group, blob)

    def opened() -> object:
        return open_announcement(raw, swarm_id=SWARM_ID, now_seconds=NOW_SECONDS)

    return [
        Figure("encode a group", microseconds(lambda: encode_group(group), repeats), "µs", "lower"),
        Figure("decode and check a group", microseconds(lambda: decode_group(blob), repeats), "µs", "lower"),
        Figure("seal its advert", microseconds(lambda: sealed_advert(key, group, blob), repeats), "µs", "lower"),
        Figure("open and verify its advert", microseconds(opened, repeats), "µs", "lower"),
    ]


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--groups", type=int, default=20, help="groups of each kind that sizes are averaged over")
    parser.add_argument("--repeats", type=int, default=300, help="runs of which the fastest is reported")
    options = parser.parse_args()
    key = NodeKey(bytes(32))
    typical = [group_of(typical_completion, seed) for seed in range(options.groups)]
    worst = [group_of(worst_completion, seed) for seed in range(options.groups)]
    figures = [
        *sizes(key, "typical", typical, bar="≤ 40 %"),
        *sizes(key, "worst", worst, bar=None),
        *alternatives(typical, options.repeats),
        *times(key, typical[0], options.repeats),
    ]
    report("wire", figures, as_json=options.json)


if __name__ == "__main__":
    main()
