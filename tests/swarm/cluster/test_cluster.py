"""A private cluster in virtual time: joining, seats, expiry, revocation, another key, and clocks that are wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import anyio
import msgspec
import pytest
from trio.testing import MockClock

from protocol.cluster.admission import Admitted, certify, read_invite
from protocol.cluster.cluster_manifest import Cluster, ClusterManifest, sign_manifest
from protocol.cluster.documents import (
    Credential,
    FormerKey,
    Invitation,
    KeyChange,
    Revocations,
    sign_invitation,
    sign_key_change,
    sign_revocations,
)
from protocol.cluster.invite import Invite, address_to_invite, encode_invite
from protocol.cluster.refusal import RefusalReason
from protocol.errors import RefusedError, UnreachableError
from protocol.identity import NodeKey
from protocol.messages import GroupAdvert, PromptRef
from swarm import api
from swarm.cluster.joining import Newcomer, join
from swarm.cluster.membership import ClusterCredentials, Membership, decode_members, encode_members
from swarm.exit_codes import ExitCode, exit_code_of
from swarm.hosts.simulated.network import SimulatedNetwork
from swarm.relay_service import RelayService
from swarm.service import SwarmService
from swarm.settings import ServiceSettings

Running = TypeVar("Running", SwarmService, RelayService)
EPOCH = 1_790_000_000.0
HOUR, DAY = 3600.0, 86_400.0
OWNER = NodeKey(b"o" * 32)
PSK, OTHER_PSK = b"k" * 32, b"K" * 32
SETTLE_SECONDS = 3.0  # of virtual time, for news to cross a swarm
AT_ONCE_SECONDS = 2.0  # of virtual time: below every deadline of a handshake


def key_of(name: str) -> NodeKey:
    return NodeKey(sha256(name.encode()).digest())


class Lab:
    """A cluster, its owner, and members on one simulated network. ``kept`` are the files of each."""

    def __init__(self, directory: Path, **changes: object) -> None:
        self.network = SimulatedNetwork(seed=11)
        self.kept: dict[str, dict[str, bytes]] = {}
        self.refused: dict[str, RefusedError] = {}  # of nodes that a refusal ended
        fields: dict[str, object] = {
            "name": "lab", "tasks": (), "owner": OWNER.public_bytes, "made_seconds": int(EPOCH),
            "admission": "invitation", "members": 16, "membership_seconds": int(90 * DAY),
        }  # fmt: skip
        self.cluster: Cluster = sign_manifest(OWNER, ClusterManifest(**(fields | changes)))  # type: ignore[arg-type]
        self._directory = directory
        self._invites = 0
        founder = Admitted(key_of("founder").public_bytes, OWNER.public_bytes, True, 0.0, "founder")
        certificate = Credential("certificate", certify(OWNER, self.cluster, founder, self.now())).encode()
        self.kept["founder"] = {"credential": certificate, "psk": PSK}

    def now(self, ahead_seconds: float = 0.0) -> float:
        return EPOCH + DAY + anyio.current_time() + ahead_seconds

    def invite(
        self, *members: SwarmService | RelayService, psk: bytes = PSK, at: Sequence[str] = (), **changes: object
    ) -> Invite:
        """An invite by the owner with the addresses of ``members``, or with those of ``at``."""
        self._invites += 1
        key = key_of(f"invitation {self._invites}")
        now = int(self.now())
        fields: dict[str, object] = {
            "swarm_id": self.cluster.swarm_id, "key": key.public_bytes, "seats": 1, "needs_owner": False,
            "made_seconds": now, "valid_from_seconds": now, "join_by_seconds": now + int(7 * DAY), "name": "somebody",
        }  # fmt: skip
        document = sign_invitation(OWNER, Invitation(**(fields | changes)))  # type: ignore[arg-type]
        addresses = [member.host.addresses()[0] for member in members] or at
        text = encode_invite(document=document, key=key, owner=OWNER.public_bytes, psk=psk, addresses=addresses)
        invite = read_invite(text, float(fields["made_seconds"]))  # type: ignore[arg-type]
        assert isinstance(invite, Invite)
        return invite

    async def join(self, name: str, invite: Invite, *, ahead_seconds: float = 0.0) -> None:
        """Does what ``starling up --join`` does before it starts the node. Raises ``RefusedError``."""
        newcomer = Newcomer(key_of(name), invite, wall_clock=lambda: self.now(ahead_seconds))
        host = self.network.host(key_of(name), newcomer)
        async with host.run():
            await join(host, invite.addresses)
        credentials = newcomer.credentials
        assert credentials is not None
        self.kept[name] = {
            "credential": credentials.credential, "psk": credentials.psk, "revocations": credentials.revocations,
            "key-change": credentials.key_change, "addresses": "\n".join(invite.addresses).encode(),
        }  # fmt: skip
        self.kept[name]["members"] = encode_members(list(credentials.members))

    def credentials(self, name: str) -> ClusterCredentials:
        kept = self.kept[name]
        return ClusterCredentials(
            self.cluster, kept["psk"], kept["credential"], kept.get("revocations", b""), kept.get("key-change", b""),
            decode_members(kept["members"]) if "members" in kept else (),
        )  # fmt: skip

    @asynccontextmanager
    async def member(
        self,
        name: str,
        *peers: SwarmService | RelayService,
        owner: bool = False,
        ahead_seconds: float = 0.0,
        can_be_dialled: bool = True,
    ) -> AsyncIterator[SwarmService]:
        """Runs a node that joined, from its files; with ``owner`` it holds the owner's key."""
        made = self._made(SwarmService, name, peers, owner, ahead_seconds, can_be_dialled)
        async with self._running(name, made) as service:
            yield service

    @asynccontextmanager
    async def relay(self, name: str) -> AsyncIterator[RelayService]:
        """Runs ``starling relay`` from the files of a node that joined."""
        async with self._running(name, self._made(RelayService, name, (), False, 0.0, True)) as service:
            yield service

    def _made(
        self,
        kind: type[Running],
        name: str,
        peers: Sequence[SwarmService | RelayService],
        owner: bool,
        ahead_seconds: float,
        can_be_dialled: bool,
    ) -> Running:
        home = self._directory / name
        home.mkdir(exist_ok=True)
        key, kept = key_of(name), self.kept[name]
        membership = Membership(
            key, self.credentials(name), wall_clock=lambda: self.now(ahead_seconds), keep=kept.__setitem__,
            owner=OWNER if owner else None,
        )  # fmt: skip
        host = self.network.host(key, membership, can_be_dialled=can_be_dialled)
        known = [p.host.addresses()[0] for p in peers] or kept.get("addresses", b"").decode().split()
        settings = ServiceSettings(
            str(home), "lab", self.cluster.swarm_id.hex(), private=True, name=name, peers=tuple(known)
        )
        return kind(
            host, key, settings, wall_clock=lambda: self.now(ahead_seconds), random=Random(name), membership=membership
        )

    @asynccontextmanager
    async def _running(self, name: str, service: Running) -> AsyncIterator[Running]:
        async def live() -> None:
            try:
                await service.run()
            except RefusedError as error:
                self.refused[name] = error

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(live)
            await service.started.wait()
            yield service
            tasks.cancel_scope.cancel()

    def revocations(self, sequence: int, *names: str, invitations: tuple[bytes, ...] = ()) -> bytes:
        peers = tuple(key_of(name).public_bytes for name in names)
        listed = Revocations(self.cluster.swarm_id, sequence, int(self.now()), peers, invitations)
        return sign_revocations(OWNER, listed)

    def key_change(self, sequence: int, psk: bytes, *former: bytes, grace_seconds: float = DAY) -> bytes:
        until = int(self.now() + grace_seconds)
        keys = tuple(FormerKey(key, until) for key in former)
        return sign_key_change(OWNER, KeyChange(self.cluster.swarm_id, sequence, int(self.now()), psk, keys))


def play(story: Callable[[], Awaitable[None]]) -> None:
    anyio.run(story, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


async def revoke(service: SwarmService, document: bytes) -> None:
    assert await service.answer(api.Decree("revocations", document)) == api.Done()


async def share(service: SwarmService, seed: int) -> None:
    content = Random(seed).randbytes(500)
    advert = GroupAdvert(
        service.store.put(content), len(content), PromptRef("t", 1, bytes(16), seed), (1.0, 0.0), (5, 6), (-0.5, -0.2)
    )
    await service.answer(api.Share(bytes(16), bytes(16), 1, (advert,)))


async def sharers(service: SwarmService) -> set[str]:
    """The peers whose groups ``service`` saw."""
    reply = await service.answer(api.AskSeenGroups(0, 100))
    assert isinstance(reply, api.SeenGroups)
    return {group.peer for group in reply.groups}


def connected(service: SwarmService) -> set[str]:
    return set(service.host.peers())


def peer(name: str) -> str:
    return key_of(name).peer_id


async def refusal_of(lab: Lab, name: str, invite: Invite, **how: float) -> RefusedError:
    """Returns why a newcomer is refused: at once on both sides, with its exit code, and nothing is kept."""
    began = anyio.current_time()
    with pytest.raises(RefusedError) as refused:
        await lab.join(name, invite, **how)
    assert anyio.current_time() - began <= AT_ONCE_SECONDS
    assert not any(peer(name) in host.peers() for host in lab.network.hosts())
    assert exit_code_of(refused.value) == ExitCode.REFUSED
    assert name not in lab.kept
    return refused.value


async def end_of(lab: Lab, name: str, **how: Any) -> RefusedError:
    """Returns why a member's node, started from its files, ended: at once, with its exit code, and never connected."""
    began = anyio.current_time()
    async with lab.member(name, **how) as service:
        while name not in lab.refused:  # noqa: ASYNC110
            await anyio.sleep(0.05)
        assert await sharers(service) == set()
    assert anyio.current_time() - began <= AT_ONCE_SECONDS
    assert not any(peer(name) in host.peers() for host in lab.network.hosts())
    refused = lab.refused[name]
    assert exit_code_of(refused) == ExitCode.REFUSED
    return refused


def seconds_apart(refused: RefusedError) -> float:
    """By how much the clocks differ, as the message says."""
    return float(str(refused).partition(" s apart")[0].rpartition(" ")[2])


def test_newcomer_joins_by_an_open_invite_shares_and_needs_no_invite_the_next_time(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder", owner=True) as founder:
            await lab.join("wren", lab.invite(founder))
            for _ in range(2):  # the second start is from its files alone
                async with lab.member("wren") as wren:
                    await anyio.sleep(SETTLE_SECONDS)
                    assert connected(founder) == {peer("wren")}
                    await share(wren, 1)
                    await anyio.sleep(1.0)
                    assert await sharers(founder) == {peer("wren")}
                await anyio.sleep(40.0)

    play(story)


def test_members_who_never_met_know_each_other_and_take_each_others_announcements(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            invite = lab.invite(founder, seats=2)
            await lab.join("wren", invite)
            await lab.join("robin", invite)
            async with lab.member("wren") as wren, lab.member("robin") as robin:
                await anyio.sleep(SETTLE_SECONDS)
                lab.network.partition([wren.host], [robin.host])  # type: ignore[list-item]
                await anyio.sleep(30.0)
                await share(robin, 2)
                await anyio.sleep(2.0)
                assert await sharers(wren) == {peer("robin")}  # by way of the founder
                assert connected(wren) == {peer("founder")}

    play(story)


def test_member_admits_a_newcomer_while_the_owner_is_away_and_the_owner_learns_of_it(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder", owner=True) as founder:
            await lab.join("wren", lab.invite(founder))
            later = lab.invite(founder)
        async with lab.member("wren") as wren:
            await lab.join("robin", lab.invite(wren))
            refused = await refusal_of(lab, "finch", lab.invite(wren, needs_owner=True))
            assert refused.reason == RefusalReason.NEEDS_OWNER and "owner's node" in str(refused)
            with pytest.raises(UnreachableError, match="starling invite"):
                await lab.join("finch", later)
            async with lab.member("founder", owner=True) as founder, lab.member("robin") as robin:
                await anyio.sleep(SETTLE_SECONDS)
                await share(robin, 3)
                await anyio.sleep(10.0)
                assert await sharers(founder) == {peer("robin")}

    play(story)


def test_newcomer_joins_a_founder_behind_a_router_through_a_relay_that_is_a_member(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder", owner=True) as founder:  # where the relay can dial it, for once
            await lab.join("relay", lab.invite(founder))
        async with (
            lab.relay("relay") as relay,
            lab.member("founder", relay, owner=True, can_be_dialled=False) as founder,
        ):
            await anyio.sleep(60.0)
            (through,) = [a for a in founder.host.addresses() if "/p2p-circuit/" in a]
            await lab.join("wren", lab.invite(at=[address_to_invite(through)]))
            async with lab.member("wren", can_be_dialled=False) as wren:
                await anyio.sleep(60.0)
                assert wren.host.is_relayed(founder.host.peer_id)
                await share(wren, 1)
                await anyio.sleep(1.0)
                assert await sharers(founder) == {peer("wren")}

    play(story)


def test_invite_that_needs_the_owner_ends_in_a_certificate_that_every_member_takes(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path, admission="owner")
        async with lab.member("founder", owner=True) as founder:
            await lab.join("wren", lab.invite(founder, needs_owner=True))
            await lab.join("robin", lab.invite(founder, needs_owner=True))
        async with lab.member("wren"), lab.member("robin") as robin:
            await anyio.sleep(1.0)
            assert connected(robin) == set()  # neither knows the other's address
        async with lab.member("wren") as wren, lab.member("robin", wren) as robin:
            await anyio.sleep(SETTLE_SECONDS)
            assert connected(robin) == {peer("wren")}

    play(story)


def test_invite_for_one_is_not_for_a_second_peer_and_one_for_two_not_for_a_third(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            for seats in (1, 2):
                invite = lab.invite(founder, seats=seats)
                for number in range(seats):
                    await lab.join(f"guest {seats} {number}", invite)
                refused = await refusal_of(lab, f"one too many {seats}", invite)
                assert refused.reason == RefusalReason.TAKEN and "new invite" in str(refused)
                await lab.join(f"guest {seats} 0", invite)  # its own seat, after it lost its files

    play(story)


def test_seat_stays_taken_after_a_restart_and_after_its_holder_was_revoked(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            invite = lab.invite(founder)
            await lab.join("wren", invite)
            await revoke(founder, lab.revocations(1, "wren"))
        async with lab.member("founder") as founder:
            assert (await refusal_of(lab, "wren again", invite)).reason == RefusalReason.TAKEN
            await lab.join("robin", lab.invite(founder))
            async with lab.member("robin") as robin:
                await anyio.sleep(SETTLE_SECONDS)
                elsewhere = msgspec.structs.replace(invite, addresses=tuple(robin.host.addresses()))
                assert (
                    await refusal_of(lab, "wren again", elsewhere)
                ).reason == RefusalReason.TAKEN  # robin never met wren

    play(story)


def test_expired_invite_and_one_taken_back_let_nobody_in(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            short, taken_back = lab.invite(founder, join_by_seconds=int(lab.now() + 60)), lab.invite(founder)
            await revoke(founder, lab.revocations(1, invitations=(taken_back.invitation.key,)))
            refused = await refusal_of(lab, "wren", taken_back)
            assert refused.reason == RefusalReason.REVOKED and "starling invite" in str(refused)
            await anyio.sleep(90.0)
            refused = await refusal_of(lab, "wren", short)
            assert refused.reason == RefusalReason.EXPIRED and "starling invite" in str(refused)

    play(story)


def test_stranger_with_another_key_and_one_with_the_key_and_no_invite_of_the_owner(tmp_path: Path) -> None:
    async def story() -> None:
        lab, other = Lab(tmp_path), Lab(tmp_path, name="other")
        async with lab.member("founder") as founder:
            refused = await refusal_of(lab, "wren", lab.invite(founder, psk=OTHER_PSK))
            assert refused.reason == RefusalReason.WRONG_PSK and "pre-shared key" in str(refused)
            other.network = lab.network
            refused = await refusal_of(other, "wren", other.invite(founder))
            assert refused.reason == RefusalReason.WRONG_SWARM and "another cluster" in str(refused)
            assert connected(founder) == set()

    play(story)


@pytest.mark.parametrize("ahead_seconds", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_newcomer_and_member_whose_clock_is_off_by_an_hour_are_told_so(tmp_path: Path, ahead_seconds: float) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            made = int(lab.now() - 2 * HOUR)
            invite = lab.invite(founder, made_seconds=made, valid_from_seconds=made)
            refused = await refusal_of(lab, "wren", invite, ahead_seconds=ahead_seconds)
            assert refused.reason == RefusalReason.CLOCK and "timedatectl" in str(refused)
            assert abs(seconds_apart(refused) - HOUR) <= AT_ONCE_SECONDS  # greetings have whole seconds, and take time
            await lab.join("wren", invite)
            await anyio.sleep(700.0)
            ended = await end_of(lab, "wren", ahead_seconds=ahead_seconds / 6)
            assert ended.reason == RefusalReason.CLOCK and "timedatectl" in str(ended)
            assert abs(seconds_apart(ended) - HOUR / 6) <= AT_ONCE_SECONDS
            assert "founder" not in lab.refused

    play(story)


def test_revoked_while_connected_is_out_on_every_member_within_seconds_and_ends_by_itself(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        names = [f"member {number}" for number in range(7)]
        async with lab.member("founder") as founder, anyio.create_task_group() as tasks:
            invite = lab.invite(founder, seats=7)
            services: list[SwarmService] = [founder]

            async def live(name: str) -> None:
                async with lab.member(name) as service:
                    services.append(service)
                    await anyio.sleep_forever()

            for name in names:
                await lab.join(name, invite)
                tasks.start_soon(live, name)
            await anyio.sleep(20.0)
            out = peer(names[3])
            assert sum(out in connected(service) for service in services) >= 3
            await revoke(services[5], lab.revocations(1, names[3]))
            began = anyio.current_time()
            while any(out in connected(s) for s in services) or names[3] not in lab.refused:  # noqa: ASYNC110
                await anyio.sleep(0.1)
            assert anyio.current_time() - began < 10.0
            assert lab.refused[names[3]].reason == RefusalReason.REVOKED
            assert all("revocations" in lab.kept[name] for name in ["founder", *names])
            tasks.cancel_scope.cancel()

    play(story)


def test_revoked_while_away_is_told_when_it_comes_back_and_has_nothing_since(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            await lab.join("wren", lab.invite(founder))
            await lab.join("robin", lab.invite(founder))
            async with lab.member("robin"):
                await anyio.sleep(SETTLE_SECONDS)
                await revoke(founder, lab.revocations(1, "wren"))
                refused = await end_of(lab, "wren")
                assert refused.reason == RefusalReason.REVOKED and "revoked the membership" in str(refused)
            with pytest.raises(RefusedError, match="revoked"):  # from its own files, without asking a peer
                async with lab.member("wren"):
                    pass

    play(story)


@pytest.mark.parametrize("way", ["the owner's list is applied", "a new invite, after the key changed"])
def test_revoked_member_that_the_owner_readmits_is_one_again_on_every_member(tmp_path: Path, way: str) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            await lab.join("wren", lab.invite(founder))
            await lab.join("robin", lab.invite(founder))
            async with lab.member("robin", founder) as robin:
                await anyio.sleep(SETTLE_SECONDS)
                await revoke(founder, lab.revocations(1, "wren"))
                await end_of(lab, "wren")
                readmitted = lab.revocations(2)
                await revoke(founder, readmitted)
                if way == "the owner's list is applied":
                    lab.kept["wren"]["revocations"] = readmitted
                else:
                    changed = lab.key_change(1, OTHER_PSK, grace_seconds=0.0)
                    assert await founder.answer(api.Decree("key_change", changed)) == api.Done()
                    await anyio.sleep(SETTLE_SECONDS)
                    await lab.join("wren", lab.invite(founder, psk=OTHER_PSK))
                async with lab.member("wren", founder, robin) as wren:
                    await anyio.sleep(SETTLE_SECONDS)
                    assert sorted(wren.host.peers()) == sorted([founder.host.peer_id, robin.host.peer_id])

    play(story)


def test_list_of_revocations_crosses_a_partition_when_it_heals_and_an_older_one_changes_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            for name in ("wren", "robin"):
                await lab.join(name, lab.invite(founder))
            async with lab.member("wren") as wren, lab.member("robin", wren) as robin:
                await anyio.sleep(SETTLE_SECONDS)
                older = lab.revocations(1)
                lab.network.partition([founder.host], [wren.host, robin.host])  # type: ignore[list-item]
                await anyio.sleep(30.0)
                await revoke(founder, lab.revocations(2, "robin"))
                assert peer("robin") in connected(wren)
                lab.network.heal()
                await anyio.sleep(150.0)  # until they dial each other again
                assert peer("robin") not in connected(wren)
                with pytest.raises(RefusedError) as refusal:
                    await wren.answer(api.Decree("revocations", older))
                assert refusal.value.reason == RefusalReason.OUTDATED
                assert lab.refused["robin"].reason == RefusalReason.REVOKED

    play(story)


def test_files_of_before_a_revocation_readmit_nobody_once_a_member_is_met_that_knows_of_it(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            for name in ("wren", "robin"):
                await lab.join(name, lab.invite(founder))
            before = {name: dict(lab.kept[name]) for name in ("wren", "robin")}
            async with lab.member("wren", founder):
                await anyio.sleep(SETTLE_SECONDS)
                await revoke(founder, lab.revocations(1, "robin"))
                await anyio.sleep(SETTLE_SECONDS)
                assert "revocations" in lab.kept["wren"]
        lab.kept |= before  # both put back what they had
        async with lab.member("wren") as wren, lab.member("robin", wren):
            await anyio.sleep(SETTLE_SECONDS)
            assert peer("robin") in connected(wren)  # neither can know
            async with lab.member("founder") as founder:
                await anyio.sleep(150.0)  # until they dial it again
                assert peer("founder") in connected(wren) and peer("robin") not in connected(wren)
                assert lab.refused["robin"].reason == RefusalReason.REVOKED
                assert "revocations" in lab.kept["wren"]

    play(story)


def test_owners_node_renews_memberships_in_time_and_without_it_they_run_out_on_both_sides(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path, membership_seconds=240)
        async with lab.member("founder", owner=True) as founder:
            await lab.join("wren", lab.invite(founder))
            async with lab.member("wren") as wren:
                await anyio.sleep(600.0)
                assert connected(wren) == {peer("founder")}
            renewed = Membership(
                key_of("wren"), lab.credentials("wren"), wall_clock=lab.now, keep=lambda name, raw: None
            )
            mine = renewed.roster.of(peer("wren"))[0].admitted
            assert mine.certified and mine.until_seconds - lab.now() > 100.0
        async with lab.member("founder") as founder, lab.member("wren", founder) as wren:
            await anyio.sleep(SETTLE_SECONDS)
            assert connected(wren) == {peer("founder")}
            await anyio.sleep(240.0)
        assert {name: error.reason for name, error in lab.refused.items()} == {
            "founder": RefusalReason.EXPIRED,
            "wren": RefusalReason.EXPIRED,
        }
        async with lab.member("founder", owner=True):  # the owner's node certifies itself
            await anyio.sleep(SETTLE_SECONDS)

    play(story)


def test_another_key_reaches_members_at_once_and_those_away_within_its_grace(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            for name in ("wren", "robin", "finch"):
                await lab.join(name, lab.invite(founder))
            before = lab.invite(founder, seats=2)
            async with lab.member("wren") as wren:
                await anyio.sleep(SETTLE_SECONDS)
                await founder.answer(api.Decree("key_change", lab.key_change(1, OTHER_PSK, PSK, grace_seconds=60.0)))
                await anyio.sleep(SETTLE_SECONDS)
                assert OTHER_PSK in lab.kept["wren"]["key-change"]
                async with lab.member("robin"):
                    await anyio.sleep(SETTLE_SECONDS)
                    assert peer("robin") in connected(founder)
                    assert OTHER_PSK in lab.kept["robin"]["key-change"]
                await lab.join("newcomer", before)
                assert OTHER_PSK in lab.kept["newcomer"]["key-change"]
                await anyio.sleep(60.0)
                refused = await end_of(lab, "finch")
                assert refused.reason == RefusalReason.WRONG_PSK and "pre-shared key" in str(refused)
                assert (await refusal_of(lab, "late", before)).reason == RefusalReason.WRONG_PSK
                await lab.join("late", lab.invite(founder, psk=OTHER_PSK))
                assert peer("founder") in connected(wren)

    play(story)


def test_node_that_is_alone_after_its_key_was_changed_does_not_end_while_an_address_is_untried(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder", owner=True) as founder:
            await lab.join("wren", lab.invite(founder))
        lab.kept["founder"]["psk"] = OTHER_PSK
        lab.network.host(key_of("founder"))  # it does not listen: unreachable, and no refusal
        async with lab.member("wren") as wren:
            await anyio.sleep(60.0)
            assert connected(wren) == set()
        assert "wren" not in lab.refused

    play(story)


def test_announcement_of_a_peer_that_is_no_member_is_ignored_and_counted(tmp_path: Path) -> None:
    async def story() -> None:
        lab = Lab(tmp_path)
        async with lab.member("founder") as founder:
            await lab.join("wren", lab.invite(founder))
            await lab.join("robin", lab.invite(founder))
            async with lab.member("wren") as wren, lab.member("robin") as robin:
                await anyio.sleep(SETTLE_SECONDS)
                membership = wren._participant.membership
                assert membership is not None
                membership.take_revocations(lab.revocations(1, "robin"))  # and founder has not heard of it yet
                lab.network.partition([wren.host], [founder.host, robin.host])  # type: ignore[list-item]
                wren_before = dict(wren.gossip.rejected)
                await share(robin, 5)
                lab.network.heal()
                await anyio.sleep(SETTLE_SECONDS)
                assert await sharers(wren) == set()
                assert wren.gossip.rejected["no_member"] + wren.gossip.rejected["banned"] > sum(wren_before.values())

    play(story)
