"""Starting from the weights of peers, over whole members of a simulated swarm in virtual time: after any fault the
weights are exactly the old ones or exactly the announced ones."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest
import torch
import trio
from torch import Tensor
from trio.testing import MockClock

from node.events import Event, StateSyncing
from node.kernels.weight_diff_kernels import encode_diff_fast, weights_hash_fast
from node.learner.state.learner_state import LearnerState
from node.policy.weight_layout import layout_of
from node.state_sync.adoption import StateAdoption, Timing
from node.state_sync.publishing import HeldState, LearnerProgress, StatePublisher
from node.state_sync.rebuild import bf16_copy
from node.state_sync.start_from_peers import with_adopted_state
from node.state_sync.state_choice import StateRequirements
from node.state_sync.state_verdict import MeasuredSuccess
from protocol.blob_id import blob_id
from protocol.errors import UnreachableError
from protocol.limits import CHUNK_BYTES
from protocol.messages import Heartbeat, StateAdvert, StateBlob, TaskSuccess
from protocol.weights.dense_weights import dense_bytes
from swarm import api
from swarm.announcements.state_sharing import MIN_SECONDS_BETWEEN_STATES
from swarm.hosts.simulated.network import SimulatedNetwork
from swarm.service import SwarmService
from swarm.settings import ServiceSettings
from tests.hang_guard import HANG_SECONDS

FAMILY = b"f" * 16
EPOCH = 1_790_000_000.0
JUMP_SECONDS = 0.001  # of real time without anything to do, after which virtual time goes on
PARAMETERS = 1_000_000  # two MB: eight chunks
PATIENCE_SECONDS = 30.0

R = TypeVar("R", bound=api.Reply)


def fresh(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(PARAMETERS, generator=generator), "b": torch.randn(4, 3, generator=generator)}


LAYOUT = layout_of(fresh(0))


def hash_of(weights: dict[str, Tensor]) -> str:
    return weights_hash_fast(LAYOUT, bf16_copy(LAYOUT, weights)).hex()


class Client:
    """``swarm.client.SwarmClient`` for a thread beside the simulation."""

    def __init__(self, service: SwarmService, token: trio.lowlevel.TrioToken) -> None:
        self._service, self._token = service, token
        self._scope: trio.CancelScope | None = None

    def _ask(self, request: api.Request, expected: type[R]) -> R:
        async def ask() -> api.Reply | None:
            with trio.CancelScope() as self._scope:
                return await self._service.answer(request)
            return None

        reply = trio.from_thread.run(ask, trio_token=self._token)
        if reply is None:
            raise UnreachableError("the connection was closed")
        assert isinstance(reply, expected)
        return reply

    def peers(self) -> Sequence[api.PeerStatus]:
        return self._ask(api.AskPeers(), api.PeerList).peers

    def states(self, family: bytes) -> Sequence[api.SeenState]:
        return self._ask(api.AskStates(family), api.States).states

    def fetch(self, wanted: Sequence[api.Wanted], *, deadline_seconds: float) -> list[api.Fetched]:
        return list(self._ask(api.Fetch(tuple(wanted), deadline_seconds), api.FetchedList).fetched)

    def progress(self, blobs: Sequence[bytes]) -> Sequence[int]:
        return self._ask(api.AskProgress(tuple(blobs)), api.FetchProgress).here_bytes

    def beat(self, heartbeat: Heartbeat) -> None:
        self._ask(api.Beat(heartbeat), api.Done)

    def judge(self, peer: str, blob: bytes, judgement: api.Judgement, detail: str = "") -> None:
        self._ask(api.Judge(peer, blob, judgement, detail), api.Done)

    def put(self, content: bytes | Sequence[bytes | memoryview]) -> bytes:
        return self._service.store.put(content)

    def share_state(self, advert: StateAdvert) -> None:
        self._ask(api.ShareState(advert), api.Done)

    def close(self) -> None:
        def cancel() -> None:
            if self._scope is not None:
                self._scope.cancel()

        trio.from_thread.run_sync(cancel, trio_token=self._token)


def giving(progress: LearnerProgress) -> Callable[[], LearnerProgress]:
    return lambda: progress


class World:
    """Members of one family; this test plays their learners."""

    def __init__(self, directory: Path, clock: MockClock) -> None:
        self.clock = clock
        self.network = SimulatedNetwork(seed=5)
        self.token = trio.lowlevel.current_trio_token()
        self.first: SwarmService | None = None
        self._directory = directory

    def wall_clock(self) -> float:
        return EPOCH + self.clock.current_time()

    @asynccontextmanager
    async def member(self, name: str, **changes: object) -> AsyncIterator[SwarmService]:
        home = self._directory / name
        home.mkdir(exist_ok=True)
        fields: dict[str, object] = {
            "home": str(home), "swarm_name": "test", "swarm_id": "ab" * 16, "name": name,
            "peers": (self.first.host.addresses()[0],) if self.first is not None else (),
        }  # fmt: skip
        host = self.network.host(name)
        service = SwarmService(
            host,
            host.key,
            ServiceSettings(**{**fields, **changes}),  # type: ignore[arg-type]
            wall_clock=self.wall_clock,
            random=Random(name),
        )
        self.first = self.first or service
        async with trio.open_nursery() as tasks:
            tasks.start_soon(service.run)
            await service.started.wait()
            yield service
            tasks.cancel_scope.cancel()

    async def publish(self, service: SwarmService, weights: dict[str, Tensor], success: float = 0.5) -> HeldState:
        """An anchor and two diffs, as a learner's ``StatePublisher`` publishes them; ``weights`` end as the last."""
        client = Client(service, self.token)
        client_beat = heartbeat("learning")
        events: list[Event] = []

        def work() -> HeldState:
            client.beat(client_beat)
            now = [0.0]
            publisher = StatePublisher(
                client,
                weights,
                family=FAMILY,
                every_rounds=1,
                store_bytes=1 << 30,
                report=events.append,
                clock=lambda: now[0],
            )
            publisher._has_audience = True  # who is there is not what this tests
            for number in range(1, 4):
                weights["a"][number] += 1.0
                at = LearnerProgress(number, number, 5, (TaskSuccess("add", success, 1000),))
                publisher.after_round(number, giving(at))
                publisher.settle(HANG_SECONDS)
            publisher.close()
            assert publisher._held is not None, events
            return publisher._held

        held = await trio.to_thread.run_sync(work)
        await trio.sleep(2 * MIN_SECONDS_BETWEEN_STATES)  # until the last of the three is announced
        return held

    async def mirror(
        self, service: SwarmService, donor: SwarmService, held: HeldState, claimed: float | None = None
    ) -> None:
        """``service`` has the blobs too and announces the same state, as one does that was started from it; it claims
        no success of its own, unless ``claimed`` is given."""
        for each in held.advert.blobs:
            service.store.put(donor.store.read(each.blob))
        client = Client(service, self.token)
        await trio.to_thread.run_sync(client.beat, heartbeat("learning"))
        tasks = () if claimed is None else (TaskSuccess("add", claimed, 1000),)
        passed_on = StateAdvert(
            FAMILY, held.advert.layout, held.advert.policy_version, 5, tasks, held.advert.anchor, held.advert.diffs
        )
        await trio.to_thread.run_sync(client.share_state, passed_on)

    async def join(
        self,
        service: SwarmService,
        weights: dict[str, Tensor],
        *,
        stop: Callable[[list[StateSyncing]], str | None] = lambda events: None,
        success: float | None = None,
        measured: Mapping[str, float] | None = None,
    ) -> tuple[HeldState | None, list[StateSyncing]]:
        """``measured`` has the success of weights, by their hash; weights that it does not name have .5."""
        events: list[StateSyncing] = []

        def report(event: Event) -> None:
            assert isinstance(event, StateSyncing)
            events.append(event)

        timing = Timing(
            clock=self.clock.current_time,
            wall_clock=self.wall_clock,
            sleep=lambda seconds: trio.from_thread.run(trio.sleep, seconds, trio_token=self.token),
            poll_seconds=JUMP_SECONDS,
        )
        joining_swarm, fetching = Client(service, self.token), Client(service, self.token)
        ours = StateRequirements(LAYOUT.digest, ("add",), dense_bytes(LAYOUT), 1 << 30, success)

        def work() -> HeldState | None:
            adoption = StateAdoption(
                joining_swarm,
                fetching,
                LAYOUT,
                ours,
                heartbeat=heartbeat,
                report=report,
                should_stop=lambda: stop(events),
                measure=lambda: MeasuredSuccess((measured or {}).get(hash_of(weights), 0.5), 1000),
                timing=timing,
            )
            return adoption.adopt_best(weights, patience_seconds=PATIENCE_SECONDS)

        return await trio.to_thread.run_sync(work), events


def heartbeat(phase: str) -> Heartbeat:
    return Heartbeat("n", "s", "m", FAMILY, bytes(16), 1, 1, phase, 1.0, 0, 0, ())


def stages(events: list[StateSyncing]) -> list[str]:
    found: list[str] = []
    for event in events:
        if not found or found[-1] != event.stage:
            found.append(event.stage)
    return found


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Callable[[World], Awaitable[None]]], None]:
    def run(story: Callable[[World], Awaitable[None]]) -> None:
        clock = MockClock(autojump_threshold=JUMP_SECONDS)

        async def main() -> None:
            await story(World(tmp_path, clock))

        trio.run(main, clock=clock)

    return run


Play = Callable[[Callable[[World], Awaitable[None]]], None]


def test_a_joiner_ends_with_exactly_the_donor_s_weights_and_hands_them_on(play: Play) -> None:
    async def story(world: World) -> None:
        async with world.member("donor") as donor, world.member("joiner") as joiner, world.member("next") as later:
            theirs, own, own_later = fresh(1), fresh(2), fresh(3)
            await world.publish(donor, theirs)
            held, events = await world.join(joiner, own)
            assert held is not None
            assert stages(events) == ["looking", "fetching", "verifying", "measuring", "done"]
            assert hash_of(own) == hash_of(theirs) == events[-1].weights
            assert held.advert.outer_step == 5

            await world.mirror(joiner, donor, held)
            held, events = await world.join(later, own_later)
            assert held is not None
            assert events[-1].holders == 2
            assert hash_of(own_later) == hash_of(theirs)

    play(story)


def test_the_better_of_two_is_taken(play: Play) -> None:
    async def story(world: World) -> None:
        async with world.member("a") as a, world.member("b") as b, world.member("joiner") as joiner:
            better, worse, own = fresh(1), fresh(2), fresh(3)
            await world.publish(a, worse, success=0.4)
            await world.publish(b, better, success=0.9)
            held, _ = await world.join(joiner, own, measured={hash_of(better): 0.9})
            assert held is not None
            assert hash_of(own) == hash_of(better)

    play(story)


def test_state_that_is_not_as_good_as_claimed_is_taken_back_and_the_honest_one_is_kept(play: Play) -> None:
    async def story(world: World) -> None:
        async with world.member("liar") as liar, world.member("honest") as honest, world.member("joiner") as joiner:
            theirs, spoilt, own = fresh(1), fresh(2), fresh(3)
            before = own["a"].clone()
            await world.publish(liar, spoilt, success=1.0)
            await world.publish(honest, theirs, success=0.5)
            success = {hash_of(spoilt): 0.0, hash_of(theirs): 0.45, hash_of(own): 0.3}
            held, events = await world.join(joiner, own, measured=success)
            assert held is not None
            assert [stage for stage in stages(events) if stage in ("failed", "done")] == ["failed", "done"]
            assert hash_of(own) == hash_of(theirs)
            assert joiner.reputations.of(liar.host.peer_id, EPOCH) < 0.35
            assert joiner.reputations.of(honest.host.peer_id, EPOCH) >= 0.5

            again = fresh(3)
            held, events = await world.join(joiner, again, measured=success | {hash_of(theirs): 0.0})
            assert held is None
            assert torch.equal(again["a"], before)  # to the bit, also where bf16 rounds

    play(story)


def test_claims_of_others_about_an_honest_state_neither_hide_nor_spoil_it(play: Play) -> None:
    async def story(world: World) -> None:
        async with (
            world.member("honest") as honest, world.member("high") as high, world.member("low") as low,
            world.member("joiner") as joiner,
        ):  # fmt: skip
            theirs, own = fresh(1), fresh(2)
            held = await world.publish(honest, theirs, success=0.5)
            await world.mirror(high, honest, held, claimed=1.0)
            await world.mirror(low, honest, held, claimed=0.0)
            found, _ = await world.join(joiner, own, measured={hash_of(theirs): 0.5, hash_of(own): 0.2})
            assert found is not None
            assert hash_of(own) == hash_of(theirs)
            assert joiner.reputations.of(high.host.peer_id, EPOCH) < 0.35
            assert joiner.reputations.of(honest.host.peer_id, EPOCH) >= 0.5

    play(story)


def test_counts_that_a_peer_claims_do_not_become_ours() -> None:
    ours = replace(LearnerState(), round=7, policy_version=12, outer_round=3)
    after = with_adopted_state(ours)
    assert (after.round, after.policy_version, after.outer, after.outer_round) == (7, 13, None, 7)


def test_nobody_announces_a_state_and_the_joiner_keeps_its_own_weights(play: Play) -> None:
    async def story(world: World) -> None:
        async with world.member("a"), world.member("joiner") as joiner:
            own = fresh(3)
            before = hash_of(own)
            held, events = await world.join(joiner, own)
            assert held is None
            assert events[-1].stage == "given_up"
            assert hash_of(own) == before

    play(story)


def test_a_checkpoint_that_is_better_than_all_that_is_announced_stays(play: Play) -> None:
    async def story(world: World) -> None:
        async with world.member("donor") as donor, world.member("joiner") as joiner:
            own = fresh(3)
            before = hash_of(own)
            await world.publish(donor, fresh(1), success=0.5)
            held, events = await world.join(joiner, own, success=0.6)
            assert held is None
            assert events[-1].stage == "given_up" and "0.600" in events[-1].because
            assert hash_of(own) == before

    play(story)


def test_a_donor_that_serves_wrong_bytes_is_passed_over_and_blamed(play: Play) -> None:
    async def story(world: World) -> None:
        async with world.member("a") as a, world.member("b") as b, world.member("joiner") as joiner:
            theirs, own = fresh(1), fresh(2)
            held = await world.publish(a, theirs)
            await world.mirror(b, a, held)
            for each in held.advert.blobs:
                # It has checked the blob, as if lately, and does not look again before it serves it.
                b.server._hashes[each.blob] = await b.server._hashes_of(each.blob)
                path = b.store.path(each.blob)
                path.write_bytes(bytes(each.size))
            got, _ = await world.join(joiner, own)
            assert got is not None
            assert hash_of(own) == hash_of(theirs)
            assert joiner.reputations.of(b.host.peer_id, EPOCH) < 0.35
            assert joiner.reputations.of(a.host.peer_id, EPOCH) >= 0.5

    play(story)


def test_the_only_donor_serves_wrong_bytes_and_the_weights_stay(play: Play) -> None:
    async def story(world: World) -> None:
        async with world.member("a") as a, world.member("joiner") as joiner:
            own = fresh(2)
            before = hash_of(own)
            held = await world.publish(a, fresh(1))
            path = a.store.path(held.advert.diffs[0].blob)
            path.write_bytes(bytes(held.advert.diffs[0].size))
            got, events = await world.join(joiner, own)
            assert got is None
            assert "failed" in stages(events)
            assert events[-1].stage == "given_up"
            assert hash_of(own) == before

    play(story)


def test_a_chain_that_does_not_lead_where_it_says_is_judged_and_another_state_is_taken(play: Play) -> None:
    async def story(world: World) -> None:
        async with world.member("liar") as liar, world.member("honest") as honest, world.member("joiner") as joiner:
            theirs, own = fresh(1), fresh(2)
            held = await world.publish(liar, fresh(4))
            advert = held.advert
            missing_link = StateAdvert(
                FAMILY, advert.layout, 99, 5, (TaskSuccess("add", 1.0, 1000),), advert.anchor, advert.diffs[1:]
            )
            await trio.to_thread.run_sync(Client(liar, world.token).share_state, missing_link)
            await world.publish(honest, theirs, success=0.2)
            got, events = await world.join(joiner, own)
            assert got is not None
            assert [stage for stage in stages(events) if stage in ("failed", "done")] == ["failed", "done"]
            assert hash_of(own) == hash_of(theirs)
            assert joiner.reputations.of(liar.host.peer_id, EPOCH) < 0.35

    play(story)


def test_a_state_with_values_that_are_not_finite_changes_nothing(play: Play) -> None:
    async def story(world: World) -> None:
        async with world.member("a") as a, world.member("joiner") as joiner:
            own, poison = fresh(2), fresh(1)
            before = hash_of(own)
            held = await world.publish(a, poison)
            old = list(held.weights)
            new = [tensor.clone() for tensor in old]
            new[0][7] = float("nan")
            hashes = [weights_hash_fast(LAYOUT, weights) for weights in (old, new)]
            diff = encode_diff_fast(LAYOUT, old, new, base_hash=hashes[0], target_hash=hashes[1])
            last = StateBlob(a.store.put(diff), len(diff), hashes[1])
            advert = held.advert
            spoilt = StateAdvert(FAMILY, advert.layout, 9, 5, advert.tasks, advert.anchor, (*advert.diffs, last))
            await trio.to_thread.run_sync(Client(a, world.token).share_state, spoilt)
            got, events = await world.join(joiner, own)
            assert got is None
            assert "failed" in stages(events)
            assert hash_of(own) == before

    play(story)


def test_a_donor_dies_in_the_middle_and_the_other_one_brings_the_rest(play: Play) -> None:
    async def story(world: World) -> None:
        slow = {"upload_bytes_per_second": 100_000.0}
        async with world.member("keeper") as keeper, world.member("joiner") as joiner:
            theirs, own = fresh(1), fresh(2)
            held = await world.publish(keeper, theirs)
            async with world.member("mortal", **slow) as mortal:
                await world.mirror(mortal, keeper, held)
                keeper.server._bucket = None
                async with trio.open_nursery() as tasks:
                    tasks.start_soon(crash_after_first_bytes, world, mortal, joiner, held)
                    got, _ = await world.join(joiner, own)
            assert got is not None
            assert hash_of(own) == hash_of(theirs)

    play(story)


async def crash_after_first_bytes(world: World, mortal: SwarmService, joiner: SwarmService, held: HeldState) -> None:
    while joiner._fetcher.here_bytes(held.advert.anchor.blob) == 0:  # noqa: ASYNC110  the simulation has no event for it
        await trio.sleep(0.05)
    world.network.crash(mortal.host)  # type: ignore[arg-type]


def test_stopped_in_the_middle_it_leaves_the_old_weights_and_resumes_where_it_was(play: Play) -> None:
    async def story(world: World) -> None:
        async with world.member("donor", upload_bytes_per_second=100_000.0) as donor:
            theirs, own = fresh(1), fresh(2)
            before = hash_of(own)
            held = await world.publish(donor, theirs)
            async with world.member("joiner") as joiner:
                got, events = await world.join(
                    joiner, own, stop=lambda events: "asked" if events and events[-1].here_bytes else None
                )
                assert got is None
                assert hash_of(own) == before
            here_bytes = max(event.here_bytes for event in events)
            assert CHUNK_BYTES <= here_bytes < held.advert.anchor.size
            sent_before = donor.host.traffic().sent_bytes
            async with world.member("joiner") as joiner:
                got, _ = await world.join(joiner, own)
                assert got is not None
            assert hash_of(own) == hash_of(theirs)
            assert donor.host.traffic().sent_bytes - sent_before < held.advert.anchor.size - here_bytes / 2

    play(story)


def test_a_full_disk_in_the_middle_leaves_the_old_weights_and_space_lets_it_go_on(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = [3 * CHUNK_BYTES]
    write = os.pwrite

    def limited(descriptor: int, content: bytes, offset: int) -> int:
        if len(content) > 1:  # flags of the record overwrite what is there
            if room[0] < len(content):
                raise OSError(errno.ENOSPC, "No space left on device")
            room[0] -= len(content)
        return write(descriptor, content, offset)

    async def story(world: World) -> None:
        async with world.member("donor") as donor, world.member("joiner") as joiner:
            theirs, own = fresh(1), fresh(2)
            before = hash_of(own)
            held = await world.publish(donor, theirs)
            monkeypatch.setattr("swarm.blobs.partial_blob.os.pwrite", limited)
            got, events = await world.join(joiner, own)
            assert got is None
            assert any(event.stage == "failed" and "No space left" in event.because for event in events)
            assert hash_of(own) == before
            assert blob_id(donor.store.read(held.advert.anchor.blob)) == held.advert.anchor.blob

            room[0] = 1 << 30
            got, _ = await world.join(joiner, own)
            assert got is not None
            assert hash_of(own) == hash_of(theirs)

    play(story)
