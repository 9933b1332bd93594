"""Writes the test vectors under tests/vectors: values beside the bytes that stand for them on the wire.

Another implementation is right if it makes these bytes of these values, these values of these bytes, and refuses what
is listed as refused for the reason given. In the JSON, byte strings are hexadecimal. zstd frames, in a group
and in a weight diff, are the one part that need not be equal: their decompressed content must be.

Run it after a change of the protocol that is meant: ``python scripts/make_vectors.py``; ``--check`` only compares.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zstandard

from protocol import limits
from protocol.blob_id import blob_id, chunk_hashes
from protocol.cluster.admission import Admitted, judge_credential
from protocol.cluster.cluster_manifest import Cluster, ClusterManifest, sign_manifest
from protocol.cluster.documents import (
    Certificate,
    Credential,
    Invitation,
    Revocations,
    sign_certificate,
    sign_invitation,
    sign_join,
    sign_revocations,
)
from protocol.cluster.invite import encode_invite
from protocol.identity import NodeKey
from protocol.manifest import Manifest
from protocol.messages import (
    Body,
    Goodbye,
    GroupAdvert,
    Heartbeat,
    PromptRef,
    RolloutAdvert,
    StateAdvert,
    StateBlob,
    TaskSuccess,
)
from protocol.rollouts import GROUP_MAGIC, Completion, FinishReason, Group, advert_of, encode_group
from protocol.weights.compressed_weights import encode_compressed
from protocol.weights.dense_weights import encode_dense
from protocol.weights.sparse_update import encode_update
from protocol.weights.sparsify import sparsify
from protocol.weights.tensor_layout import TensorLayout
from protocol.weights.weight_diff import Patterns, encode_diff, weights_hash
from protocol.weights.weight_slice import quantise, towards
from protocol.wire import ANNOUNCEMENT_DOMAIN, seal

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "vectors"
SEED = bytes(range(32))
SWARM_ID = bytes(range(0xA0, 0xB0))
NOW_SECONDS = 1_790_000_000.25
FAMILY = b"family__________"
TOKENIZER = b"tokenizer_______"

Json = dict[str, Any]


def plain(value: Any) -> Any:
    """A value of the protocol in terms of JSON: byte strings as hexadecimal, structs as objects."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value.tolist()]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def identities() -> list[Json]:
    """Keys, their peer ids, and one signature each."""
    vectors = []
    for seed in (SEED, bytes(32), b"\xff" * 32):
        key = NodeKey(seed)
        message = b"what is signed"
        vectors.append(
            {
                "seed": seed.hex(),
                "public_key": key.public_bytes.hex(),
                "peer_id": key.peer_id,
                "domain": ANNOUNCEMENT_DOMAIN.decode(),
                "message": message.hex(),
                "signature": key.sign(ANNOUNCEMENT_DOMAIN, message).hex(),
            }
        )
    return vectors


def pattern(size_bytes: int) -> bytes:
    """The content of the blob vectors: byte i is i modulo 251."""
    period = bytes(range(251))
    return (period * (size_bytes // 251 + 1))[:size_bytes]


def blob_ids() -> list[Json]:
    """Ids of blobs around the borders of chunks."""
    sizes = (0, 1, limits.CHUNK_BYTES - 1, limits.CHUNK_BYTES, limits.CHUNK_BYTES + 1, 3 * limits.CHUNK_BYTES)
    return [
        {
            "size": size,
            "content": "byte i is i modulo 251",
            "chunk_hashes": plain(chunk_hashes(pattern(size))),
            "id": blob_id(pattern(size)).hex(),
        }
        for size in sizes
    ]


def manifests() -> list[Json]:
    """Manifests, their canonical bytes and swarm ids."""
    examples = (
        Manifest("starling", ()),
        Manifest("starling", (("chain_sum", 1, b"\x01" * 16), ("basic_arithmetic", 200, b"\x02" * 16))),
        Manifest("стая", (("chain_sum", 1, b"\x01" * 16),)),
    )
    return [
        {"manifest": plain(manifest), "canonical": manifest.encode().hex(), "swarm_id": manifest.swarm_id.hex()}
        for manifest in examples
    ]


def example_groups() -> dict[str, Group]:
    """Groups that together use every form a column can take."""

    def completion(text: str, ids: list[int], lengths: list[int], logps: list[float], reward: float) -> Completion:
        finish = FinishReason.STOP if lengths and lengths[-1] == 0 else FinishReason.LENGTH
        columns = (np.array(ids, np.int64), np.array(lengths, np.int64), np.array(logps, np.float32))
        return Completion(text.encode(), *columns, finish, reward)

    def group(*completions: Completion) -> Group:
        return Group(PromptRef("chain_sum", 1, b"\x01" * 16, 2**63 - 1), FAMILY, TOKENIZER, 7, completions)

    return {
        "one byte an id": group(
            completion("12+3", [1, 2, 3, 255, 0], [1, 1, 1, 1, 0], [-0.5, -1.0, -0.25, -31.5, 0.0], 1.0),
            completion("7", [9], [1], [-0.125], 0.0),
        ),
        "two bytes an id": group(completion("Öl 12", [256, 65_535, 7], [3, 3, 0], [-2.0, -0.75, -3.5], 0.5)),
        "three bytes an id": group(completion("answer", [151_935, limits.TOKEN_ID], [6, 0], [-1.5, -0.0625], -1000.0)),
        "no tokens": group(completion("", [], [], [], 0.0)),
        "log-probabilities at the floor": group(completion("ab", [1, 2], [1, 1], [-65535 / 2048, -1 / 2048], 0.25)),
    }


def groups() -> list[Json]:
    """Rollout groups: values, MessagePack content, blob, id, advert."""
    vectors = []
    for name, group in example_groups().items():
        blob = encode_group(group)
        vectors.append(
            {
                "name": name,
                "group": plain(group),
                "content": zstandard.decompress(blob[len(GROUP_MAGIC) :]).hex(),
                "blob": blob.hex(),
                "advert": plain(advert_of(group, blob)),
            }
        )
    return vectors


def example_bodies() -> dict[str, Body]:
    task = TaskSuccess("chain_sum", 0.375, 1000)
    advert = GroupAdvert(
        b"\x11" * 32, 2400, PromptRef("chain_sum", 1, b"\x01" * 16, 42), (1.0, 0.0), (64, 65_536), (-0.5, -1.25)
    )
    return {
        "heartbeat": Heartbeat(
            "wren-3", "starling 0.1.0", "builtin:wren", FAMILY, TOKENIZER, 12, 11, "generate", 8200.5, 48, 24, (task,)
        ),
        "rollouts": RolloutAdvert(FAMILY, TOKENIZER, 11, (advert, advert)),
        "goodbye": Goodbye("stopped by its owner"),
        "state": StateAdvert(
            FAMILY,
            b"\x22" * 16,
            11,
            2,
            (task,),
            StateBlob(b"\x33" * 32, 2**31, b"\x44" * 32),
            (StateBlob(b"\x55" * 32, 1, b"\x66" * 32), StateBlob(b"\x77" * 32, 2**40, b"\x88" * 32)),
        ),
    }


def announcements() -> list[Json]:
    """One announcement of every kind."""
    key = NodeKey(SEED)
    return [
        {
            "seed": SEED.hex(),
            "swarm_id": SWARM_ID.hex(),
            "sequence": 2**40 + sequence,
            "time_milliseconds": round(NOW_SECONDS * 1000),
            "kind": kind,
            "body": plain(body),
            "announcement": seal(
                key, swarm_id=SWARM_ID, sequence=2**40 + sequence, time_seconds=NOW_SECONDS, body=body
            ).hex(),
        }
        for sequence, (kind, body) in enumerate(example_bodies().items())
    ]


def signed(payload: list[Any]) -> bytes:
    """An announcement with any payload at all, rightly signed."""
    raw = msgspec.msgpack.encode(payload)
    return msgspec.msgpack.encode((raw, NodeKey(SEED).sign(ANNOUNCEMENT_DOMAIN, raw)))


def refused() -> list[Json]:
    """Announcements that must be refused, and the reason that must be given; swarm and time as in the good ones."""
    public = NodeKey(SEED).public_bytes
    now = round(NOW_SECONDS * 1000)
    window = round(limits.CLOCK_WINDOW_SECONDS * 1000)
    goodbye = ["goodbye", "bye"]
    good = signed([1, 0, SWARM_ID, 1, now, public, goodbye])
    prompt = ["chain_sum", 1, b"\x01" * 16, 42]

    def advert(rewards: list[Any], lengths: list[Any], mean_logps: list[Any]) -> bytes:
        group = [b"\x11" * 32, 2400, prompt, rewards, lengths, mean_logps]
        return signed([1, 0, SWARM_ID, 1, now, public, ["rollouts", FAMILY, TOKENIZER, 11, [group]]])

    def state(anchor: list[Any], diffs: list[Any]) -> bytes:
        return signed([1, 0, SWARM_ID, 1, now, public, ["state", FAMILY, bytes(16), 11, 0, [], anchor, diffs]])

    nested: list[Any] = []
    for _ in range(limits.NESTING_DEPTH):
        nested = [nested]
    cases = {
        "malformed: truncated": good[:-1],
        "malformed: bytes after the end": good + b"\x00",
        "malformed: an extension type": signed(
            [1, 0, SWARM_ID, 1, now, public, ["goodbye", msgspec.msgpack.Ext(5, b"x")]]
        ),
        "malformed: lengths disagree": advert([1.0, 0.0], [64], [-0.5, -0.5]),
        "malformed: a positive mean log-probability": advert([1.0], [64], [0.5]),
        "malformed: a mean log-probability that is not a number": advert([1.0], [64], [float("nan")]),
        "malformed: a group without completions": advert([], [], []),
        "malformed: a state of no size": state([bytes(32), 0, bytes(32)], []),
        "malformed: a state with more diffs than allowed": state(
            [bytes(32), 9, bytes(32)], [[bytes(32), 9, bytes(32)]] * (limits.STATE_DIFFS + 1)
        ),
        "oversized: nested too deeply": signed([1, 0, SWARM_ID, 1, now, public, ["goodbye", nested]]),
        "version: a later major version": signed([2, 0, "laid out otherwise"]),
        "wrong_swarm: another swarm": signed([1, 0, bytes(16), 1, now, public, goodbye]),
        "clock: from the far future": signed([1, 0, SWARM_ID, 1, now + window + 1, public, goodbye]),
        "clock: from the far past": signed([1, 0, SWARM_ID, 1, now - window - 1, public, goodbye]),
        "signature: one bit changed": good[:-1] + bytes([good[-1] ^ 1]),
        "signature: by another key": signed([1, 0, SWARM_ID, 1, now, NodeKey(bytes(32)).public_bytes, goodbye]),
        "unknown_kind: a kind of a later minor version": signed([1, 1, SWARM_ID, 1, now, public, ["sermon", 1]]),
    }
    return [{"name": name, "reason": name.split(":")[0], "announcement": raw.hex()} for name, raw in cases.items()]


CLUSTER_MADE = 1_790_000_000
OWNER, INVITATION_KEY, PEER, STRANGER = (NodeKey(bytes([number]) * 32) for number in (1, 2, 3, 4))


def example_cluster() -> Cluster:
    tasks = (("chain_sum", 1, b"\x01" * 16),)
    return sign_manifest(
        OWNER, ClusterManifest("lab", tasks, OWNER.public_bytes, CLUSTER_MADE, "invitation", 8, 7_776_000)
    )


def example_invitation(signer: NodeKey = OWNER, **changes: Any) -> bytes:
    times = (CLUSTER_MADE, CLUSTER_MADE + 3600, CLUSTER_MADE + 604_800)
    invitation = Invitation(example_cluster().swarm_id, INVITATION_KEY.public_bytes, 2, False, *times, "Wren")
    return sign_invitation(signer, msgspec.structs.replace(invitation, **changes))


def judged_credentials(cluster: Cluster) -> list[Json]:
    """Credentials shown by one peer at one time, and what every member must make of them; nobody else is known."""

    def join(at: int = CLUSTER_MADE + 3600, document: bytes | None = None, peer: NodeKey = PEER) -> bytes:
        joined = sign_join(INVITATION_KEY, peer, invitation=document or example_invitation(), time_seconds=at)
        return Credential("join", joined).encode()

    def certificate(signer: NodeKey = OWNER, **changes: Any) -> bytes:
        body = Certificate(
            cluster.swarm_id, PEER.public_bytes, bytes(32), CLUSTER_MADE, CLUSTER_MADE + 7_776_000, "Wren"
        )
        signed = sign_certificate(signer, msgspec.structs.replace(body, **changes))
        return Credential("certificate", signed).encode()

    hour, week = CLUSTER_MADE + 3600, CLUSTER_MADE + 604_800
    revoked = Revocations(cluster.swarm_id, 7, CLUSTER_MADE, (PEER.public_bytes,), ())
    taken_back = Revocations(cluster.swarm_id, 8, CLUSTER_MADE, (), (INVITATION_KEY.public_bytes,))
    cases: list[tuple[str, bytes, int, Revocations | None]] = [
        ("open join", join(), hour, None),
        ("certificate", certificate(), hour, None),
        ("open join, long after its invitation expired", join(), week + 604_800, None),
        (
            "certificate, its invitation taken back",
            certificate(invitation=INVITATION_KEY.public_bytes),
            hour,
            taken_back,
        ),
        ("truncated", join()[:-1], hour, None),
        ("one bit changed", join()[:-1] + bytes([join()[-1] ^ 1]), hour, None),
        ("invitation by another owner", join(document=example_invitation(STRANGER)), hour, None),
        ("certificate by another owner", certificate(STRANGER), hour, None),
        ("shown by another peer", join(peer=STRANGER), hour, None),
        ("another swarm", certificate(swarm_id=bytes(16)), hour, None),
        ("from the future", certificate(made_seconds=hour + 301), hour, None),
        ("joined before the invitation is valid", join(CLUSTER_MADE + 3600 - 301), hour, None),
        ("joined after the invitation expired", join(week), week, None),
        ("membership over", certificate(), CLUSTER_MADE + 7_776_000, None),
        ("revoked", certificate(), hour, revoked),
        ("invitation taken back", join(), hour, taken_back),
        ("needs the owner", join(document=example_invitation(needs_owner=True)), hour, None),
    ]
    vectors = []
    for name, credential, now, revocations in cases:
        answer = judge_credential(now, cluster, revocations, {}, credential, PEER.public_bytes)
        vectors.append(
            {
                "name": name,
                "credential": credential.hex(),
                "now_seconds": now,
                "revocations": sign_revocations(OWNER, revocations).hex() if revocations else None,
                "answer": plain(answer) if isinstance(answer, Admitted) else str(answer.reason),
            }
        )
    return vectors


def membership() -> list[Json]:
    """A cluster, an invite to it, and credentials with the answers to them. Keys are seeds of one repeated byte."""
    cluster = example_cluster()
    psk = bytes(range(100, 132))
    addresses = [f"/ip4/192.0.2.7/tcp/4001/p2p/{PEER.peer_id}", f"/ip6/2001:db8::7/tcp/65535/p2p/{PEER.peer_id}"]
    invite = encode_invite(
        document=example_invitation(), key=INVITATION_KEY, owner=OWNER.public_bytes, psk=psk, addresses=addresses
    )
    return [
        {
            "owner_seed": OWNER.private_bytes.hex(),
            "invitation_seed": INVITATION_KEY.private_bytes.hex(),
            "peer_seed": PEER.private_bytes.hex(),
            "psk": psk.hex(),
            "addresses": addresses,
            "manifest": plain(cluster.manifest),
            "swarm_id": cluster.swarm_id.hex(),
            "manifest_document": cluster.document.hex(),
            "invitation_document": example_invitation().hex(),
            "invite": invite,
            "credentials": judged_credentials(cluster),
        }
    ]


def ramp(size: int, multiplier: int) -> list[float]:
    """Values without a random generator: entry i is ((i · multiplier) mod 2003 − 1001) / 1024, exact in float32."""
    return [((index * multiplier) % 2003 - 1001) / 1024 for index in range(size)]


UPDATE_SHAPES = {"bias": (5,), "embedding": (3, 1400), "scale": ()}


def sparse_updates() -> list[Json]:
    """Residual and change of every tensor, the codebooks, the blob, and the hash of what is left, tensors in order."""
    layout = TensorLayout.of(UPDATE_SHAPES)
    vectors = []
    for kept, decay in ((64, 0.95), (128, 1.0), (1, 0.5)):
        residuals = [np.array(ramp(size, 577), np.float32) for size in layout.sizes]
        tensors = [
            sparsify(residual, np.array(ramp(size, 1201), np.float32), decay=decay, kept=kept)
            for residual, size in zip(residuals, layout.sizes, strict=True)
        ]
        vectors.append(
            {
                "layout": plain(layout.tensors),
                "layout_digest": layout.digest.hex(),
                "residuals": "entry i is ((i * 577) mod 2003 - 1001) / 1024",
                "deltas": "entry i is ((i * 1201) mod 2003 - 1001) / 1024",
                "decay": decay,
                "kept": kept,
                "codebooks": [plain(tensor.codebook) for tensor in tensors],
                "residuals_left_sha256": hashlib.sha256(np.concatenate(residuals).astype("<f4").tobytes()).hexdigest(),
                "blob": encode_update(layout, tensors).hex(),
            }
        )
    return vectors


def compressed_weights() -> list[Json]:
    """Weights, steps, the slice's codes, the blob, and what a receiver near by is told, tensors in order."""
    layout = TensorLayout.of(UPDATE_SHAPES)
    update = bytes.fromhex(sparse_updates()[0]["blob"])
    steps = np.array([0.25, 0.0625, 0.3], np.float32)
    vectors = []
    for stride, phase, bits in ((18, 5, 3), (1, 0, 1), (5000, 4999, 8)):
        weights = [np.array(ramp(size, 577), np.float32) for size in layout.sizes]
        own = [tensor + np.float32(0.01) for tensor in weights]
        part = quantise(layout, weights, steps, stride=stride, phase=phase, bits=bits)
        told = np.concatenate(towards(layout, part, own))
        vectors.append(
            {
                "layout": plain(layout.tensors),
                "weights": "entry i is ((i * 577) mod 2003 - 1001) / 1024",
                "own": "the same plus 0.01, in float32",
                "stride": stride,
                "phase": phase,
                "bits": bits,
                "steps": plain(steps),
                "codes_sha256": hashlib.sha256(part.codes.tobytes()).hexdigest(),
                "differences_sha256": hashlib.sha256(told.astype("<f4").tobytes()).hexdigest(),
                "blob": encode_compressed(layout, update, part).hex(),
            }
        )
    return vectors


def weight_diffs() -> list[Json]:
    """bf16 patterns of base and target, their hashes, and a blob that leads from one to the other."""
    layout = TensorLayout.of({"bias": (5,), "embedding": (3, 1400), "frozen": (2, 2), "new": (40,)})

    def patterns(multiplier: int) -> list[Patterns]:
        return [(np.arange(size) * multiplier % 65_521).astype(np.uint16) for size in layout.sizes]

    base = patterns(40_503)
    target = [tensor.copy() for tensor in base]
    target[0][[0, 4]] ^= 0x8000
    target[1][::101] += np.uint16(1)
    target[1][50::303] -= np.uint16(2)
    target[3] = patterns(30_011)[3]
    return [
        {
            "layout": plain(layout.tensors),
            "base": [tensor.astype("<u2").tobytes().hex() for tensor in base],
            "target": [tensor.astype("<u2").tobytes().hex() for tensor in target],
            "base_hash": weights_hash(layout, base).hex(),
            "target_hash": weights_hash(layout, target).hex(),
            "blob": encode_diff(layout, base, target).hex(),
        }
    ]


def dense_weights() -> list[Json]:
    """bf16 patterns of whole weights and their blob: both zeros, a subnormal and the largest values are among them."""
    layout = TensorLayout.of({"bias": (5,), "embedding": (3, 40), "scale": ()})
    tensors = [(np.arange(size) * 40_503 % 0x4780).astype(np.uint16) for size in layout.sizes]
    tensors[0][:] = (0x0000, 0x8000, 0x0001, 0x4780, 0xC780)
    return [
        {
            "layout": plain(layout.tensors),
            "tensors": [tensor.astype("<u2").tobytes().hex() for tensor in tensors],
            "blob": encode_dense(layout, tensors).hex(),
        }
    ]


def all_vectors() -> dict[str, list[Json]]:
    """Every file of vectors by its name."""
    return {
        "identities.json": identities(),
        "blob_ids.json": blob_ids(),
        "manifests.json": manifests(),
        "groups.json": groups(),
        "announcements.json": announcements(),
        "refused_announcements.json": refused(),
        "membership.json": membership(),
        "sparse_updates.json": sparse_updates(),
        "compressed_weights.json": compressed_weights(),
        "weight_diffs.json": weight_diffs(),
        "dense_weights.json": dense_weights(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file differs")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    different = []
    for name, vectors in all_vectors().items():
        text = json.dumps(vectors, indent=1, ensure_ascii=False) + "\n"
        path = FOLDER / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            different.append(name)
            if not options.check:
                path.write_text(text, encoding="utf-8")
    print(f"{'differ' if options.check else 'written'}: {', '.join(different) or 'none'}")
    return 1 if options.check and different else 0


if __name__ == "__main__":
    sys.exit(main())
