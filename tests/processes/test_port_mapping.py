"""A node behind a real router, miniupnpd in a network namespace, has it open a port, and peers come through it.

It takes root on Linux to make the namespaces: elsewhere it is not collected. With root it needs miniupnpd
(``apt-get install miniupnpd-nftables``, as ``.ci/run`` does) and fails without it.
"""

from __future__ import annotations

import os
import shutil

import pytest

from scripts.bench.reach_ports import opened

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("method", ["pcp", "upnp"])
def test_a_router_opens_a_port_for_a_node_and_peers_dial_it(method: str) -> None:
    binary = shutil.which("miniupnpd", path=os.environ.get("PATH", "") + ":/usr/sbin")
    assert binary is not None, "miniupnpd is missing: apt-get install miniupnpd-nftables"
    reached, third, held, held_after = opened(method, binary)
    assert reached.unit == "s", "two peers dialled the node"
    assert (third.value, held.value, held_after.value) == (1, 1, 0)
