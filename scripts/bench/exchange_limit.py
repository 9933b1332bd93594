"""What arithmetic allows an exchange of weights where all peers share one machine, and what share of it was reached.

    python -m scripts.bench.exchange_limit [--json]

Each of N peers sends and receives one blob over its own link, and all N share the machine's cores:

    link        bits of the blob / (rate · payload share)     frames, headers and encryption take the rest of a link
    cores       N · processor seconds of a peer / cores
    limit       max(link, cores): less is not possible even where nobody ever waits
    all-reduce  2 (N − 1)/N · bits of the weights / rate      that an average in one group of N must send

so on links alone a dense exchange in pairs is sooner than an all-reduce of as many bits a weight by no more than
2 (N − 1)/N. Seconds, processor seconds and bytes are those that ``scripts.bench.averaging_exchange --against hivemind``
printed at commit aa4869e on two quiet cores, N = 8, 10 M weights, 50 Mbit/s each way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scripts.bench.common.reporting import Figure, figures_parser, report

PEERS: Final = 8
CORES: Final = 2
PARAMETERS: Final = 10_000_000
BITS_A_SECOND: Final = 50e6
PAYLOAD_SHARE: Final = 0.956  # docs/hosts.md
FLOAT16_SECONDS: Final = 8.3  # hivemind's averager


@dataclass(frozen=True)
class Exchange:
    name: str
    bits: float  # of a blob
    processor_seconds: float  # of a peer, swarm process and learner
    seconds: float

    @property
    def link_seconds(self) -> float:
        return self.bits / (BITS_A_SECOND * PAYLOAD_SHARE)

    @property
    def cores_seconds(self) -> float:
        return PEERS * self.processor_seconds / CORES

    @property
    def limit_seconds(self) -> float:
        return max(self.link_seconds, self.cores_seconds)


EXCHANGES: Final = (
    Exchange("dense", 16.0 * PARAMETERS, 1.2, 6.3),
    Exchange("compressed", 32.0 * PARAMETERS / 172, 0.3, 1.46),
)


def all_reduce_seconds(bits_a_weight: float) -> float:
    """Returns what the links need for an average in one group, payload alone."""
    return 2 * (PEERS - 1) / PEERS * bits_a_weight * PARAMETERS / BITS_A_SECOND


def figures() -> list[Figure]:
    found = [Figure("all-reduce of float16: links", all_reduce_seconds(16), "s", "lower")]
    for each in EXCHANGES:
        found += [
            Figure(f"{each.name}: links", each.link_seconds, "s", "lower"),
            Figure(f"{each.name}: two cores", each.cores_seconds, "s", "lower"),
            Figure(f"{each.name}: measured", each.seconds, "s", "lower"),
            Figure(f"{each.name}: share of the limit", each.limit_seconds / each.seconds, "", "higher", "≥ .8"),
            Figure(
                f"{each.name}: sooner than hivemind's float16, limit on these cores",
                FLOAT16_SECONDS / each.limit_seconds,
                "×",
                "higher",
            ),
            Figure(
                f"{each.name}: sooner than float16's links, limit on links alone",
                all_reduce_seconds(16) / each.link_seconds,
                "×",
                "higher",
            ),
        ]
    return found


def main() -> None:
    report("exchange_limit", figures(), as_json=figures_parser(__doc__).parse_args().json)


if __name__ == "__main__":
    main()
