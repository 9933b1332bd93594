"""A node behind a real router, miniupnpd in a network namespace, has it open a port, and peers come through it."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from scripts.bench.common.slow_network import NoSlowNetworkError
from scripts.bench.reach_ports import opened

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("method", ["pcp", "upnp"])
def test_a_router_opens_a_port_for_a_node_and_peers_dial_it(method: str) -> None:
    binary = shutil.which("miniupnpd", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if sys.platform != "linux" or os.geteuid() != 0 or binary is None:
        pytest.skip("needs Linux, root and miniupnpd (apt-get install miniupnpd-nftables)")
    try:
        reached, third, held, held_after = opened(method, binary)
    except NoSlowNetworkError as error:
        pytest.skip(f"no network namespaces here: {error}")
    assert reached.unit == "s", "two peers dialled the node"
    assert (third.value, held.value, held_after.value) == (1, 1, 0)
