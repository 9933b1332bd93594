"""Groups of IP addresses that one party can easily hold: where places are scarce, the largest group gives one up first.

Identities cost nothing and addresses cost something, so that fairness is between addresses. No address is special: on a
private network, or behind one NAT, everybody is in one group, and the rules of the caller that do not look at addresses
decide there.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, TypeVar

Item = TypeVar("Item")
Groups = tuple[str, str]
"""(network of a customer or a rented block, one address), the wide group first."""
# Of no use beyond one network. Addresses for documentation are not among them: laboratories use these as public ones.
NOT_PUBLIC: Final = tuple(
    ipaddress.ip_network(block)
    for block in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
        "224.0.0.0/3", "::/127", "fc00::/7", "fe80::/10", "ff00::/8",
    )
)  # fmt: skip


@lru_cache(maxsize=4096)
def groups_of(ip: str) -> Groups:
    """Returns the /24 and the address for IPv4, the /48 and the /64 for IPv6; anything else is a group of its own."""
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
    except ValueError:
        return ip, ip
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    wide, narrow = (24, 32) if address.version == 4 else (48, 64)
    return _network(address, wide), _network(address, narrow)


def most_crowded(items: Iterable[Item], groups: Iterable[Groups]) -> list[Item]:
    """Returns the items of the most crowded wide group, and among these of its most crowded narrow group, in order.

    ``groups`` has one entry for each item. Of groups equally crowded, all items are returned.
    """
    of_items = list(zip(items, groups, strict=True))
    for level in (0, 1):
        sizes = Counter(group[level] for _, group in of_items)
        largest = max(sizes.values(), default=0)
        of_items = [(item, group) for item, group in of_items if sizes[group[level]] == largest]
    return [item for item, _ in of_items]


def _network(address: ipaddress.IPv4Address | ipaddress.IPv6Address, bits: int) -> str:
    return str(ipaddress.ip_network((address, bits), strict=False))


def spread(items: Iterable[Item], groups: Iterable[Groups]) -> list[Item]:
    """Returns all items in another order: one of each wide group, then a second one of each, and so on. Of a wide
    group, one of each narrow group comes first. Otherwise their order stays."""
    of_items = list(zip(items, groups, strict=True))
    for level in (1, 0):
        of_group: Counter[str] = Counter()
        rounds = []
        for item, group in of_items:
            rounds.append((of_group[group[level]], item, group))
            of_group[group[level]] += 1
        of_items = [(item, group) for _, item, group in sorted(rounds, key=lambda entry: entry[0])]
    return [item for item, _ in of_items]


def is_public(ip: str) -> bool:
    """Whether an IP address can belong to one machine on the internet. Anything else than an address does not."""
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return not any(address in block for block in NOT_PUBLIC if block.version == address.version)
