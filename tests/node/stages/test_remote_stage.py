"""A stage behind its protocol computes what it computes in process, and is lost whole where anything is wrong."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import Tensor

from node.engines.process.channel import SocketChannel
from node.fit.stages.plan import Pace
from node.stages.link import Call, Inputs, StageLink
from node.stages.remote_stage import RemoteStage
from node.stages.tensor_frames import receive_message, send_message, shape_of
from protocol import limits
from protocol.errors import StageLostError, UnreachableError
from protocol.streams import stage_messages as messages
from protocol.streams.stage_messages import StageAnswer
from tests.node.stages.linear_stage import EXPECTED, QUICK, WELCOME, WIDTH, LinearStage, ready, stage_here


class Listening(RemoteStage):
    """Counts what a stage says while it computes."""

    def __init__(self, *arguments: Any) -> None:
        self.beats = threading.Semaphore(0)
        super().__init__(*arguments)

    def _check_progress(self) -> None:
        super()._check_progress()
        self.beats.release()


def hidden(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(seed))


def learnt(link: StageLink) -> list[Tensor]:
    """A micro-batch of two prompts with three rows, forward and backward."""
    inputs = Inputs(torch.ones(3, 9, dtype=torch.bool), torch.arange(5).expand(3, 5), torch.tensor([0, 0, 1]), 4)
    found = [
        link.forward(Call(7, 0), hidden(2, 4), Inputs(recompute=True, chunk_tokens=2), True)(),
        link.forward(Call(7, 1), hidden(3, 5, seed=1), inputs, True)(),
        link.backward(Call(7, 1), hidden(3, 5, seed=2))(),
        link.backward(Call(7, 0), hidden(2, 4, seed=3))(),
    ]
    return found + [each for _, each in sorted(link.gradients().items())]


def sampled(link: StageLink) -> list[Tensor]:
    """Two batches, of which one grows while the other does."""
    found = []
    for batch in (0, 5):
        link.begin(batch)
        found.append(link.prefill(hidden(2, 4, seed=batch), torch.tensor([0, 2]), batch))
    for batch in (0, 5):
        link.join([0, 1, 1], batch)
        found += [link.step(hidden(3, 1, seed=4), batch), link.step(hidden(3, 1, seed=5), batch)]
    link.leave([0], [2], 2, 5)
    found += [link.step(hidden(3, 1, seed=6), 0), link.step(hidden(2, 1, seed=6), 5)]
    link.release()
    return found


def test_every_request_gives_bit_for_bit_what_the_stage_gives_in_process() -> None:
    alone = LinearStage()
    ready(alone)
    with stage_here() as here:
        link = here.link()
        assert (link.facts.memory_bytes, link.facts.pace) == (10**9, Pace(1e9, 2e9))
        ready(link)
        for work in (learnt, sampled, learnt):
            for one, other in zip(work(link), work(alone), strict=True):
                assert torch.equal(one, other)
        assert messages.HoldLayers(1, 4) in here.told
        link.forward(Call(9, 0), hidden(2, 4), Inputs(), True)()
        link.forget()
        assert link.gradients() == {}
        assert link.sent_bytes > 4000 and link.received_bytes > 4000
        assert here.session.computed_tokens == 2 * (8 + 15) + 2 * (8 + 3 + 3) + 3 + 2 + 8


class SlowChannel(SocketChannel):
    """Carries ``RATE`` bytes a second and each request and its answer in ``DELAY`` seconds, by a clock of its own."""

    RATE, DELAY = 6e6, 0.02

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.now = 0.0

    def send(self, body: bytes, *, seconds: float | None) -> None:
        is_tensor = len(body) == 4 or len(body) > 1000
        self.now += len(body) / self.RATE + (0 if is_tensor else 2 * self.DELAY)
        super().send(body, seconds=seconds)

    def receive(self, *, max_bytes: int, seconds: float | None) -> bytes:
        body = super().receive(max_bytes=max_bytes, seconds=seconds)
        self.now += len(body) / self.RATE
        return body


def test_what_a_link_carries_is_measured() -> None:
    with stage_here(owners_channel_of=SlowChannel, beat_seconds=60.0) as here:
        channel: Any = here.channel
        found = RemoteStage(channel, EXPECTED, QUICK, clock=lambda: channel.now).facts.link
    assert found.bytes_a_second == pytest.approx(SlowChannel.RATE, rel=0.02)
    assert found.delay_seconds == pytest.approx(SlowChannel.DELAY, rel=0.02)
    assert channel.now < 2.0


def test_requests_of_several_threads_wait_for_the_stage_and_each_gets_its_own_answer() -> None:
    with stage_here() as here, ThreadPoolExecutor(4) as threads:
        link = here.link()
        ready(link)
        here.stage.may_compute.clear()
        asked = [
            threads.submit(link.forward, Call(number, 0), hidden(1, 3, seed=number), Inputs(), True)
            for number in range(4)
        ]
        here.stage.may_compute.set()
        alone = LinearStage()
        ready(alone)
        for number, each in enumerate(asked):
            expected = alone.forward(Call(number, 0), hidden(1, 3, seed=number), Inputs(), True)
            assert torch.equal(each.result()(), expected())


@pytest.mark.parametrize("tokens", [1, limits.STAGE_PART_BYTES, limits.STAGE_PART_BYTES + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_of_any_dtype_and_length_arrive_as_they_were(tokens: int, dtype: torch.dtype) -> None:
    one, other = (SocketChannel(each) for each in socket.socketpair())
    sent = [
        torch.linspace(-3, 3, tokens).reshape(1, tokens, 1).to(dtype),
        torch.arange(tokens)[None] % 3 == 0,
        torch.arange(tokens)[None],
        torch.zeros(0, dtype=torch.int64),
    ]
    message = messages.PassForward(1, 1, True, False, None, 0, *map(shape_of, sent))
    with ThreadPoolExecutor(1) as thread:
        counted = thread.submit(send_message, one, message, sent, seconds=20.0)
        found, tensors, received = receive_message(other, messages.decode_stage_request, seconds=20.0)
        assert found == message and counted.result() == received
    one.close()
    other.close()
    assert all(torch.equal(*pair) and pair[0].dtype == pair[1].dtype for pair in zip(sent, tensors, strict=True))


def test_a_stage_that_dies_is_lost_to_every_call_that_waits_and_to_all_that_come() -> None:
    with stage_here() as here:
        link = here.link()
        ready(link)
        here.stage.may_compute.clear()
        asked = [link.forward(Call(number, 0), hidden(1, 3), Inputs(), True) for number in range(3)]
        here.die()
        for answer in asked:
            with pytest.raises(StageLostError):
                answer()
        with pytest.raises(StageLostError):
            link.begin()
        here.stage.may_compute.set()


def test_a_stage_that_says_nothing_is_lost_and_one_that_computes_for_long_is_not() -> None:
    with stage_here(beat_seconds=1000.0) as here:
        link = here.link(patience=replace(QUICK, silence=0.3))
        with pytest.raises(StageLostError):
            ready(link)
            here.stage.may_compute.clear()
            link.forward(Call(0, 0), hidden(1, 3), Inputs(), True)()
        here.stage.may_compute.set()
    with stage_here() as here:
        link = Listening(here.channel, EXPECTED, replace(QUICK, silence=0.5))
        ready(link)
        here.stage.may_compute.clear()
        answer = link.forward(Call(0, 0), hidden(1, 3), Inputs(), True)
        for _ in range(20):  # which takes longer than silence is borne
            assert link.beats.acquire(timeout=20.0)
        here.stage.may_compute.set()
        assert answer().shape == (1, 3, WIDTH)


def test_a_stage_that_hangs_while_it_beats_is_lost_in_the_end() -> None:
    ahead = 0.0
    with stage_here() as here:
        link = RemoteStage(here.channel, EXPECTED, QUICK, clock=lambda: time.monotonic() + ahead)
        ready(link)
        here.stage.may_compute.clear()
        answer = link.forward(Call(0, 0), hidden(1, 3), Inputs(), True)
        ahead = QUICK.answer
        with pytest.raises(StageLostError, match=r"waited for 20 s"):
            answer()
        here.stage.may_compute.set()


def test_another_model_or_version_is_lost_at_the_hello() -> None:
    for expected in (replace(EXPECTED, family=bytes(16)), replace(EXPECTED, layers=7), replace(EXPECTED, width=9)):
        with stage_here() as here, pytest.raises(StageLostError, match="--model"):
            here.link(expected)
    with stage_here(welcome=structs.replace(WELCOME, minor=1)) as here, pytest.raises(StageLostError, match="install"):
        here.link()
    with stage_here() as here:
        send_message(here.channel, messages.StageHello(2, 0), [], seconds=20.0)
        answer, _, _ = receive_message(here.channel, messages.decode_stage_answer, seconds=20.0)
        assert isinstance(answer, messages.StageRefused) and answer.reason == "version"


@pytest.mark.parametrize(
    ("reason", "fails"), [("memory", MemoryError("no room")), ("configuration", None)], ids=["memory", "layers"]
)
def test_what_a_stage_cannot_do_is_said_and_the_next_owner_finds_it_ready(reason: str, fails: Exception | None) -> None:
    with stage_here() as here:
        link = here.link()
        ready(link)
        here.stage.fails = fails
        with pytest.raises(StageLostError, match=reason):
            link.forward(Call(0, 0), hidden(1, 3), Inputs(), True)()
            link.hold(range(3, 6))
        here.thread.join()
        assert not here.raised


def test_a_bug_of_the_stage_ends_its_session_with_the_error_itself() -> None:
    with stage_here() as here:
        link = here.link()
        ready(link)
        here.stage.fails = AssertionError("ours")
        with pytest.raises(StageLostError):
            link.forward(Call(0, 0), hidden(1, 3), Inputs(), True)()
        here.thread.join()
        assert [type(each) for each in here.raised] == [AssertionError]


def told(link: StageLink, tell: Callable[[], None]) -> None:
    """What needs no answer is refused where the next one is awaited."""
    tell()
    link.gradients()


FALSE: dict[str, Any] = {
    "a call that is not under way": lambda link: link.backward(Call(0, 0), hidden(1, 4))(),
    "a number that is not finite": lambda link: link.forward(Call(0, 0), hidden(1, 2) / 0, Inputs(), True)(),
    "hidden states that are no numbers": lambda link: link.step(torch.ones(1, 1, WIDTH, dtype=torch.int64)),
    "a mask of numbers": lambda link: link.forward(Call(0, 0), hidden(1, 4), Inputs(torch.ones(1, 4)), True)(),
    "factors in another dtype": lambda link: link.load({"1.A": torch.ones(WIDTH, 2).bfloat16()}),
    "a row beyond all": lambda link: told(link, lambda: link.join([limits.STAGE_ROWS])),
    "a batch beyond all": lambda link: told(link, lambda: link.begin(limits.STAGE_BATCHES)),
}


@pytest.mark.parametrize("name", FALSE)
def test_a_request_that_cannot_be_is_refused_and_does_not_bring_the_stage_down(name: str) -> None:
    with stage_here() as here:
        link = here.link()
        ready(link)
        with pytest.raises(StageLostError, match="refused"):
            FALSE[name](link)
        here.thread.join()
        assert not here.raised


FALSE_ANSWERS: dict[str, tuple[StageAnswer, list[Tensor]]] = {
    "of another shape": (messages.StageTensor(shape_of(hidden(1, 2))), [hidden(1, 2)]),
    "of another dtype": (messages.StageTensor(shape_of(hidden(1, 3).bfloat16())), [hidden(1, 3).bfloat16()]),
    "that is not finite": (messages.StageTensor(shape_of(hidden(1, 3))), [hidden(1, 3) / 0]),
    "of another kind": (messages.StageDone(), []),
}


@contextmanager
def answered_by(answer: StageAnswer, tensors: list[Tensor]) -> Iterator[RemoteStage]:
    """A link to a stage that gives this answer to the first request that is no probe."""
    ours, theirs = (SocketChannel(each) for each in socket.socketpair())

    def serve() -> None:
        receive_message(theirs, messages.decode_stage_request, seconds=20.0)
        send_message(theirs, WELCOME, [], seconds=20.0)
        while True:
            request, probe, _ = receive_message(theirs, messages.decode_stage_request, seconds=20.0)
            if not isinstance(request, messages.ProbeLink):
                break
            send_message(theirs, messages.StageTensor(request.probe), probe, seconds=20.0)
        send_message(theirs, answer, tensors, seconds=20.0)

    with ThreadPoolExecutor(1) as thread:
        serving = thread.submit(serve)
        yield RemoteStage(ours, EXPECTED, QUICK)
        serving.result()
    theirs.close()


@pytest.mark.parametrize("name", FALSE_ANSWERS)
def test_a_false_answer_loses_the_stage(name: str) -> None:
    with answered_by(*FALSE_ANSWERS[name]) as link, pytest.raises(StageLostError):
        link.step(hidden(1, 3))


def test_an_answer_of_another_kind_to_what_needs_none_loses_the_stage() -> None:
    with answered_by(messages.StageTensor(shape_of(hidden(1, 3))), [hidden(1, 3)]) as link:
        link.begin()
        with pytest.raises(StageLostError, match="told something"):
            link.gradients()


@pytest.mark.parametrize("body", [b"", b"\xc1", bytes(2000)], ids=["nothing", "rubbish", "zeros"])
def test_rubbish_ends_the_connection_alone(body: bytes) -> None:
    with stage_here() as here:
        here.channel.send(body, seconds=20.0)
        answer, _, _ = receive_message(here.channel, messages.decode_stage_answer, seconds=20.0)
        assert isinstance(answer, messages.StageRefused) and answer.reason == "malformed"
        with pytest.raises(UnreachableError):
            here.channel.receive(max_bytes=100, seconds=20.0)
        here.thread.join()
        assert not here.raised
