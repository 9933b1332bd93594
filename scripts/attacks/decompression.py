"""What one rollout group costs a learner that opens it: blobs that are small, and made to take much time or memory.

    python -m scripts.attacks.decompression [--json]

Each blob is one that a stranger may send under the protocol's limits, with an advert as large as the limits allow; the
worst is reported. Time is CPU time of ``decode_group``, the best of several runs; memory is the peak of what Python
and numpy allocate meanwhile. Then 32 such blobs are opened one after another, as a round does, and the memory beyond
the groups that are kept is reported: once as advertised, once where the adverts claim answers of twelve tokens.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import zstandard

from protocol import limits
from protocol.errors import ProtocolError
from protocol.rollouts import GROUP_MAGIC, Group, decode_group
from scripts.bench.common.reporting import Figure, figures_parser, report

RUNS = 5
ROUND_GROUPS = 32
SHORT_TOKENS = 12 * 4  # advertised for four answers of a task that allows twelve tokens
MIB = 2**20
_HEADER = zstandard.FRAME_HEADER + b"\x00\x38"  # no stated size, a window of 128 KiB


def content(lengths: list[int], bytes_a_token: int, further: list[object]) -> bytes:
    """The columns of a group whose ids and texts are zeros; ``further`` are fields of a newer version."""
    tokens, count = sum(lengths), len(lengths)
    texts = [bytes_a_token * length for length in lengths]
    prompt = ["chain_sum", 1, bytes(16), 42]
    columns = [prompt, bytes(16), bytes(16), 7, b"\x01" * count, bytes(4 * count), lengths, texts, bytes(sum(texts))]
    columns += [bytes(3 * tokens), bytes([bytes_a_token]) * tokens, bytes(2 * tokens), *further]
    return msgspec.msgpack.encode(columns)


def in_short_blocks(raw: bytes, most_bytes: int) -> bytes:
    """A zstd frame of as many blocks as ``most_bytes`` hold, most of them a single repeated byte."""
    blocks, position = [], 0
    while position < len(raw):
        run = 1
        while run < 8 and raw[position : position + run + 1] == raw[position : position + 1] * (run + 1):
            run += 1
        blocks.append((run << 3 | 2).to_bytes(3, "little") + raw[position : position + 1])
        position += run
    padding = (most_bytes - len(_HEADER) - 4 * len(blocks) - 3) // 3
    return _HEADER + b"".join(blocks) + bytes(3) * max(0, padding) + b"\x01\x00\x00"


def blobs() -> dict[str, bytes]:
    """By what is extreme in them. Every one is within the limits or refused by them."""
    shares = {"many completions": limits.COMPLETIONS_PER_GROUP, "long completions": 4}
    made = {}
    for name, count in shares.items():
        lengths = [min(limits.COMPLETION_TOKENS, limits.GROUP_TOKENS // count)] * count
        most_text = min(limits.GROUP_BYTES - limits.GROUP_OTHER_BYTES, count * limits.COMPLETION_TEXT_BYTES)
        room = (limits.GROUP_BYTES - limits.GROUP_OTHER_BYTES) // sum(lengths) - 6
        made[name] = zstandard.compress(content(lengths, min(room, most_text // sum(lengths)), []))
    small = content([limits.GROUP_TOKENS // 64] * 64, 0, [])
    made["many short blocks"] = in_short_blocks(small, limits.GROUP_BLOB_BYTES - len(GROUP_MAGIC))
    made["many values"] = zstandard.compress(content([1], 0, [[]] * (limits.MESSAGE_VALUES - 64)))
    whole = (128 * 1024 << 3 | 2).to_bytes(3, "little") + b"\x00"
    made["endless"] = _HEADER + whole * ((limits.GROUP_BLOB_BYTES - 64) // 4)
    return {name: GROUP_MAGIC + frame for name, frame in made.items()}


@dataclass(frozen=True)
class Cost:
    cpu_seconds: float
    peak_bytes: int
    kept_bytes: int


def opened(blob: bytes, tokens: int) -> Group | None:
    try:
        return decode_group(blob, tokens=tokens)
    except ProtocolError:
        return None


def cost(action: Callable[[], object]) -> Cost:
    seconds = []
    for _ in range(RUNS):
        began = time.process_time()
        action()
        seconds.append(time.process_time() - began)
    tracemalloc.start()
    kept = action()
    kept_bytes, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return Cost(min(seconds), peak_bytes, kept_bytes)


def figures() -> list[Figure]:
    made = blobs()
    costs = {name: cost(lambda blob=blob: opened(blob, limits.GROUP_TOKENS)) for name, blob in made.items()}  # type: ignore[misc]
    short = max(
        (cost(lambda blob=blob: opened(blob, SHORT_TOKENS)) for blob in made.values()),  # type: ignore[misc]
        key=lambda each: each.cpu_seconds,
    )
    largest = max(costs, key=lambda name: costs[name].kept_bytes)
    whole_round = cost(lambda: [opened(made[largest], limits.GROUP_TOKENS) for _ in range(ROUND_GROUPS)])
    short_round = cost(lambda: [opened(made[largest], SHORT_TOKENS) for _ in range(ROUND_GROUPS)])
    return [
        *(Figure(f"{name}: CPU", each.cpu_seconds * 1e3, "ms", "lower", "≤ 20") for name, each in costs.items()),
        *(Figure(f"{name}: peak", each.peak_bytes / MIB, "MiB", "lower", "≤ 32") for name, each in costs.items()),
        Figure("smallest blob that is kept at its largest", len(made[largest]), "B", "higher"),
        Figure("kept of one group, at most", costs[largest].kept_bytes / MIB, "MiB", "lower"),
        Figure(
            "a round beyond what it keeps",
            (whole_round.peak_bytes - whole_round.kept_bytes) / MIB,
            "MiB",
            "lower",
            "≤ 32",
        ),
        Figure("short answers advertised: CPU of the worst", short.cpu_seconds * 1e3, "ms", "lower"),
        Figure("short answers advertised: a round's peak", short_round.peak_bytes / MIB, "MiB", "lower"),
    ]


def main() -> None:
    parser = figures_parser(__doc__)
    arguments = parser.parse_args()
    report("decompression", figures(), as_json=arguments.json)


if __name__ == "__main__":
    main()
