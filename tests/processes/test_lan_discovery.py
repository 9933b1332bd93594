"""Two nodes on one local network, which is two network namespaces joined by a cable, find each other by multicast.

The namespaces belong to the processes in them, so that nothing is left behind however the test ends, and no packet
leaves them. It needs root, or unprivileged user namespaces, and ``ip`` and ``unshare``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hang_guard import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]

NODE = """
import json, os, sys
import trio
from protocol.identity import NodeKey
from swarm.hosts.network_interfaces import machine_ips
from swarm.hosts.libp2p.libp2p_host import Libp2pHost

async def main(ip):
    while ip not in machine_ips():
        await trio.sleep(0.05)
    host = Libp2pHost(NodeKey.generate(), ["/ip4/0.0.0.0/tcp/4001"], lan_discovery=True)
    other_is_done = trio.Event()

    async def note_done(stream):
        other_is_done.set()

    host.handle("/test/done/1", note_done)
    async with host.run():
        while not (heard := host.heard_on_lan()):  # as it is now: who has met us may leave before we say so
            await trio.sleep(0.05)
        peer = await host.connect(heard[0], deadline_seconds=60)
        stream = await host.open_stream(peer, "/test/done/1", deadline_seconds=60)
        await stream.close()
        said = json.dumps({"ip": ip, "peer": host.peer_id, "heard": heard, "met": peer})
        os.write(1, said.encode() + b"\\n")  # whole, since both nodes write into one pipe
        await other_is_done.wait()

trio.run(main, sys.argv[1])
"""

NETWORK = """
set -eu
here=$(readlink /proc/self/ns/net)
for n in 1 2; do
    unshare --net "$PYTHON" -c "$NODE" 10.77.0.$n &
    eval "node$n=$!"
done
trap 'kill $node1 $node2 2>/dev/null || true' EXIT
for node in $node1 $node2; do
    until [ -e /proc/$node/ns/net ] && [ "$(readlink /proc/$node/ns/net)" != "$here" ]; do sleep 0.05; done
done
ip link add cable1 type veth peer name cable2
for n in 1 2; do
    eval "node=\\$node$n"
    ip link set cable$n netns $node
    nsenter --target $node --net ip link set lo up
    nsenter --target $node --net ip address add 10.77.0.$n/24 dev cable$n
    nsenter --target $node --net ip link set cable$n up
done
wait $node1
wait $node2
"""


def _own_network() -> list[str]:
    """The command that gives what follows a network of its own. Fails, rather than skips, where there is none."""
    missing = [tool for tool in ("ip", "unshare", "nsenter") if shutil.which(tool) is None]
    if missing:
        pytest.fail(f"{', '.join(missing)} not found: install iproute2 and util-linux")
    command = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    trial = subprocess.run([*command, "true"], capture_output=True, text=True)
    if trial.returncode != 0:
        pytest.fail(
            f"no network namespace to be had ({trial.stderr.strip()}): run the tests as root, "
            "or allow user namespaces with sysctl kernel.unprivileged_userns_clone=1"
        )
    return command


@pytest.mark.processes
def test_two_nodes_on_one_cable_hear_of_each_other_and_connect() -> None:
    network = subprocess.Popen(
        [*_own_network(), "sh", "-c", NETWORK],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable, "NODE": NODE},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = network.communicate(timeout=HANG_SECONDS)
    finally:
        if network.poll() is None:
            os.killpg(network.pid, 9)
            out, err = network.communicate()
    assert network.returncode == 0, err
    first, second = sorted((json.loads(line) for line in out.splitlines()), key=lambda said: said["ip"])
    assert first["met"] == second["peer"]
    assert second["met"] == first["peer"]
    assert first["heard"] == [f"/ip4/10.77.0.2/tcp/4001/p2p/{second['peer']}"]
    assert second["heard"] == [f"/ip4/10.77.0.1/tcp/4001/p2p/{first['peer']}"]


LISTENER = """
import sys
from swarm.host import LanSwarm
from swarm.hosts.lan import LanDiscovery, hear, hear_hosts

address = "/ip4/10.77.0.1/tcp/4001/p2p/" + sys.argv[1]
swarm = LanSwarm("0f" * 16, "wren")
node = LanDiscovery(sys.argv[1], [address], swarm)
node.start()
heard, seconds = [], 0.5
while not heard:  # on a busy machine questions and answers take their time
    heard, seconds = hear_hosts(seconds, ourselves="somebody else"), 2 * seconds
assert heard == [((address,), swarm)], heard
assert hear(0.5, ourselves=sys.argv[1]) == []
node.stop()
"""


@pytest.mark.processes
def test_whoever_only_listens_hears_of_others_and_not_of_itself() -> None:
    network = (
        "set -eu; ip link set lo up; ip link add lan type veth peer name far; ip link set lan up; ip link set far up; "
        'ip address add 10.77.0.1/24 dev lan; exec "$PYTHON" -c "$LISTENER" 12D3KooWx'
    )
    ended = subprocess.run(
        [*_own_network(), "sh", "-c", network],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable, "LISTENER": LISTENER},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert ended.returncode == 0, ended.stderr
