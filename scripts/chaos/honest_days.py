"""Days of a few honest nodes in virtual time: who is accused of what, and what grows.

    python -m scripts.chaos.honest_days [--nodes 5] [--days 1] [--round-seconds 30]  # calm: what grows
    python -m scripts.chaos.honest_days --days 2 --faults 2                             # an hour: who is accused
    python -m scripts.chaos.honest_days --store-days 2                  # only one node's content store

Every node is the swarm's own code (``SwarmService``) as a node ships, on a simulated host with a store of its own. Of a
learner it has the requests: each round it beats, shares four groups, and fetches and judges four of other nodes; every
500 seconds it averages new weights with one of them and announces a state. Clocks differ by up to two seconds. Faults
are those of honest homes, one after another: a node is killed, or leaves, and comes back; sleeps; is cut off; has a
slow line. Nobody lies, so every accusation is a false one.

Counted over all nodes: reports of conduct that costs reputation, by reason (standard error); bans; the minutes in which
a node thought a peer to be more wrong than right; the lowest reputation; announcements that were refused, by reason.
Every virtual hour, after garbage was collected: blocks of memory and objects of Python in the whole process, tasks,
descriptors, bytes on disk. What grows is the slope of a least-squares line over the second half, a day, and its
standard error; where Python's objects grow, the types that grow most are named (standard error).
"""

from __future__ import annotations

import gc
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Final

import anyio
import numpy as np
import trio.lowlevel
from anyio.abc import TaskGroup
from trio.testing import MockClock

from protocol.errors import StarlingError
from protocol.messages import GroupAdvert, PromptRef, StateAdvert, StateBlob
from protocol.streams.averaging_messages import Offer
from protocol.weights.dense_weights import ENCODING, encode_dense
from protocol.weights.tensor_layout import TensorLayout
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.common.shared_opening import SharedOpening
from scripts.bench.scale.swarm_node import EPOCH, FAMILY, heartbeat, new_service
from swarm import api
from swarm.announcements.group_sharing import GROUP_BLOB_SECONDS
from swarm.blobs.store import ContentStore
from swarm.hosts.simulated.network import SimulatedHost, SimulatedNetwork
from swarm.peers.peer_conduct import STRANGER_REPUTATION
from swarm.service import SwarmService
from swarm.upkeep import MAINTENANCE_SECONDS

GROUPS: Final = 4  # that a node shares, and fetches, in a round
GROUP_BYTES: Final = 8000
FETCH_SECONDS: Final = 10.0
AVERAGING_SECONDS: Final = 500.0  # between two searches of a node for a partner, on average
PARTNER_SECONDS: Final = 30.0  # ``averaging.partner_seconds``
WEIGHTS: Final = 50_000
LAYOUT: Final = TensorLayout.of({"weights": (WEIGHTS,)})
CLOCK_SECONDS: Final = 2.0  # by which a clock is wrong, at most
LOOK_SECONDS: Final = 60.0
SAMPLE_SECONDS: Final = 3600.0
FAST_BYTES_A_SECOND: Final = 12.5e6
TYPES_SHOWN: Final = 5
IN_MEMORY: Final = Path("/dev/shm")

Sizes = dict[str, int]


class Accusations(logging.Handler):
    """Hears every report that says why: conduct, whether the peer accused is ``troubled`` by a fault now, and the
    reason without names and numbers."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.troubled = ""
        self.by_reason: Counter[tuple[str, bool, str]] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple) and len(record.args) == 3:
            peer, conduct, why = map(str, record.args)
            plain = " ".join(w for w in why.split() if len(w) < 40 and not any(c.isdigit() for c in w))
            self.by_reason[conduct, peer == self.troubled, plain] += 1


class Home:
    """A node that comes back with its key, its data directory and its wrong clock."""

    def __init__(self, number: int, network: SimulatedNetwork, folder: Path, random: Random) -> None:
        self.name, self.folder = f"node-{number}", folder / f"node-{number}"
        self.host: SimulatedHost = network.host(self.name)
        self.offset_seconds = random.uniform(-CLOCK_SECONDS, CLOCK_SECONDS)
        self.random = Random(self.name)
        self.service: SwarmService | None = None
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.cursor = 0


class Days:
    """Call ``run`` once."""

    def __init__(
        self,
        nodes: int,
        days: float,
        *,
        round_seconds: float,
        faults: float,
        folder: Path,
        clock: MockClock,
        heard: Accusations,
    ) -> None:
        """``faults``: an hour, of all nodes together. ``heard`` is told who is in trouble."""
        self._heard = heard
        self._seconds, self._round_seconds, self._faults = 86400.0 * days, round_seconds, faults
        self._clock, self._folder, self._random = clock, folder, Random(nodes)
        self._network = SimulatedNetwork(seed=nodes, mesh_degree=4)
        self.homes = [Home(number, self._network, folder, self._random) for number in range(nodes)]
        self.refused: Counter[str] = Counter()
        self.accepted = self.used = self.fetched = 0
        self.exchanges: Counter[str] = Counter()
        self.banned: list[str] = []
        self.lowest, self.pair_minutes, self.doubted_minutes = 1.0, 0, 0
        self.faults: Counter[str] = Counter()
        self.samples: list[tuple[float, Sizes, Counter[str]]] = []

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for home in self.homes:
                await self._start(home, tasks)
            tasks.start_soon(self._look)
            tasks.start_soon(self._sample)
            if self._faults:
                tasks.start_soon(self._disturb, tasks)
            await anyio.sleep(self._seconds + 1.0)
            for home in self.homes:
                self._count(home)
            tasks.cancel_scope.cancel()

    # A node's life

    async def _start(self, home: Home, tasks: TaskGroup) -> None:
        known = [other.host for other in self.homes]
        clock = lambda: EPOCH + self._clock.current_time() + home.offset_seconds  # noqa: E731
        home.service = new_service(home.host, home.name, home.folder, known, clock, emit=self._on_event)
        home.scope, home.ended, home.cursor = anyio.CancelScope(), anyio.Event(), 0
        tasks.start_soon(self._live, home, home.service)
        await home.service.started.wait()

    def _on_event(self, event: str, fields: object) -> None:
        if event == "banned":
            self.banned.append(str(fields))

    async def _live(self, home: Home, service: SwarmService) -> None:
        with home.scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._learn, home, service)
                with suppress(StarlingError):
                    await service.run()
                tasks.cancel_scope.cancel()
        home.ended.set()

    async def _learn(self, home: Home, service: SwarmService) -> None:
        await service.started.wait()
        await anyio.sleep(home.random.uniform(0.0, self._round_seconds))
        async with anyio.create_task_group() as tasks:
            for number in range(1 << 30):
                with suppress(StarlingError):
                    await self._round(home, service, number)
                if home.random.random() < self._round_seconds / AVERAGING_SECONDS:
                    tasks.start_soon(self._average, home, service, number)
                await anyio.sleep(home.random.uniform(0.8, 1.2) * self._round_seconds)

    async def _round(self, home: Home, service: SwarmService, number: int) -> None:
        await service.answer(api.Beat(heartbeat(home.name)))
        blobs = [service.store.put(home.random.randbytes(GROUP_BYTES)) for _ in range(GROUPS)]
        await service.answer(api.Share(FAMILY, FAMILY, number, tuple(advert(b, home.random) for b in blobs)))
        seen = await service.answer(api.AskSeenGroups(home.cursor, 1000))
        assert isinstance(seen, api.SeenGroups)
        if not seen.groups:
            return
        home.cursor = seen.groups[-1].cursor
        chosen = home.random.sample(seen.groups, min(GROUPS, len(seen.groups)))
        wanted = tuple(api.Wanted(each.advert.blob, each.advert.size, (each.peer,)) for each in chosen)
        outcome = await service.answer(api.Fetch(wanted, FETCH_SECONDS))
        assert isinstance(outcome, api.FetchedList)
        self.fetched += len(chosen)
        for each, fetched in zip(chosen, outcome.fetched, strict=True):
            if fetched.is_here:
                self.used += 1
                await service.answer(api.Judge(each.peer, each.advert.blob, api.Judgement.USED, ""))

    async def _average(self, home: Home, service: SwarmService, number: int) -> None:
        values = 1.0 + 0.1 * np.random.default_rng(home.random.randrange(1 << 30)).standard_normal(WEIGHTS)
        content = encode_dense(LAYOUT, [(values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)])
        blob = service.store.put(content)
        state = StateBlob(blob, len(content), blob)
        with suppress(StarlingError):
            offer = Offer(FAMILY, LAYOUT.digest, ENCODING, number, blob, len(content))
            await service.answer(api.Average(offer, LAYOUT.tensors, PARTNER_SECONDS))
            await service.answer(api.ShareState(StateAdvert(FAMILY, LAYOUT.digest, number, number, (), state, ())))

    # Faults of honest homes

    async def _disturb(self, tasks: TaskGroup) -> None:
        while True:
            await anyio.sleep(self._random.expovariate(self._faults / 3600.0))
            home, draws = self._random.choice(self.homes), self._random
            fault = draws.choice(("killed", "left", "slept", "cut off", "slow"))
            self.faults[fault] += 1
            self._heard.troubled = home.host.peer_id
            match fault:
                case "killed" | "left":
                    await self.restart(home, killed=fault == "killed", tasks=tasks)
                case "slept":
                    self._network.silence(home.host)
                    await anyio.sleep(draws.uniform(60.0, 1200.0))
                    self._network.heal()
                case "cut off":
                    self._network.partition([home.host], [each.host for each in self.homes if each is not home])
                    await anyio.sleep(draws.uniform(5.0, 300.0))
                    self._network.heal()
                case _:
                    self._network.set_bandwidth(draws.uniform(1e3, 5e4), of=home.host)
                    await anyio.sleep(draws.uniform(60.0, 1800.0))
                    self._network.set_bandwidth(FAST_BYTES_A_SECOND, of=home.host)
            self._heard.troubled = ""

    async def restart(self, home: Home, *, killed: bool, tasks: TaskGroup) -> None:
        assert home.service is not None
        self._count(home)
        if killed:
            self._network.crash(home.host)
            home.scope.cancel()
        else:
            home.service.leave("restarts")
        await home.ended.wait()
        home.service = None
        await anyio.sleep(self._random.uniform(2.0, 120.0))
        home.host = self._network.restart(home.host)
        await self._start(home, tasks)

    # What is counted

    def _count(self, home: Home) -> None:
        """Adds what a service counted, which its end forgets."""
        if home.service is not None:
            self.refused += home.service.gossip.rejected
            self.accepted += home.service.gossip.accepted.total()
            self.exchanges.update(home.service._averaging.status().exchanges)

    async def _look(self) -> None:
        while True:
            await anyio.sleep(LOOK_SECONDS)
            ids = [home.host.peer_id for home in self.homes]
            for service in [home.service for home in self.homes if home.service is not None]:
                now_seconds = service._wall_clock()
                others = [peer for peer in ids if peer != service.host.peer_id]
                for reputation in [service.reputations.of(peer, now_seconds) for peer in others]:
                    self.pair_minutes += 1
                    self.doubted_minutes += reputation < STRANGER_REPUTATION
                    self.lowest = min(self.lowest, reputation)

    async def _sample(self) -> None:
        while True:
            await anyio.sleep(SAMPLE_SECONDS)
            sizes, types = self._sizes()
            hours = self._clock.current_time() / 3600.0
            self.samples.append((hours / 24.0, sizes, types))
            took = f"{time.process_time():.0f} s of the processor"
            shown = ", ".join(f"{size:,.0f} {name}" for name, size in sizes.items())
            print(f"{hours:.0f} h, {took}: {shown}", file=sys.stderr, flush=True)

    def _sizes(self) -> tuple[Sizes, Counter[str]]:
        """Returns sizes of the whole process, and how many objects of each type there are."""
        gc.collect()
        types = Counter(type(each).__qualname__ for each in gc.get_objects())
        files = [path.stat().st_blocks * 512 for path in self._folder.rglob("*") if path.is_file()]
        sizes = {
            "blocks of memory": sys.getallocatedblocks(),
            "objects": types.total(),
            "tasks": trio.lowlevel.current_statistics().tasks_living,
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "bytes on disk": sum(files),
            "bytes in stores": sum(home.service.store.total_bytes() for home in self.homes if home.service),
        }
        return sizes, types


def advert(blob: bytes, random: Random) -> GroupAdvert:
    prompt = PromptRef("spell_backward", 1, bytes(16), random.randrange(1 << 31))
    return GroupAdvert(blob, GROUP_BYTES, prompt, (1.0, 0.0, 0.0, 1.0), (5, 5, 6, 4), (-1.5, -0.5, -2.0, -1.0))


def slope(days: Sequence[float], sizes: Sequence[float]) -> tuple[float, float]:
    """Returns the slope of a least-squares line a day, and its standard error."""
    x, y = np.asarray(days), np.asarray(sizes)
    fit, residuals, *_ = np.polyfit(x, y, 1, full=True)
    spread = float(np.sum((x - x.mean()) ** 2))
    left = float(residuals[0]) if len(residuals) else 0.0
    return float(fit[0]), float(np.sqrt(left / max(1, len(x) - 2) / spread))


def growth(samples: list[tuple[float, Sizes, Counter[str]]]) -> list[Figure]:
    later = samples[len(samples) // 2 :]
    days, found = [at for at, _, _ in later], []
    for name in later[0][1]:
        series = [sizes[name] for _, sizes, _ in later]
        a_day, error = slope(days, series)
        mean = float(np.mean(series))
        found += [
            Figure(f"{name}, mean of the second half", mean, "", "lower"),
            Figure(f"{name}: growth a day, of that", 100 * a_day / mean, "%", "lower", "flat"),
            Figure(f"{name}: standard error of it", 100 * error / mean, "%", "lower"),
        ]
    kinds = {kind for _, _, types in later for kind in types}
    by_type = sorted(((*slope(days, [types[kind] for _, _, types in later]), kind) for kind in kinds), reverse=True)
    for a_day, error, kind in by_type[:TYPES_SHOWN]:
        print(f"{kind}: {a_day:+.0f} ± {error:.0f} a day", file=sys.stderr)
    return found


def store_days(days: float, folder: Path) -> list[Figure]:
    """One content store alone, which takes what a node of ``Days`` shares and fetches, on a clock of its own."""
    random, now_seconds, samples = Random(0), EPOCH, list[tuple[float, Sizes, Counter[str]]]()
    store = ContentStore(
        folder, budget_bytes=2 << 30, expire_seconds=GROUP_BLOB_SECONDS, wall_clock=lambda: now_seconds
    )
    with closing(store):
        while now_seconds < EPOCH + 86400.0 * days:
            for _ in range(2 * GROUPS):
                store.put(random.randbytes(GROUP_BYTES))
            if random.random() < 2 * MAINTENANCE_SECONDS / AVERAGING_SECONDS:
                store.put(random.randbytes(2 * WEIGHTS))
            now_seconds += MAINTENANCE_SECONDS
            while store.tend():
                pass
            if (now_seconds - EPOCH) % SAMPLE_SECONDS < MAINTENANCE_SECONDS:
                samples.append(((now_seconds - EPOCH) / 86400.0, {"bytes in a store": store.total_bytes()}, Counter()))
    return growth(samples)


def measure(nodes: int, days: float, *, round_seconds: float, faults: float) -> list[Figure]:
    heard, opening, clock = Accusations(), SharedOpening(), MockClock(autojump_threshold=0)
    conduct = logging.getLogger("swarm.peers.peer_conduct")
    conduct.setLevel(logging.DEBUG)
    conduct.propagate = False
    conduct.addHandler(heard)
    opening.install()
    made: list[Days] = []

    async def main() -> None:
        with tempfile.TemporaryDirectory(prefix="days-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
            made.append(
                Days(
                    nodes,
                    days,
                    round_seconds=round_seconds,
                    faults=faults,
                    folder=Path(folder),
                    clock=clock,
                    heard=heard,
                )
            )
            await made[0].run()

    try:
        anyio.run(main, backend="trio", backend_options={"clock": clock})
    finally:
        opening.uninstall()
        conduct.removeHandler(heard)
    of = made[0]
    for (kind, is_troubled, why), count in heard.by_reason.most_common():
        whom = "a peer with a fault" if is_troubled else "a peer without"
        print(f"{count} × {kind}, {whom}: {why}", file=sys.stderr)
    print(f"refused: {dict(of.refused)}; exchanges: {dict(of.exchanges)}; faults: {dict(of.faults)}", file=sys.stderr)
    by_kind: Counter[str] = Counter()
    for (kind, is_troubled, _), count in heard.by_reason.items():
        by_kind[f"{kind}, of a peer {'with' if is_troubled else 'without'} a fault"] += count
    return [
        Figure("virtual days", days, "", "higher"),
        Figure("faults of homes", float(of.faults.total()), "", "higher"),
        Figure("announcements accepted", float(of.accepted), "", "higher"),
        Figure("announcements refused", float(of.refused.total()), "", "lower"),
        Figure("groups fetched", float(of.used), "", "higher"),
        Figure("fetches that brought nothing", 100 * (1 - of.used / max(1, of.fetched)), "%", "lower"),
        Figure("exchanges of weights, each side", float(of.exchanges["committed"]), "", "higher"),
        Figure("bans", float(len(of.banned)), "", "lower", "0"),
        *(Figure(f"accusations: {kind}", float(count), "", "lower") for kind, count in sorted(by_kind.items())),
        Figure("lowest reputation", of.lowest, "", "lower"),
        Figure(f"share of time below {STRANGER_REPUTATION}", 100 * of.doubted_minutes / of.pair_minutes, "%", "lower"),
        *growth(of.samples),
        Figure("processor time", time.process_time(), "s", "lower"),
    ]


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--days", type=float, default=1.0, help="of virtual time; at least .25")
    parser.add_argument("--round-seconds", type=float, default=30.0)
    parser.add_argument("--faults", type=float, default=0.0, metavar="N", help="an hour, over all nodes (default 0)")
    parser.add_argument("--store-days", type=float, metavar="DAYS", help="run one content store alone")
    flags = parser.parse_args()
    if flags.store_days:
        with tempfile.TemporaryDirectory() as folder:
            report("honest_days", store_days(max(0.25, flags.store_days), Path(folder)), as_json=flags.json)
        return
    figures = measure(flags.nodes, max(0.25, flags.days), round_seconds=flags.round_seconds, faults=flags.faults)
    report("honest_days", figures, as_json=flags.json)


if __name__ == "__main__":
    main()
