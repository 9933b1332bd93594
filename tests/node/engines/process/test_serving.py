"""What an engine refuses, and that a refusal changes nothing; where its connection ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from node.engines.encoded_weights import EncodedWeights
from node.engines.process.channel import SocketChannel
from node.engines.process.engine_child import EngineChild
from node.engines.process.engine_process import accepted
from node.engines.process.engine_setup import EngineSetup
from node.engines.process.remote_engine import ModelExpected, RemoteEngine
from node.kernels.weight_diff_kernels import patterns_of, weights_hash_fast
from node.policy.policy import Policy
from node.policy.weight_layout import layout_of
from protocol import limits
from protocol.errors import EngineLostError, IntegrityError, UnreachableError
from protocol.streams import engine_messages as messages
from protocol.streams.engine_batches import Sampled, SamplingBatch, Start, generate_message
from protocol.streams.engine_messages import EngineAnswer, EngineRequest, decode_engine_answer
from protocol.weights.dense_weights import encode_dense
from tests.node.engines.process.hosted import QUICK, HostedHere

Load = Callable[..., Policy]
WAIT_SECONDS = 60.0  # a hang guard
NOBODY = 65534


class Client:
    def __init__(self, run: HostedHere) -> None:
        self.channel = run.connect(WAIT_SECONDS)

    def ask(self, *requests: EngineRequest) -> EngineAnswer:
        """Sends requests of which the last is answered."""
        for request in requests:
            self.channel.send(msgspec.msgpack.encode(request), seconds=WAIT_SECONDS)
        return decode_engine_answer(self.channel.receive(max_bytes=limits.ENGINE_ANSWER_BYTES, seconds=WAIT_SECONDS))

    def polled_to_the_end(self) -> messages.EngineProgress:
        """Returns the last answer of a generation."""
        while True:
            answer = self.progress(60_000)
            if not answer.running and not answer.left:
                return answer

    def progress(self, wait_milliseconds: int) -> messages.EngineProgress:
        answer = self.ask(messages.Poll(wait_milliseconds))
        assert isinstance(answer, messages.EngineProgress), answer
        return answer

    def refusal(self, *requests: EngineRequest) -> str:
        answer = self.ask(*requests)
        assert isinstance(answer, messages.Refused), answer
        return answer.reason


HELLO = messages.Hello(messages.ENGINE_MAJOR, 99)
BATCH = SamplingBatch((Start(0, (5, 6, 7), 2, 20),), 1, 1.0, 3, 4, None)


@pytest.fixture
def run(load_policy: Load, tmp_path: Path) -> Iterator[HostedHere]:
    hosted = HostedHere(load_policy("qwen3", dtype="bfloat16"), files=tmp_path)
    yield hosted
    hosted.kill()


def dense(policy: Policy) -> EncodedWeights:
    layout = layout_of(policy.trainable())
    tensors = [policy.trainable()[name].detach().bfloat16().contiguous() for name in layout.names]
    return EncodedWeights(weights_hash_fast(layout, tensors), encode_dense(layout, patterns_of(tensors)))


def loading(version: int, weights: EncodedWeights) -> list[EngineRequest]:
    return [messages.Load(version, weights.target, len(weights.blob)), messages.WeightsPart(weights.blob)]


def test_each_request_in_its_wrong_place_is_refused_with_its_reason(run: HostedHere, load_policy: Load) -> None:
    client, generate, poll = Client(run), generate_message(BATCH), messages.Poll(0)
    assert client.refusal(messages.Poll(0)) == "first_hello"
    assert client.refusal(messages.Hello(2, 0)) == "version"
    assert isinstance(client.ask(HELLO), messages.Welcome)
    assert client.refusal(poll) == "idle"
    assert client.refusal(generate) == "no_weights"
    weights = dense(load_policy("qwen3", dtype="bfloat16"))
    assert client.ask(*loading(4, weights)) == messages.EngineDone()
    assert client.ask(messages.Sleep()) == messages.EngineDone()
    assert client.refusal(generate) == "asleep"
    assert client.refusal(*loading(5, weights)) == "asleep"
    assert client.ask(messages.AskHealth(False)) == messages.Health(4, weights.target, "asleep", 0)
    assert client.ask(messages.Wake()) == messages.EngineDone()
    assert client.ask(messages.Interrupt()) == messages.EngineDone()
    assert client.ask(generate) == messages.EngineDone()
    for early in (generate, messages.Sleep(), messages.AskHealth(True)):
        assert client.refusal(early) == "busy"
    assert client.refusal(*loading(5, weights)) == "busy"
    answer = client.polled_to_the_end()
    assert (answer.version, answer.weights, answer.running, answer.left) == (4, weights.target, False, 0)
    assert client.ask(messages.AskHealth(True)) == messages.Health(4, weights.target, "idle", answer.steps)
    assert client.ask(messages.EndEngine()) == messages.EngineDone()
    with pytest.raises(UnreachableError):
        client.ask(poll)


def test_a_batch_that_does_not_suit_the_model_is_refused_and_the_next_is_sampled(run: HostedHere) -> None:
    client = Client(run)
    client.ask(HELLO)
    client.ask(*loading(1, dense(run.engine._policy)))
    for start, reason in ((Start(0, (5, 40), 1, 4), "request"), (Start(0, (5,), 1, 96), "configuration")):
        assert client.ask(generate_message(msgspec_replaced(start))) == messages.EngineDone()
        assert client.refusal(messages.Poll(60_000)) == reason
    client.ask(generate_message(BATCH))
    assert client.polled_to_the_end().complete == 1


def test_an_engine_loads_and_samples_on_the_thread_on_which_it_was_started(run: HostedHere) -> None:
    started_on = run.computing.submit(threading.get_ident).result()
    used: list[int] = []

    def sample(batch: SamplingBatch, enough: Callable[[int], bool]) -> list[Sampled]:
        used.append(threading.get_ident())
        return [(np.array([5]), np.array([-1.0], np.float32))] * 2

    run.engine.samples = sample
    load = run.engine.load

    def loaded(version: int, weights: EncodedWeights) -> None:
        used.append(threading.get_ident())
        load(version, weights)

    run.engine.load = loaded  # type: ignore[method-assign]
    client = Client(run)
    client.ask(HELLO)
    client.ask(*loading(1, dense(run.engine._policy)))
    client.ask(generate_message(BATCH))
    client.polled_to_the_end()
    assert used == [started_on, started_on]


def msgspec_replaced(start: Start) -> SamplingBatch:
    return SamplingBatch((start,), 1, 1.0, 3, 4, None)


def test_long_completions_are_handed_over_in_several_answers(run: HostedHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ENGINE_PROGRESS_BYTES", 100)
    client = Client(run)
    client.ask(HELLO)
    client.ask(*loading(1, dense(run.engine._policy)))
    client.ask(generate_message(SamplingBatch((Start(0, (5, 6, 7), 5, 10),), 1, 1.0, 3, 8, None)))
    answers = [client.progress(60_000)]
    while answers[-1].running or answers[-1].left:
        answers.append(client.progress(60_000))
    assert b"".join(each.which for each in answers)[::4] == bytes(range(5))
    assert max(len(each.token_ids) for each in answers) <= 100 / 2  # 8 bytes of ENGINE_PROGRESS_BYTES are a token of 4


def test_weights_that_are_not_what_they_should_be_leave_the_others_in_place(run: HostedHere) -> None:
    client, weights = Client(run), dense(run.engine._policy)
    client.ask(HELLO)
    client.ask(*loading(1, weights))
    assert client.refusal(*loading(2, EncodedWeights(bytes(32), weights.blob))) == "integrity"
    assert client.refusal(*loading(2, EncodedWeights(weights.target, b"rubbish"))) == "integrity"
    health = client.ask(messages.AskHealth(True))
    assert isinstance(health, messages.Health) and (health.version, health.weights) == (1, weights.target)


def test_memory_that_runs_out_in_loading_or_waking_is_answered_and_whole_weights_are_taken_afterwards(
    run: HostedHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, weights = Client(run), dense(run.engine._policy)
    client.ask(HELLO)
    client.ask(*loading(1, weights))

    def full(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    with monkeypatch.context() as patch:
        patch.setattr(run.engine._engine._decoder, "refresh", full)
        assert client.refusal(*loading(2, weights)) == "memory"
    assert client.refusal(generate_message(BATCH)) == "no_weights"
    assert client.ask(messages.Sleep()) == messages.EngineDone()
    with monkeypatch.context() as patch:
        patch.setattr(run.engine, "wake", full)
        assert client.refusal(messages.Wake()) == "memory"
        assert client.refusal(generate_message(BATCH)) == "asleep"
    assert client.ask(messages.Wake()) == messages.EngineDone()
    assert client.ask(*loading(2, weights)) == messages.EngineDone()
    client.ask(generate_message(BATCH))
    assert client.polled_to_the_end().version == 2


def test_files_outside_of_the_directory_and_those_that_are_none_are_refused(run: HostedHere, tmp_path: Path) -> None:
    client, weights = Client(run), dense(run.engine._policy)
    client.ask(HELLO)
    (tmp_path / "whole").write_bytes(weights.blob)
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    for path in (
        "/etc/passwd",
        f"{tmp_path}/../passwd",
        *(f"{tmp_path}/{n}" for n in ("gone", "empty", "link", "pipe")),
    ):
        assert client.refusal(messages.LoadFile(1, weights.target, path)) == "no_files"
    assert client.ask(messages.LoadFile(1, weights.target, f"{tmp_path}/whole")) == messages.EngineDone()


def test_an_engine_elsewhere_takes_no_files(load_policy: Load) -> None:
    run = HostedHere(load_policy("qwen3"))
    client = Client(run)
    client.ask(HELLO)
    assert client.refusal(messages.LoadFile(1, bytes(32), "/etc/passwd")) == "no_files"
    run.kill()


@pytest.mark.parametrize(
    "requests",
    [
        [messages.WeightsPart(b"x")],
        [messages.Load(1, bytes(32), 3), messages.Poll(0)],
        [messages.Load(1, bytes(32), 1), messages.WeightsPart(b"xx")],
    ],
)
def test_parts_that_do_not_follow_a_load_end_the_connection(run: HostedHere, requests: list[EngineRequest]) -> None:
    client = Client(run)
    client.ask(HELLO)
    assert client.refusal(*requests) == "malformed"
    with pytest.raises(UnreachableError):
        client.ask(messages.Poll(0))


def test_a_refused_whole_update_reaches_the_learner_as_an_integrity_error(run: HostedHere, tmp_path: Path) -> None:
    policy, engine = run.engine._policy, run.engine
    expected = ModelExpected(policy.family, engine.layout, engine.vocabulary, policy.tokens.eos_ids)
    remote = RemoteEngine(run.connect(WAIT_SECONDS), expected, QUICK, files=tmp_path)
    with pytest.raises(IntegrityError):
        remote.load(1, EncodedWeights(bytes(32), dense(policy).blob))
    remote.load(1, dense(policy))
    remote.sleep()
    assert remote.health(measure=True).weights == dense(policy).target
    assert not list(tmp_path.iterdir())
    remote.stop(seconds=WAIT_SECONDS)
    with pytest.raises(EngineLostError, match="gone"):
        remote.health()


def setup_in(folder: Path) -> EngineSetup:
    return EngineSetup(socket=str(folder / "engine.sock"), files=str(folder), policy={}, seed=0, merge_adapters=True)


def stand_in(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


@pytest.mark.processes
@pytest.mark.parametrize(
    ("code", "words"),
    [("raise SystemExit(3)", "exit code 3"), ("import os; os.kill(os.getpid(), 9)", "signal 9")],
)
def test_a_death_at_the_start_is_told(tmp_path: Path, code: str, words: str) -> None:
    child = EngineChild(setup_in(tmp_path), stand_in(code))
    with pytest.raises(EngineLostError, match=words) as lost:
        child.connect(WAIT_SECONDS)
    child.end()
    assert lost.value.reason == "not_started"


@pytest.mark.processes
def test_a_hang_at_the_start_is_told_and_the_process_can_be_killed(tmp_path: Path) -> None:
    child = EngineChild(setup_in(tmp_path), stand_in("import time; time.sleep(1000)"))
    with pytest.raises(EngineLostError, match=r"did not answer within 0\.2 s"):
        child.connect(0.2)
    child.kill()
    assert child.exit_code == -9


@pytest.mark.processes
def test_a_socket_of_another_user_is_refused_by_the_learner(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents:
        if folder.owner() == tmp_path.owner() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    code = (
        f"import socket, sys, os\n{'os.setuid(65534)' if os.geteuid() == 0 else ''}\n"
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print('up', flush=True)\n"
        "s.accept(); input()"
    )
    child = EngineChild(setup_in(tmp_path), stand_in("import time; time.sleep(1000)"))
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "engine.sock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None and other.stdout.readline() == b"up\n"
    with pytest.raises(EngineLostError, match="another process or user") as lost:
        child.connect(WAIT_SECONDS)
    assert lost.value.reason == "not_started"
    other.kill()
    other.communicate()
    child.kill()


def test_an_engine_serves_its_parent_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, came = tmp_path / "engine.sock", []
    expected = [1, os.getpid()]

    def serve() -> None:
        came.append(accepted(path, os.getpid()))

    monkeypatch.setattr("node.engines.process.engine_process.is_process", lambda connection, pid: len(expected) == 0)
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    connections = []
    while expected:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(path))
        except OSError:
            connection.close()
            continue
        assert connection.recv(1) == b""  # refused
        connection.close()
        expected.pop()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(path))
    connections.append(SocketChannel(connection))
    thread.join(WAIT_SECONDS)
    assert len(came) == 1 and path.stat().st_mode & 0o777 == 0o600
    came[0].close()
    connections[0].close()
