"""The gossip of a whole simulated network: which host knows which message, and what is on its way to which.

Messages go to all subscribed neighbours, or to those of a mesh (``gossip_mesh.py``), with GossipSub's duties: a host
takes a content once, validates it before it delivers or forwards it, forgets it ``SEEN_SECONDS`` after it last reached
anybody new, and counts verdicts by forwarding peer. A copy for a host that knows the message already is counted when it
is sent; one that will arrive after another copy is kept beside it, and arrives only if that one does not. Arrivals are
rounded up to whole milliseconds, and one task delivers them for all hosts: a swarm of a thousand makes hundreds of
thousands of copies a second, so that each may cost a microsecond and not a task.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, inf

import anyio

from swarm.host import GossipVerdict, PeerId
from swarm.hosts.simulated.conditions import NetworkConditions
from swarm.hosts.simulated.gossip_ends import GossipEnd, GossipingHost, Neighbour, Score
from swarm.hosts.simulated.gossip_mesh import HEARTBEAT_SECONDS, OFFERED_ID_BYTES, OFFERED_SECONDS, GossipMesh

SEEN_SECONDS = 120.0  # how long GossipSub remembers a message
TICKS_PER_SECOND = 1000
ROUNDING = 1e-3  # of a tick: virtual clocks stop within a rounding error of the time that was asked for
NUMBERED_AT_ONCE = 256


@dataclass(slots=True)
class _Message:
    topic: str
    content: bytes
    known: bytearray  # by number of a host: whether it knows the message
    held: bytearray  # by number of a host: whether it published or accepted the message, and may offer it
    spread_seconds: float  # when it last reached a host that did not know it
    pending: dict[int, _Arrival] = field(default_factory=dict)  # by number of a host: the first copy that will arrive


@dataclass(eq=False, slots=True)
class _Arrival:
    """A copy on its way, and those that will arrive at the same host after it."""

    tick: int
    message: _Message
    sender: GossipEnd
    target: GossipEnd
    score: Score  # of the sender, at the target
    was_forgotten: bool = False  # the receiver has forgotten the message by then
    later: list[tuple[int, GossipEnd, Score]] = field(default_factory=list)  # ticks, and the neighbour that forwards


class GossipFlood:
    """All messages of one network. ``publish`` and ``subscribe`` belong to a host, named by its end."""

    def __init__(self, conditions: NetworkConditions, mesh: GossipMesh) -> None:
        self._conditions = conditions
        self._mesh = mesh
        self._recent: deque[tuple[float, _Message]] = deque()  # made within ``OFFERED_SECONDS``, where there is a mesh
        self._beats_at_seconds = inf
        self._ends: dict[PeerId, GossipEnd] = {}  # the newest of each peer
        self._numbers, self._capacity = 0, NUMBERED_AT_ONCE
        self._messages: OrderedDict[tuple[str, bytes], _Message] = OrderedDict()
        self._arrivals: dict[int, list[_Arrival]] = {}  # by tick
        self._ticks: list[int] = []  # a heap of the keys of ``_arrivals``
        self._earlier: anyio.Event | None = None  # set when an earlier tick was added; None: nothing delivers
        self._cancelled: set[int] = set()  # numbers of hosts whose tasks were cancelled while they delivered

    def join(self, host: GossipingHost) -> GossipEnd:
        """Returns the end of a new host, which knows no message."""
        end = GossipEnd(host, host.peer_id, self._numbers)
        self._numbers += 1
        if self._numbers > self._capacity:
            self._capacity += NUMBERED_AT_ONCE
            for message in self._messages.values():
                message.known.extend(bytes(NUMBERED_AT_ONCE))
                message.held.extend(bytes(NUMBERED_AT_ONCE))
        self._ends[end.peer] = end
        return end

    def publish(self, end: GossipEnd, topic: str, content: bytes) -> None:
        now_seconds = anyio.current_time()
        message = self._message(topic, content, now_seconds)
        self._learn(message, end, now_seconds)
        message.held[end.number] = 1
        self._forward(message, end, None, now_seconds, self._mesh.publishes_to(end))
        if self._mesh.degree is not None:
            self._recent.append((now_seconds, message))
            if self._beats_at_seconds == inf:
                self._beat_next(now_seconds)

    def _message(self, topic: str, content: bytes, now_seconds: float) -> _Message:
        """Returns the message as the hosts know it now; one that all have forgotten is new."""
        while self._messages:
            oldest = next(iter(self._messages))
            if now_seconds - self._messages[oldest].spread_seconds < SEEN_SECONDS:
                break
            del self._messages[oldest]
        message = self._messages.get((topic, content))
        if message is None or now_seconds - message.spread_seconds >= SEEN_SECONDS:
            message = _Message(topic, content, bytearray(self._capacity), bytearray(self._capacity), now_seconds)
            self._messages[topic, content] = message
            self._messages.move_to_end((topic, content))
        return message

    def _learn(self, message: _Message, end: GossipEnd, now_seconds: float) -> bool:
        """Returns whether the message is new to the host."""
        if message.known[end.number]:
            return False
        message.known[end.number] = 1
        message.spread_seconds = now_seconds
        return True

    # On the way

    def _forward(
        self,
        message: _Message,
        sender: GossipEnd,
        received_from: GossipEnd | None,
        now_seconds: float,
        targets: list[Neighbour],
    ) -> None:
        conditions, topic, size = self._conditions, message.topic, len(message.content)
        is_whole, is_plain = conditions.is_whole, conditions.is_plain
        known, pending = message.known, message.pending
        shortest, longest = conditions.delay_seconds
        span, peer, copies = longest - shortest, sender.peer, 0
        for target, direction, score in targets:
            if target is received_from or topic not in target.topics:
                continue
            if not is_whole and conditions.is_cut(peer, target.peer):
                continue
            number = target.number
            if is_plain:
                copies += 1
                if known[number]:
                    target.received_bytes += size
                    score.duplicates += 1
                    continue
                tick = ceil((now_seconds + shortest + span * direction.random.random()) * TICKS_PER_SECOND)
                first = pending.get(number)
                if first is not None and first.tick <= tick:
                    first.later.append((tick, sender, score))
                else:
                    pending[number] = arrival = _Arrival(tick, message, sender, target, score)
                    self._expect(arrival)
                continue
            for was_forgotten in conditions.copies(direction):
                arrival_seconds = direction.arrival_seconds(size)
                if known[number] and not was_forgotten:
                    target.received_bytes += size
                    score.duplicates += 1
                else:
                    late_seconds = SEEN_SECONDS if was_forgotten else 0.0
                    tick = ceil((arrival_seconds + late_seconds) * TICKS_PER_SECOND)
                    self._expect(_Arrival(tick, message, sender, target, score, was_forgotten))
        sender.sent_bytes += copies * size

    # The mesh

    def _beat_next(self, now_seconds: float) -> None:
        self._beats_at_seconds = now_seconds + HEARTBEAT_SECONDS
        self._wake_at(ceil(self._beats_at_seconds * TICKS_PER_SECOND))

    def _beat(self, now_seconds: float) -> None:
        """Maintains the meshes and makes their offers, as long as anything is recent."""
        while self._recent and self._recent[0][0] < now_seconds - OFFERED_SECONDS:
            self._recent.popleft()
        if not self._recent:
            self._beats_at_seconds = inf
            return
        running = [end for end in self._ends.values() if end.topics and end.host.running_tasks is not None]
        self._mesh.maintain(running)
        self._offer(running, now_seconds)
        self._beat_next(now_seconds)

    def _offer(self, running: list[GossipEnd], now_seconds: float) -> None:
        """Who has no copy on its way asks the first that offers the message: three times over the link, in all. A host
        offers what it accepted and nothing else.

        A message younger than a heartbeat is still spreading, and is not asked for yet.
        """
        conditions = self._conditions
        offers: defaultdict[int, list[tuple[GossipEnd, GossipEnd, Score]]] = defaultdict(list)
        for end in running:
            size = OFFERED_ID_BYTES * sum(message.held[end.number] for _, message in self._recent)
            for target, _, score in self._mesh.offers(end) if size else ():
                if conditions.is_whole or not conditions.is_cut(end.peer, target.peer):
                    end.sent_bytes += size
                    target.received_bytes += size
                    offers[target.number].append((end, target, score))
        tick = ceil((now_seconds + 3 * conditions.delay_seconds[1]) * TICKS_PER_SECOND)
        for made_at_seconds, message in self._recent:
            if made_at_seconds > now_seconds - HEARTBEAT_SECONDS:
                break
            known, held, pending, size = message.known, message.held, message.pending, len(message.content)
            for number, offering in offers.items():
                if known[number] or number in pending:
                    continue
                for sender, target, score in offering:
                    if held[sender.number] and message.topic in target.topics:
                        pending[number] = arrival = _Arrival(tick, message, sender, target, score)
                        sender.sent_bytes += size
                        self._expect(arrival)
                        break

    # Arrivals

    def _expect(self, arrival: _Arrival) -> None:
        arrivals = self._arrivals.get(arrival.tick)
        if arrivals is not None:
            arrivals.append(arrival)
            return
        self._wake_at(arrival.tick)
        self._arrivals[arrival.tick].append(arrival)

    def _wake_at(self, tick: int) -> None:
        if tick in self._arrivals:
            return
        self._arrivals[tick] = []
        heappush(self._ticks, tick)
        if self._earlier is None:
            self._start_delivery()
        elif self._ticks[0] == tick:
            self._earlier.set()

    def _start_delivery(self) -> None:
        """Starts the one task that delivers, among those of any host that runs and is not being cancelled."""
        for end in self._ends.values():
            tasks = end.host.running_tasks
            if tasks is not None and end.number not in self._cancelled:
                self._earlier = anyio.Event()
                tasks.start_soon(self._deliver, end)
                return

    async def _deliver(self, home: GossipEnd) -> None:
        """Delivers until nothing is on its way. When its host ends, another host's task continues."""
        try:
            while self._ticks:
                self._earlier = anyio.Event()
                with anyio.move_on_after(self._ticks[0] / TICKS_PER_SECOND - anyio.current_time()):
                    await self._earlier.wait()
                now_seconds = anyio.current_time()
                while self._ticks and self._ticks[0] <= now_seconds * TICKS_PER_SECOND + ROUNDING:
                    for arrival in self._arrivals.pop(heappop(self._ticks)):
                        self._arrive(arrival, now_seconds)
                if now_seconds >= self._beats_at_seconds - ROUNDING / TICKS_PER_SECOND:
                    self._beat(now_seconds)
        finally:
            self._earlier = None
            if self._ticks:
                self._cancelled.add(home.number)
                self._start_delivery()

    def _arrive(self, arrival: _Arrival, now_seconds: float) -> None:
        conditions, message, target, score = self._conditions, arrival.message, arrival.target, arrival.score
        forwarder, peer = arrival.sender.peer, target.peer
        if message.pending.get(target.number) is arrival:
            del message.pending[target.number]
        is_cut = not conditions.is_whole and (conditions.is_cut(forwarder, peer) or conditions.is_silent(peer))
        if is_cut or not target.host.is_linked(forwarder):
            for tick, sender, score_of_sender in arrival.later:
                self._expect(_Arrival(tick, message, sender, target, score_of_sender))
            return
        target.received_bytes += len(message.content) * (1 + len(arrival.later))
        for _, _, score_of_sender in arrival.later:
            score_of_sender.duplicates += 1
        if arrival.was_forgotten:
            message = self._message(message.topic, message.content, now_seconds)
        if not self._learn(message, target, now_seconds) and not arrival.was_forgotten:
            score.duplicates += 1
            return
        try:
            self._take(message, arrival.sender, target, score, now_seconds)
        except Exception as bug:  # noqa: BLE001  raised where it belongs: out of the run of its own host
            _raise_in(target, bug)

    def _take(self, message: _Message, sender: GossipEnd, target: GossipEnd, score: Score, now_seconds: float) -> None:
        validate, on_message = target.topics[message.topic]
        forwarder = sender.peer
        verdict = validate(forwarder, message.content)
        if verdict is GossipVerdict.REJECT:
            score.rejected += 1
        elif verdict is GossipVerdict.IGNORE:
            score.ignored += 1
        else:
            score.accepted += 1
            message.held[target.number] = 1
            on_message(forwarder, message.content)
            self._forward(message, target, sender, now_seconds, self._mesh.forwards_to(target))


def _raise_in(end: GossipEnd, bug: Exception) -> None:
    """Raises the bug of a validator or receiver out of the ``run`` of its host."""

    async def fail() -> None:
        raise bug

    tasks = end.host.running_tasks
    if tasks is None:
        raise bug
    tasks.start_soon(fail)
