"""Valid messages, carried on behind their decoders: to the pools, the learner's choices, and what the page shows."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import trio

from node.api.answers import peers_answer
from node.api.metrics import metrics_text
from node.api.swarm_summary import swarm_answer
from node.api.types import ChildStatus, NodeState, NodeStatus
from node.configuration import LearnerSection, ObjectiveSection, ResearchSection
from node.environments.built_in.all import CONVERSATIONS
from node.environments.conversation import ConversationTask, Played
from node.learner.foreign.candidates import as_scored
from node.learner.foreign.choice import choose
from node.learner.foreign.outcomes import Decided, ForeignOutcome, ForeignOutcomes
from node.learner.foreign.replay import ReplayPool
from node.learner.foreign.verification import check_rewards, check_turns, regenerated_prompt
from node.learner.objective.advantages import AdvantageRule
from node.learner.objective.training_groups import foreign_training_group
from node.policy.tokens import TokenTable, load_tokens
from node.state_sync.rebuild import rebuild
from node.state_sync.state_choice import StateRequirements, choose_state
from node.tasks.default_swarm import DEFAULT_TASKS
from node.tasks.scorer import Scores
from node.tasks.task import Task
from node.tasks.worker import score_one
from protocol import limits, wire
from protocol.identity import NodeKey
from protocol.messages import Goodbye, Heartbeat, RolloutAdvert, StateAdvert, StateBlob
from protocol.rollouts import decode_group, encode_group
from protocol.streams.peer_messages import PeerExchangeAnswer, decode_peer_message
from protocol.weights.dense_weights import encode_dense
from protocol.weights.tensor_layout import TensorLayout
from protocol.weights.weight_diff import Patterns, encode_diff, weights_hash
from scripts.attacks.fuzzing.blobs import extreme_group
from scripts.attacks.fuzzing.extremes import Extremes, encoded
from scripts.attacks.fuzzing.measuring import Act
from scripts.attacks.fuzzing.targets import Target
from scripts.vectors.announcement_vectors import example_groups
from scripts.vectors.stream_vectors import peer_messages
from swarm import api
from swarm.announcements.crowding import Standing
from swarm.announcements.group_pool import GroupPool
from swarm.api import Fetched
from swarm.hosts.simulated.network import SimulatedNetwork
from swarm.peers.discovery import ADDRESSES, AddressBook, AddressSource
from swarm.service import SwarmService
from swarm.settings import ServiceSettings

NOW = 1_790_000_000.0
SENDERS = 64
SHORT_BYTES = 1500  # an answer that is shorter meets an empty address book: a full one takes long to copy
SWARM_ID = bytes(16)
BODIES = (Heartbeat, RolloutAdvert, StateAdvert, Goodbye)


def carried_targets() -> list[Target]:
    groups = [encode_group(group) for group in example_groups().values()]
    return [
        Target("announcement, to the page", _Service().prepare, (), 0, _body, 12),
        Target("group advert, to the choice", _Choices().prepare, (), 0, _advert, 6),
        Target("group, to the batch", _Groups().prepare, groups, 4, extreme_group, 3),
        Target("state advert, to the choice", _chosen_state, (), 0, _state, 6),
        Target("addresses, to the book", _Addresses().prepare, _exchanges(), 2, _exchange, 0.1),
        Target("state, rebuilt", *_Rebuilding().parts()),
    ]


def _body(random: Random) -> bytes:
    """The body of an announcement; heartbeats half of the time, since most of what is shown comes from them."""
    kind = Heartbeat if random.random() < 0.5 else random.choice(BODIES)
    return encoded(random, kind, limits.ANNOUNCEMENT_BYTES - 512)


class _Service:
    """A member of a swarm on no network, and all that is shown of what it hears."""

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="fuzz-"))
        settings = ServiceSettings(str(self._home), "fuzz", SWARM_ID.hex(), lan_discovery=False)
        self._keys = [NodeKey(number.to_bytes(32, "big")) for number in range(1, SENDERS + 1)]
        self._clock = NOW

        async def made() -> SwarmService:  # its parts are made within a loop, and need none afterwards
            key = NodeKey(bytes([200]) * 32)
            host = SimulatedNetwork(1).host(key)
            return SwarmService(host, key, settings, wall_clock=lambda: self._clock, random=Random(1))

        self._service = trio.run(made)
        self._sequence = 0

    def prepare(self, raw: bytes) -> Act:
        """Signs this body as the next announcement of one of the senders."""
        self._sequence += 1
        self._clock += 1.0
        if self._sequence % (SENDERS * 8) == 0:
            self._clock += 3600.0
        key = self._keys[self._sequence % SENDERS]
        header = (1, 0, SWARM_ID, self._sequence, round(self._clock * 1000), key.public_bytes, msgspec.Raw(raw))
        payload = msgspec.msgpack.encode(header)
        sealed = msgspec.msgpack.encode((payload, key.sign(wire.ANNOUNCEMENT_DOMAIN, payload)))
        return lambda: self._heard(key.peer_id, sealed)

    def _heard(self, sender: str, sealed: bytes) -> None:
        verdict = self._service.gossip._validate(sender, sealed)
        if verdict.name == "ACCEPT":
            self._service.gossip._on_message(sender, sealed)
        seen = [self._status_of(sender)]
        answer = peers_answer(seen, [{}])
        msgspec.json.encode(answer)
        msgspec.json.encode(swarm_answer(_STATUS, answer))
        metrics_text(_STATUS, answer)
        msgspec.msgpack.encode(seen)

    def _status_of(self, sender: str) -> api.PeerStatus:
        notes = self._service._table.known(sender)
        age_seconds = 0.0 if notes.heartbeat is not None else None
        return api.PeerStatus(
            sender, True, (), 0.01, notes.heartbeat, age_seconds, notes.groups_announced, 0, 0, 0.5, None,
            notes.clock_offset_seconds,
        )  # fmt: skip


_CHILD = ChildStatus(12, 0, None)
_STATUS = NodeStatus(
    version="1", pid=1, home="/h", name="ann", peer="12D3KooWann", model="wren", state=NodeState.TRAINING,
    uptime_seconds=9.0, swarm_process=_CHILD, learner_process=_CHILD, swarm=None, loading=None, ready=None, round=None,
    checkpoint=None, fault=None, notes=(),
)  # fmt: skip


def _advert(random: Random) -> bytes:
    return encoded(random, RolloutAdvert, limits.ANNOUNCEMENT_BYTES - 512)


class _Choices:
    """A learner's pool of candidates, emptied now and then, and its choice after every advert."""

    def __init__(self) -> None:
        self._tasks: dict[str, Any] = {task.name: task for task in DEFAULT_TASKS}
        self._section = LearnerSection()
        self._inputs = 0

    def prepare(self, raw: bytes) -> Act:
        self._inputs += 1
        advert = msgspec.msgpack.decode(raw, type=RolloutAdvert)
        pool, sharing = ReplayPool(), GroupPool(lambda peer: Standing.STRANGER)
        draws = Random(self._inputs)

        def act() -> None:
            sharing.add(f"peer{self._inputs % 7}", advert, NOW)
            pool.add(sharing.after(0, 4096, NOW))
            for advantage in ("learner", "group"):
                research = ResearchSection(foreign_advantage=advantage)
                choice = choose(NOW, pool, self._tasks, lambda task: 0.1, self._section, draws, research)
            pool.settle(choice, 2)
            pool.position()

        return act


class _Groups:
    """A learner that checks a group and prepares it for training, in its own tokenizer and in another."""

    def __init__(self) -> None:
        models = Path(__file__).resolve().parents[3] / "node" / "models"
        self._tables: list[TokenTable] = [load_tokens(models / name, "auto") for name in ("wren", "robin")]
        known: tuple[Task, ...] = (*DEFAULT_TASKS, *CONVERSATIONS)
        self._tasks = {task.name: task for task in known}

    def prepare(self, raw: bytes) -> Act:
        table = self._tables[len(raw) % 2]

        def act() -> None:
            group = decode_group(raw)
            tasks: Sequence[Task] = CONVERSATIONS if group.converses else DEFAULT_TASKS
            task = tasks[group.prompt.seed % len(tasks)]
            prompt = msgspec.structs.replace(task.ref(0), seed=group.prompt.seed)
            group = replace(group, prompt=prompt, tokenizer=self._tokenizer(group, table))
            made = regenerated_prompt(group, self._tasks, table)
            rewards = [completion.reward for completion in group.completions]
            played: tuple[Played, ...] = ()
            if isinstance(task, ConversationTask):
                verdicts = [score_one(task, made, as_scored(completion)) for completion in group.completions]
                played = tuple(verdict.played for verdict in verdicts if verdict.played is not None)
                check_turns(group, Scores(tuple(rewards), (None,) * len(rewards), played))
            check_rewards(rewards, Scores(tuple(rewards), (None,) * len(rewards)))
            training = foreign_training_group(
                group, tuple(table.prompt_ids(made.text)), rewards, peer="p", tokens=table, section=ObjectiveSection(),
                rule=AdvantageRule(), success=0.1, context=256, max_new_tokens=task.max_new_tokens, played=played,
                asked=made,
            )  # fmt: skip
            outcomes = ForeignOutcomes()
            outcome = ForeignOutcome.USED if training.informative else ForeignOutcome.WITHOUT_GRADIENT
            outcomes.note(Decided.of_group(outcome, "p", group))

        return act

    @staticmethod
    def _tokenizer(group: Any, table: TokenTable) -> bytes:
        return table.fingerprint if group.policy_version % 2 else bytes(group.tokenizer)


def _state(random: Random) -> bytes:
    """A few states that peers announce, of our own layout."""
    draw = Extremes(random, random.choice((0.05, 1.0)))
    adverts = [msgspec.structs.replace(draw.of(StateAdvert), layout=bytes(16)) for _ in range(random.choice((1, 2, 5)))]
    fitting = [msgspec.structs.replace(a, anchor=StateBlob(a.anchor.blob, 100, a.anchor.weights)) for a in adverts]
    return msgspec.msgpack.encode(fitting)


def _chosen_state(raw: bytes) -> Act:
    adverts = msgspec.msgpack.decode(raw, type=list[StateAdvert])
    reputations = (0.5, 1.0, 0.35, 5e-324, 1 - 2**-53)
    seen = [api.SeenState(f"p{i}", NOW, reputations[i % 5], advert) for i, advert in enumerate(adverts)]
    ours = StateRequirements(bytes(16), ("chain_sum", "", "a"), 100, 2**50, None if len(raw) % 2 else 0.5)
    return lambda: choose_state(NOW, seen, ours, [])


def _exchanges() -> list[bytes]:
    return [bytes.fromhex(vector["frame"])[4:] for vector in peer_messages() if vector["kind"] == "answer"]


def _exchange(random: Random) -> bytes:
    """An answer of peer exchange with addresses that look like some."""
    own = tuple(_address(random) for _ in range(random.choice((0, 1, limits.ADDRESSES_PER_PEER))))
    others = tuple(_address(random) for _ in range(random.choice((0, 1, limits.ADDRESSES_PER_ANSWER))))
    return msgspec.msgpack.encode(PeerExchangeAnswer(SWARM_ID, own, others))


def _address(random: Random) -> str:
    ip = random.choice(
        ("1.2.3.4", f"10.0.0.{random.randrange(256)}", "", "٣.1.1.1", "::1%eth0", "256.1.1.1", "0" * 100)
    )
    peer = random.choice(("x", "12D3KooW" + "a" * random.randrange(180), str(random.randrange(10**6))))
    return (
        f"/{random.choice(('ip4', 'ip6', 'dns4', ''))}/{ip}/tcp/{random.choice(('1', '', 'x', '9' * 20))}/p2p/{peer}"[
            :256
        ]
    )


class _Addresses:
    """An address book that is full, as strangers would have it."""

    def __init__(self) -> None:
        self._full = AddressBook()
        for number in range(ADDRESSES):
            address = f"/ip4/10.{number // 256}.{number % 256}.1/tcp/1/p2p/peer{number}"
            self._full.add(address, AddressSource.PEER, teller=f"teller{number % 32}")

    def prepare(self, raw: bytes) -> Act:
        book = copy.deepcopy(self._full) if len(raw) > SHORT_BYTES else AddressBook()

        def act() -> None:
            answer = decode_peer_message(raw, PeerExchangeAnswer)
            for address in (*answer.own, *answer.others):
                book.add(address, AddressSource.PEER, teller="teller")

        return act


class _Rebuilding:
    """Files of an anchor and a diff, damaged, and the rebuilding of a state from them."""

    def __init__(self) -> None:
        self._layout = TensorLayout.of({"bias": (5,), "embedding": (40, 16), "scale": ()})
        base = [np.full(size, 0x3F80, np.uint16) for size in self._layout.sizes]
        target: list[Patterns] = [tensor.copy() for tensor in base]
        target[1][::7] += 1
        self._anchor, self._diff = encode_dense(self._layout, base), encode_diff(self._layout, base, target)
        self._hashes = [weights_hash(self._layout, each) for each in (base, target)]
        self._folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))

    def parts(self) -> Any:
        return self.prepare, [self._anchor, self._diff], 0.5

    def prepare(self, raw: bytes) -> Act:
        blobs = [raw, self._diff] if raw[:4] == self._anchor[:4] else [self._anchor, raw]
        paths = [self._folder / "anchor", self._folder / "diff"]
        for path, blob in zip(paths, blobs, strict=True):
            path.write_bytes(blob)
        named = [StateBlob(bytes(32), len(b), h) for b, h in zip(blobs, self._hashes, strict=True)]
        advert = StateAdvert(bytes(16), self._layout.digest, 1, 0, (), named[0], tuple(named[1:]))
        fetched = [Fetched(bytes(32), str(path), None) for path in paths]
        return lambda: rebuild(advert, fetched, self._layout)
