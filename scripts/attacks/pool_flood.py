"""Honest groups that stay in the swarm process's pool while strangers flood it with adverts.

    python -m scripts.attacks.pool_flood [--json]

Eight honest senders announce 32 groups each. Then, each time in a pool of its own: eight full messages of five
identities; 2,000 messages, each of a new identity; every honest blob claimed by another sender before its owner
announces it. Honest senders are once those whose claims held before, once strangers as connected as the attackers.
CPU is that of the pool for one message of the flood.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from protocol import limits
from protocol.messages import GroupAdvert, PromptRef, RolloutAdvert
from scripts.bench.common.reporting import Figure, figures_parser, report
from swarm.announcements.crowding import Standing
from swarm.announcements.group_pool import GroupPool

NOW_SECONDS = 1_790_000_000.0
HONEST = 8
GROUPS = 32
NEW_IDENTITIES = 2_000


def message(first: int, count: int, completions: int) -> RolloutAdvert:
    """One announcement of groups numbered from ``first``."""
    groups = tuple(
        GroupAdvert(
            number.to_bytes(32, "big"),
            2000,
            PromptRef("chain_sum", 1, bytes(16), number),
            (1.0,) * completions,
            (8,) * completions,
            (-0.5,) * completions,
        )
        for number in range(first, first + count)
    )
    return RolloutAdvert(bytes(16), bytes(16), 1, groups)


HONEST_MESSAGES = [(f"honest {n}", message(GROUPS * n, GROUPS, 4)) for n in range(HONEST)]


def flood(messages: int, identities: int) -> list[tuple[str, RolloutAdvert]]:
    full = limits.GROUPS_PER_ADVERT
    return [
        (f"sybil {n % identities}", message(10**6 + full * n, full, limits.COMPLETIONS_PER_GROUP))
        for n in range(messages)
    ]


def kept(messages: Iterable[tuple[str, RolloutAdvert]], *, honest: Standing) -> tuple[float, float]:
    """Returns the share of the honest groups that is in the pool at the end, and the mean CPU seconds of a message."""
    pool = GroupPool(lambda peer: honest if peer.startswith("honest") else Standing.STRANGER)
    taken = 0
    began = time.process_time()
    for peer, advert in messages:
        taken += 1
        pool.add(peer, advert, NOW_SECONDS)
    seconds = time.process_time() - began
    listed = sum(seen.peer.startswith("honest") for seen in pool.after(0, 10**6, NOW_SECONDS))
    return listed / (HONEST * GROUPS), seconds / taken


def figures() -> list[Figure]:
    few, many = flood(8, 5), flood(NEW_IDENTITIES, NEW_IDENTITIES)
    thefts = [(f"thief {peer}", advert) for peer, advert in HONEST_MESSAGES]
    made = []
    for words, honest in (("proven", Standing.PROVEN), ("strangers", Standing.STRANGER)):
        of_few, _ = kept([*HONEST_MESSAGES, *few], honest=honest)
        of_many, cpu_seconds = kept([*HONEST_MESSAGES, *many], honest=honest)
        of_thefts, _ = kept([*thefts, *HONEST_MESSAGES], honest=honest)
        made += [
            Figure(f"{words}: kept beside 8 messages of 5 identities", of_few, "share", "higher", "≥ 0.9"),
            Figure(f"{words}: kept beside 2,000 new identities", of_many, "share", "higher"),
            Figure(f"{words}: kept though claimed by others first", of_thefts, "share", "higher", "1"),
            Figure(f"{words}: CPU of one message", cpu_seconds * 1e3, "ms", "lower"),
        ]
    return made


def main() -> None:
    parser = figures_parser(__doc__)
    arguments = parser.parse_args()
    report("pool_flood", figures(), as_json=arguments.json)


if __name__ == "__main__":
    main()
