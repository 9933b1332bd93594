"""The swarm of one experiment: every node's real swarm process, composed on simulated hosts, in virtual time.

``SimulatedSwarm.member(name)`` gives a learner what ``swarm.client.SwarmClient`` does, without the socket: requests and
answers are those of ``swarm.api``, announcements are signed, gossiped and checked, blobs are stored as files and
fetched in verified chunks, and bytes are counted at the hosts.

Time passes in the network only during a request: its loop runs on one thread, which blocks until the next request.
``pass_time`` lets time pass. Requests of one node at a time give the same run on every machine.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import anyio
from anyio.abc import TaskGroup
from trio.testing import MockClock

from protocol.messages import GroupAdvert, Heartbeat, StateAdvert
from protocol.rollouts import Group, advert_of, encode_group
from protocol.weights.tensor_layout import TensorLayout
from swarm import api
from swarm.averaging.weights_difference import Difference, measure_difference
from swarm.averaging.weights_offer import WeightsOffer
from swarm.hosts.simulated.network import SimulatedNetwork
from swarm.service import SwarmService
from swarm.settings import ServiceSettings

EPOCH: Final = 1_700_000_000.0  # Unix time at which every experiment begins
MEETING_SECONDS: Final = 15.0  # virtual, until the members know each other before the first round
SWARM_ID: Final = "5e" * 16
T = TypeVar("T")
_Command = tuple[Callable[[], Awaitable[Any]], "Future[Any]"]


class SimulatedSwarm:
    """A context manager; inside it, ``member`` returns each learner's side. Methods may be called from any thread."""

    def __init__(self, names: Sequence[str], folder: Path, seed: int) -> None:
        self._names, self._folder, self._seed = tuple(names), folder, seed
        self._network = SimulatedNetwork(seed)
        self._clock = MockClock(autojump_threshold=0)
        self._commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._services: dict[str, SwarmService] = {}
        self._tasks: TaskGroup
        self._ended: Future[None] = Future()
        self._began = self._clock.current_time()
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.pass_time(MEETING_SECONDS)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._commands.put(None)
        self._thread.join()
        if error is None:
            self._ended.result()

    def now_seconds(self) -> float:
        """Returns the Unix time in the network, for the clock of every node."""
        return EPOCH + self._clock.current_time() - self._began

    def pass_time(self, seconds: float) -> None:
        """Lets the network run for ``seconds`` of virtual time."""
        self.ask(lambda: anyio.sleep(seconds))

    def part(self) -> None:
        """From now on nothing that a member sends arrives: every member is alone."""
        self.ask(self._silence_all)

    def member(self, name: str) -> SwarmMember:
        return SwarmMember(self, self._services[name])

    def sent_bytes(self, name: str) -> int:
        """Returns all bytes that a member's host has sent, announcements and blobs."""
        return self._services[name].host.traffic().sent_bytes

    def begin(self, call: Callable[[], Awaitable[T]]) -> Future[T]:
        """Starts ``call`` in the network's loop; it continues whenever time passes there."""
        answer: Future[T] = Future()
        self.ask(lambda: self._begin(call, answer))
        return answer

    async def _silence_all(self) -> None:
        for host in self._network.hosts():
            self._network.silence(host)

    async def _begin(self, call: Callable[[], Awaitable[T]], answer: Future[T]) -> None:
        self._tasks.start_soon(_answered, call, answer)

    def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """Runs ``call`` in the network's loop and returns its result; virtual time passes there as it needs."""
        answer: Future[T] = Future()
        self._commands.put((call, answer))
        while True:
            try:
                return answer.result(timeout=1.0)
            except TimeoutError:
                if self._ended.done() and not answer.done():
                    self._ended.result()
                    raise RuntimeError("the simulated network has ended") from None

    def _run(self) -> None:
        try:
            anyio.run(self._main, backend="trio", backend_options={"clock": self._clock})
            self._ended.set_result(None)
        except BaseException as error:  # noqa: BLE001  raised again where the answer is awaited
            self._ended.set_exception(error)

    async def _main(self) -> None:
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            for name in self._names:
                service = self._service(self._network, name)
                self._services[name] = service
                tasks.start_soon(service.run)
                await service.started.wait()
            while (command := self._commands.get()) is not None:  # blocks the loop on purpose: no time passes
                call, answer = command
                await _answered(call, answer)
            tasks.cancel_scope.cancel()

    def _service(self, network: SimulatedNetwork, name: str) -> SwarmService:
        home = self._folder / name
        home.mkdir(parents=True)
        first = next(iter(self._services.values()), None)
        settings = ServiceSettings(
            home=str(home),
            swarm_name="experiment",
            swarm_id=SWARM_ID,
            name=name,
            peers=() if first is None else (first.host.addresses()[0],),
        )
        host = network.host(name)
        return SwarmService(
            host,
            host.key,
            settings,
            wall_clock=self.now_seconds,
            random=Random(f"{self._seed} {name}"),
            measure=_measured,
        )


async def _answered(call: Callable[[], Awaitable[T]], answer: Future[T]) -> None:
    try:
        result = await call()
    except Exception as error:  # noqa: BLE001  raised again where the answer is awaited
        if not answer.done():
            answer.set_exception(error)
    else:
        if not answer.done():  # nothing waits for it any more
            answer.set_result(result)


async def _measured(encoding: str, theirs: Path, ours: Path, layout: TensorLayout) -> Difference:
    """Measures without a thread, during which virtual time would continue."""
    return measure_difference(encoding, theirs, ours, layout)


class SwarmMember:
    """One learner's side of the network: ``node.learner.foreign.swarm_calls.Swarm``."""

    def __init__(self, swarm: SimulatedSwarm, service: SwarmService) -> None:
        self._swarm, self._service = swarm, service
        self.bytes_announced = 0  # of the blobs that this member shared

    @property
    def peer(self) -> str:
        return self._service.host.peer_id

    def status(self) -> api.SwarmStatus:
        return self._ask(api.AskStatus(), api.SwarmStatus)

    def peers(self) -> list[api.PeerStatus]:
        return list(self._ask(api.AskPeers(), api.PeerList).peers)

    def share(self, groups: Sequence[Group]) -> None:
        """Stores the blobs, then shares one advert for each policy version, as ``SwarmClient.share`` does."""
        adverts: dict[tuple[bytes, bytes, int], list[GroupAdvert]] = {}
        for group in groups:
            blob = encode_group(group)
            self._service.store.put(blob)
            self.bytes_announced += len(blob)
            adverts.setdefault((group.family, group.tokenizer, group.policy_version), []).append(advert_of(group, blob))
        for (family, tokenizer, version), of_policy in adverts.items():
            self._ask(api.Share(family, tokenizer, version, tuple(of_policy)), api.Done)

    def seen_groups(self, after: int, limit: int) -> list[api.SeenGroup]:
        return list(self._ask(api.AskSeenGroups(after, limit), api.SeenGroups).groups)

    def fetch(self, wanted: Sequence[api.Wanted], *, deadline_seconds: float) -> list[api.Fetched]:
        return list(self._ask(api.Fetch(tuple(wanted), deadline_seconds), api.FetchedList).fetched)

    def beat(self, heartbeat: Heartbeat) -> None:
        self._ask(api.Beat(heartbeat), api.Done)

    def judge(self, peer: str, blob: bytes, judgement: api.Judgement, detail: str = "") -> None:
        self._ask(api.Judge(peer, blob, judgement, detail), api.Done)

    def put(self, content: bytes | Sequence[bytes | memoryview]) -> bytes:
        return self._service.store.put(content)

    def share_state(self, advert: StateAdvert) -> None:
        self._ask(api.ShareState(advert), api.Done)

    def states(self, family: bytes) -> list[api.SeenState]:
        return list(self._ask(api.AskStates(family), api.States).states)

    def progress(self, blobs: Sequence[bytes]) -> list[int]:
        return list(self._ask(api.AskProgress(tuple(blobs)), api.FetchProgress).here_bytes)

    def close(self) -> None:
        """There is no connection to close."""

    def begin_average(self, ours: WeightsOffer, deadline_seconds: float) -> Future[api.Reply]:
        """Does what ``SwarmClient.average`` does, without waiting for the answer."""
        stored = self._service.store.put(ours.content)
        request = ours.request(stored, self._service.store.size(stored), deadline_seconds)
        return self._swarm.begin(lambda: self._service.answer(request))

    def _ask(self, request: api.Request, expected: type[T]) -> T:
        reply = self._swarm.ask(lambda: self._service.answer(request))
        if not isinstance(reply, expected):
            raise TypeError(f"asked for {expected.__name__}, answered by {type(reply).__name__}")
        return reply
