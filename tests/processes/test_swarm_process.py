"""The swarm process as a process: started, spoken to over its socket, killed, replaced, and ended in every way."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from protocol.errors import TransportError, UnreachableError
from protocol.messages import Heartbeat, PromptRef
from protocol.rollouts import Completion, FinishReason, Group, decode_group
from protocol.weights.dense_weights import ENCODING, Patterns, dense_bytes, dense_parts, encode_dense, open_dense
from protocol.weights.tensor_layout import TensorLayout
from swarm import api
from swarm.averaging.weights_offer import WeightsOffer
from swarm.client import SwarmClient
from swarm.exit_codes import FINAL
from tests.hang_guard import HANG_SECONDS

pytestmark = pytest.mark.processes

FAMILY = bytes(range(16))


class SwarmProcess:
    def __init__(self, home: Path, **settings: object) -> None:
        self.home = home
        self.process = subprocess.Popen(
            [sys.executable, "-m", "swarm.swarm_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        fields = {
            "home": str(home), "swarm_name": "test", "swarm_id": "cd" * 16, "listen": "/ip4/127.0.0.1/tcp/0",
            "lan_discovery": False, "heartbeat_seconds": 0.5, **settings,
        }  # fmt: skip
        self._tell(json.dumps(fields).encode() + b"\n")
        self.client = SwarmClient(home / "swarm.sock", timeout_seconds=HANG_SECONDS)

    def _tell(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def ready(self) -> list[str]:
        """Its addresses, once it is up."""
        assert self.process.stdout is not None
        event = json.loads(self.process.stdout.readline())
        assert event["event"] == "ready"
        return list(event["addresses"])

    def ended(self) -> tuple[int, str]:
        """Exit code and standard error."""
        _, errors = self.process.communicate(timeout=HANG_SECONDS)
        return self.process.returncode, errors.decode()

    def close(self) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=HANG_SECONDS)


Pair = tuple[SwarmProcess, SwarmProcess]


class Processes:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._all: list[SwarmProcess] = []

    def start(self, name: str, **settings: object) -> SwarmProcess:
        process = SwarmProcess(self._directory / name, **settings)
        self._all.append(process)
        return process

    def close(self) -> None:
        for process in self._all:
            process.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    all_processes = Processes(tmp_path)
    yield all_processes
    all_processes.close()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Two that are connected and have told each other what they train; for tests that leave them as they are."""
    with tempfile.TemporaryDirectory(prefix="st-") as root:  # short: a Unix socket's path has few bytes
        both = Processes(Path(root))
        first = both.start("a")
        second = both.start("b", peers=first.ready())
        second.ready()
        for process in (first, second):
            process.client.beat(Heartbeat("n", "s", "m", FAMILY, bytes(16), 1, 1, "learning", 1.0, 0, 0, ()))
        wait_until("each knows the other's family", lambda: knows_its_like(first) and knows_its_like(second))
        yield first, second
        both.close()


@pytest.fixture(scope="module")
def listener() -> Iterator[SwarmProcess]:
    """One that others come to and leave."""
    with tempfile.TemporaryDirectory(prefix="st-") as root:
        alone = Processes(Path(root))
        process = alone.start("a")
        process.ready()
        yield process
        alone.close()


def wait_until(what: str, condition: Callable[[], object]) -> None:
    until = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < until, f"never came true: {what}"
        time.sleep(0.02)


def group(seed: int, tokens: int = 64) -> Group:
    random = np.random.default_rng(seed)
    completions = tuple(
        Completion(
            text=b"ab" * tokens,
            token_ids=random.integers(0, 4000, tokens),
            token_bytes=np.full(tokens, 2, dtype=np.int64),
            logps=-random.random(tokens, dtype=np.float32),
            finish=FinishReason.LENGTH,
            reward=float(index % 2),
        )
        for index in range(8)
    )
    return Group(PromptRef("reverse", 1, bytes(16), seed), bytes(16), bytes(16), 1, completions)


def test_two_processes_meet_share_and_fetch_over_real_sockets(pair: Pair) -> None:
    first, second = pair
    known, (before,) = len(first.client.seen_groups(0, 1000)), peers_of(first, second)
    shared = [group(seed) for seed in range(4)] + [group(99, tokens=30_000)]
    second.client.share(shared)
    wait_until("a has seen all groups", lambda: len(first.client.seen_groups(0, 1000)) == known + 5)
    seen = first.client.seen_groups(0, 1000)[known:]
    wanted = [api.Wanted(s.advert.blob, s.advert.size, (s.peer,)) for s in seen]
    fetched = first.client.fetch(wanted, deadline_seconds=HANG_SECONDS)
    assert [f.reason for f in fetched] == [None] * 5
    for original, outcome in zip(shared, fetched, strict=True):
        assert outcome.is_here
        arrived = decode_group(outcome.read())
        assert arrived.prompt == original.prompt
        np.testing.assert_array_equal(arrived.completions[3].token_ids, original.completions[3].token_ids)
    assert wanted[4].size > 256 * 1024
    first.client.judge(seen[0].peer, seen[0].advert.blob, api.Judgement.USED)
    (peer,) = peers_of(first, second)
    assert (peer.groups_announced - before.groups_announced, peer.groups_used - before.groups_used) == (5, 1)


def has_seen(process: SwarmProcess, groups: int) -> bool:
    return len(process.client.seen_groups(0, 1000)) == groups


def test_processes_on_both_kinds_of_host_share_with_each_other_and_one_ends_with_its_daemon(
    processes: Processes,
) -> None:
    py = processes.start("py", host="py")
    go = processes.start("go", host="go", peers=py.ready())
    go.ready()
    wait_until("they are connected", lambda: peers_of(py, go) and peers_of(go, py))
    for seed, (giving, taking) in enumerate(((py, go), (go, py))):
        giving.client.share([group(seed), group(90 + seed, tokens=30_000)])
        wait_until("all groups are seen", partial(has_seen, taking, 2))
        wanted = [api.Wanted(s.advert.blob, s.advert.size, (s.peer,)) for s in taking.client.seen_groups(0, 1000)]
        fetched = taking.client.fetch(wanted, deadline_seconds=HANG_SECONDS)
        assert [outcome.reason for outcome in fetched] == [None, None]
    threads = Path(f"/proc/{go.process.pid}/task").iterdir()
    (daemon,) = " ".join((thread / "children").read_text() for thread in threads).split()
    os.kill(int(daemon), signal.SIGKILL)
    code, errors = go.ended()
    assert code not in FINAL  # the supervisor starts it again
    assert "the daemon p2pd ended (status -9)" in errors


LAYOUT = TensorLayout.of({"bias": (1001,), "matrix": (700, 1000)})


def peers_of(process: SwarmProcess, other: SwarmProcess) -> list[api.PeerStatus]:
    """What it knows of the other one: one entry, or none."""
    peer = other.client.status().peer
    return [known for known in process.client.peers() if known.peer == peer]


def knows_its_like(process: SwarmProcess) -> bool:
    return any(p.connected and p.heartbeat and p.heartbeat.family == FAMILY for p in process.client.peers())


def patterns(seed: int) -> list[Patterns]:
    random = np.random.default_rng(seed)
    values = [random.standard_normal(size, np.float32) for size in LAYOUT.sizes]
    return [(each.view(np.uint32) >> 16).astype(np.uint16) for each in values]


def average(process: SwarmProcess, weights: list[Patterns]) -> api.AverageReply:
    """As a learner does: with a client of its own."""
    with SwarmClient(process.home / "swarm.sock") as client:
        known = api.KnownPartners(learnt=1e6)
        ours = WeightsOffer(dense_parts(LAYOUT, weights), FAMILY, LAYOUT, ENCODING, 3, known)
        return client.average(ours, deadline_seconds=HANG_SECONDS)


def test_two_processes_average_over_real_sockets_and_each_gets_the_others_weights_bit_for_bit(pair: Pair) -> None:
    before = [committed(process) for process in pair]
    weights = [patterns(1), patterns(2)]
    with ThreadPoolExecutor(2) as learners:
        averaged = list(learners.map(average, pair, weights))
    for process, reply, theirs in zip(pair, averaged, reversed(weights), strict=True):
        assert reply.path is not None
        for found, tensor in zip(open_dense(Path(reply.path).read_bytes(), LAYOUT), theirs, strict=True):
            np.testing.assert_array_equal(found, tensor)
        status = process.client.status().averaging
        assert not status.running and status.last is not None
        assert status.last.sent_bytes == status.last.received_bytes == dense_bytes(LAYOUT)
    assert [committed(process) for process in pair] == [count + 1 for count in before]


def committed(process: SwarmProcess) -> int:
    return process.client.status().averaging.exchanges.get("committed", 0)


def test_a_learner_that_dies_while_it_averages_frees_its_swarm_process_for_the_next(pair: Pair) -> None:
    first, second = pair
    with ThreadPoolExecutor(2) as learners:
        leaving = SwarmClient(first.home / "swarm.sock")
        ours = WeightsOffer(encode_dense(LAYOUT, patterns(1)), FAMILY, LAYOUT, ENCODING, 3, api.KnownPartners())
        answer = learners.submit(leaving.average, ours, deadline_seconds=HANG_SECONDS)
        wait_until("it runs", lambda: first.client.status().averaging.running)
        with pytest.raises(TransportError, match="runs already"):
            average(first, patterns(1))
        leaving.close()
        wait_until("it was cancelled", lambda: not first.client.status().averaging.running)
        with pytest.raises(UnreachableError):
            answer.result(HANG_SECONDS)
        partners = list(learners.map(average, (first, second), (patterns(1), patterns(2))))
    assert [reply.partner for reply in partners] == [second.client.status().peer, first.client.status().peer]


def test_the_process_imports_nothing_heavy(processes: Processes) -> None:
    heavy_modules = ("torch", "transformers", "numpy.random")
    code = f"import sys, swarm.swarm_process; print([m for m in {heavy_modules} if m in sys.modules])"
    heavy = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=HANG_SECONDS)
    assert heavy.stdout.strip() == b"[]"


@pytest.mark.parametrize("how", ["terminated", "interrupted", "input closed", "told to leave"])
def test_it_says_goodbye_and_exits_with_0_however_it_is_asked_to_end(
    listener: SwarmProcess, processes: Processes, how: str
) -> None:
    second = processes.start("b", peers=listener.client.status().addresses)
    second.ready()
    peer = second.client.status().peer

    def is_present() -> bool:
        return any(p.peer == peer and p.heartbeat_age_seconds is not None for p in listener.client.peers())

    wait_until("it has heard of b", is_present)
    if how == "terminated":
        second.process.terminate()
    elif how == "interrupted":
        second.process.send_signal(signal.SIGINT)
    elif how == "input closed":
        assert second.process.stdin is not None
        second.process.stdin.close()
        second.process.stdin = None
    else:
        second.client.leave("told to")
    code, _ = second.ended()
    assert code == 0
    wait_until("it knows that b has left", lambda: not is_present())
    assert not (second.home / "swarm.sock").exists()


def test_after_a_kill_its_socket_is_replaced_its_identity_and_blobs_stay_and_the_client_finds_it(
    processes: Processes,
) -> None:
    first = processes.start("a")
    addresses = first.ready()
    first.client.share([group(1)])
    before = first.client.status()
    first.process.kill()
    first.ended()
    assert (first.home / "swarm.sock").exists()
    with pytest.raises(UnreachableError, match="is the node up"):
        first.client.status()
    again = processes.start("a")
    assert again.ready()[0].rpartition("/")[2] == addresses[0].rpartition("/")[2]
    after = first.client.status()
    assert after.peer == before.peer
    assert after.store_bytes == before.store_bytes > 0


def test_a_restarted_peer_is_found_again_and_its_new_announcements_are_no_replays(processes: Processes) -> None:
    first = processes.start("a")
    second = processes.start("b", peers=first.ready())
    second.ready()
    wait_until("connected", lambda: second.client.status().connected_peers == 1)
    second.client.share([group(1)])
    wait_until("seen", lambda: len(first.client.seen_groups(0, 10)) == 1)
    second.process.kill()
    second.ended()
    back = processes.start("b", peers=first.client.status().addresses)
    back.ready()
    wait_until("connected again", lambda: back.client.status().connected_peers == 1)
    back.client.share([group(2)])
    wait_until("seen again", lambda: len(first.client.seen_groups(0, 10)) == 2)
    assert first.client.status().rejected.get("replay", 0) == 0


def test_a_second_process_on_one_data_directory_is_refused_and_the_first_goes_on(
    pair: Pair, processes: Processes
) -> None:
    first, _ = pair
    code, errors = processes.start(str(first.home)).ended()
    assert code == 78
    assert "another swarm process answers" in errors
    assert first.client.status().connected_peers == 1


def test_a_port_in_use_is_named_with_a_remedy(processes: Processes) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, errors = processes.start("a", listen=f"/ip4/127.0.0.1/tcp/{port}").ended()
    assert code == 69
    assert f"/ip4/127.0.0.1/tcp/{port}" in errors
    assert "another port" in errors


def test_a_foreign_key_file_is_refused_and_left_as_it_is(processes: Processes, tmp_path: Path) -> None:
    key = tmp_path / "a" / "identity.key"
    key.parent.mkdir()
    key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    key.chmod(0o600)
    code, errors = processes.start("a").ended()
    assert code == 77
    assert str(key) in errors
    assert key.read_text() == "-----BEGIN OPENSSH PRIVATE KEY-----\n"


@pytest.mark.parametrize("wrong", [{"swarm_id": "zz"}, {"store_byte": 5}, {"peers": ["10.0.0.1:4001"]}])
def test_settings_that_cannot_be_used_are_refused_by_name(processes: Processes, wrong: dict[str, object]) -> None:
    code, errors = processes.start("a", **wrong).ended()
    assert code == 78
    assert next(iter(wrong)) in errors or "10.0.0.1:4001" in errors
    assert "Traceback" not in errors


def test_only_the_owner_may_use_the_socket_and_garbage_on_it_harms_nobody(pair: Pair) -> None:
    first, _ = pair
    path = first.home / "swarm.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for garbage in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x03abc", b"\x00\x00", os.urandom(500)):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(HANG_SECONDS)
            client.connect(str(path))
            client.sendall(garbage)
            with suppress(ConnectionResetError, BrokenPipeError):  # closed on the first wrong length
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass
    assert first.client.status().connected_peers == 1


def test_clients_are_served_side_by_side_while_one_waits_for_a_peer_that_hangs(pair: Pair) -> None:
    first, second = pair
    known = len(first.client.seen_groups(0, 1000))
    second.client.share([group(1001)])
    wait_until("seen", lambda: len(first.client.seen_groups(0, 1000)) == known + 1)
    (seen,) = first.client.seen_groups(0, 1000)[known:]
    second.process.send_signal(signal.SIGSTOP)
    try:
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.settimeout(HANG_SECONDS)
            waiting.connect(str(first.home / "swarm.sock"))
            body = msgspec.msgpack.encode(
                api.Fetch((api.Wanted(seen.advert.blob, seen.advert.size, (seen.peer,)),), HANG_SECONDS)
            )
            waiting.sendall(len(body).to_bytes(4, "big") + body)
            assert first.client.status().peer != seen.peer
            waiting.setblocking(False)
            with pytest.raises(BlockingIOError):
                waiting.recv(1)
            second.process.send_signal(signal.SIGCONT)
            waiting.settimeout(HANG_SECONDS)
            assert waiting.recv(4) != b""
    finally:
        second.process.send_signal(signal.SIGCONT)


def test_a_client_without_a_service_says_so(tmp_path: Path) -> None:
    with (
        SwarmClient(tmp_path / "swarm.sock") as client,
        pytest.raises(TransportError, match="no swarm process answers"),
    ):
        client.status()


def test_a_client_of_a_service_that_hangs_gives_up_at_its_deadline(pair: Pair) -> None:
    first, _ = pair
    first.process.send_signal(signal.SIGSTOP)
    try:
        hasty = SwarmClient(first.home / "swarm.sock", timeout_seconds=0.2)
        with hasty, pytest.raises(TransportError, match="did not answer within"):
            hasty.status()
    finally:
        first.process.send_signal(signal.SIGCONT)
