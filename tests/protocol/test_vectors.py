"""tests/vectors in both directions: the values give these bytes, and the bytes these values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pytest
import zstandard

from protocol import errors, limits
from protocol.blob_id import blob_id, chunk_hashes
from protocol.cluster.admission import Admitted, judge_credential, judge_revocations
from protocol.cluster.cluster_manifest import ClusterManifest, open_manifest, sign_manifest
from protocol.cluster.invite import decode_invite, encode_invite
from protocol.conversations import Action, beginning_digest, turn_digest
from protocol.donor_invitation import DonorInvitation, decode_donor_invitation, encode_donor_invitation
from protocol.gossip_message import MESSAGE_ID_BYTES, gossip_message_id
from protocol.identity import NodeKey, peer_id_of, public_bytes_of, verify
from protocol.limits import CHUNK_BYTES
from protocol.manifest import Manifest, decode_manifest
from protocol.meeting_points import dht_key, gossip_topic
from protocol.messages import Body, GroupAdvert, PromptRef
from protocol.rollouts import GROUP_MAGIC, Completion, FinishReason, Group, advert_of, decode_group, encode_group
from protocol.streams.averaging_messages import AveragingMessage, DeclineReason, decode_averaging_message
from protocol.streams.blob_messages import (
    ANSWER_HEADER_BYTES,
    BlobStatus,
    ChunkRange,
    decode_answer_header,
    decode_blob_request,
)
from protocol.streams.engine_batches import opened_batch, opened_observations
from protocol.streams.engine_messages import (
    EngineAnswer,
    EngineRequest,
    Generate,
    Observe,
    decode_engine_answer,
    decode_engine_request,
)
from protocol.streams.framing import LENGTH_BYTES, checked_body_length, framed_message
from protocol.streams.handshake_messages import (
    HandshakeAnswer,
    HandshakeConclusion,
    HandshakeGreeting,
    decode_handshake,
)
from protocol.streams.lend_messages import (
    LendAnswer,
    LendHello,
    LendRefusal,
    decode_lend_answer,
    decode_lend_hello,
)
from protocol.streams.letter_messages import (
    AskAboutLetter,
    HoldLetter,
    LetterAnswer,
    LetterReceipt,
    LetterRequest,
    decode_letter_message,
)
from protocol.streams.manifest_messages import decode_manifest_of, manifest_frame
from protocol.streams.member_messages import MembersAnswer, MembersNews, MembersQuestion, decode_members_message
from protocol.streams.peer_messages import PeerExchangeAnswer, PeerExchangeQuestion, decode_peer_message
from protocol.streams.stage_messages import (
    StageAnswer,
    StageRefusal,
    StageRequest,
    decode_stage_answer,
    decode_stage_request,
)
from protocol.swarm_list import SwarmList, open_swarm_list, sign_swarm_list
from protocol.weights.compressed_weights import decode_compressed, encode_compressed
from protocol.weights.dense_weights import encode_dense, open_dense
from protocol.weights.sparse_update import decode_update, encode_update
from protocol.weights.sparsify import sparsify
from protocol.weights.tensor_layout import TensorLayout
from protocol.weights.weight_diff import Patterns, apply_diff, weights_hash
from protocol.weights.weight_slice import quantise_slice, slice_differences
from protocol.wire import open_announcement, seal
from scripts.make_vectors import FOLDER, all_vectors
from scripts.vectors.cluster_vectors import PEER
from scripts.vectors.plain_values import pattern, plain
from scripts.vectors.tensor_vectors import ramp

STREAM_KINDS: dict[str, dict[str, type[msgspec.Struct]]] = {
    "averaging": {kind.__struct_config__.tag: kind for kind in get_args(AveragingMessage)},
    "peer": {"question": PeerExchangeQuestion, "answer": PeerExchangeAnswer},
    "handshake": {"greeting": HandshakeGreeting, "answer": HandshakeAnswer, "conclusion": HandshakeConclusion},
    "engine": {f"request {kind.__struct_config__.tag}": kind for kind in get_args(EngineRequest)}
    | {f"answer {kind.__struct_config__.tag}": kind for kind in get_args(EngineAnswer)},
    "lend": {"hello": LendHello} | {kind.__struct_config__.tag: kind for kind in get_args(LendAnswer)},
    "stage": {f"request {kind.__struct_config__.tag}": kind for kind in get_args(StageRequest)}
    | {f"answer {kind.__struct_config__.tag}": kind for kind in get_args(StageAnswer)},
    "letter": {
        "request": LetterRequest,
        "answer": LetterAnswer,
        "hold": HoldLetter,
        "ask": AskAboutLetter,
        "receipt": LetterReceipt,
    },
    "member": {"question": MembersQuestion, "answer": MembersAnswer, "news": MembersNews},
}


def decode_engine_message(raw: bytes, kind: type[msgspec.Struct] | None) -> msgspec.Struct:
    """An answer where one is expected, and otherwise a request with columns that agree."""
    if kind in get_args(EngineAnswer):
        return decode_engine_answer(raw)
    request = decode_engine_request(raw)
    if isinstance(request, Generate):
        opened_batch(request)
    elif isinstance(request, Observe):
        opened_observations(request)
    return request


STREAM_DECODERS: dict[str, Callable[[bytes, Any], msgspec.Struct]] = {
    "averaging": lambda raw, kind: decode_averaging_message(raw),
    "peer": decode_peer_message,
    "engine": decode_engine_message,
    "handshake": decode_handshake,
    "lend": lambda raw, kind: decode_lend_hello(raw) if kind is LendHello else decode_lend_answer(raw),
    "letter": decode_letter_message,
    "member": decode_members_message,
    "stage": lambda raw, kind: (decode_stage_answer if kind in get_args(StageAnswer) else decode_stage_request)(raw),
}
KINDS = {kind.__struct_config__.tag: kind for kind in get_args(Body)}


def vectors(name: str) -> list[Any]:
    content: list[Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert content
    return content


def built(type_: Any, value: Any) -> Any:
    """The value of a protocol type that the JSON of a vector stands for."""
    if get_origin(type_) is tuple:
        inner = get_args(type_)
        types = inner[:1] * len(value) if inner[-1] is ... else inner
        return tuple(built(one, item) for one, item in zip(types, value, strict=True))
    if get_origin(type_) in (UnionType, Union):  # the latter is what ``X | None`` makes of an annotated X
        return None if value is None else built(get_args(type_)[0], value)
    if type_ is bytes:
        return bytes.fromhex(value)
    if type_ is int:
        return int(value)
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return type_(**{name: built(hint, value[name]) for name, hint in get_type_hints(type_).items()})
    if isinstance(type_, type) and issubclass(type_, StrEnum):
        return type_(value)
    return value


def built_group(value: Any) -> Group:
    completions = tuple(
        Completion(
            bytes.fromhex(c["text"]),
            np.array(c["token_ids"], np.int64),
            np.array(c["token_bytes"], np.int64),
            np.array(c["logps"], np.float32),
            FinishReason(c["finish"]),
            c["reward"],
            tuple(Action(a["tokens"], a["stopped"], bytes.fromhex(a["digest"])) for a in c["actions"]),
        )
        for c in value["completions"]
    )
    hashes = bytes.fromhex(value["family"]), bytes.fromhex(value["tokenizer"])
    beginning = bytes.fromhex(value["beginning"])
    return Group(built(PromptRef, value["prompt"]), *hashes, value["policy_version"], completions, beginning)


@pytest.mark.parametrize("vector", vectors("identities"), ids=lambda v: v["peer_id"])
def test_identity(vector: Any) -> None:
    key = NodeKey(bytes.fromhex(vector["seed"]))
    public, signature = bytes.fromhex(vector["public_key"]), bytes.fromhex(vector["signature"])
    domain, message = vector["domain"].encode(), bytes.fromhex(vector["message"])
    assert (key.public_bytes, key.peer_id, key.sign(domain, message)) == (public, vector["peer_id"], signature)
    assert peer_id_of(public) == vector["peer_id"]
    assert public_bytes_of(vector["peer_id"]) == public
    verify(public, domain, message, signature)


@pytest.mark.parametrize("vector", vectors("blob_ids"), ids=lambda v: v["size"])
def test_blob_id(vector: Any) -> None:
    content = pattern(vector["size"])
    assert [digest.hex() for digest in chunk_hashes(content)] == vector["chunk_hashes"]
    assert blob_id(content).hex() == vector["id"]


@pytest.mark.parametrize("vector", vectors("manifests"), ids=lambda v: v["manifest"]["name"])
def test_manifest(vector: Any) -> None:
    manifest = built(Manifest, vector["manifest"])
    assert manifest.encode().hex() == vector["canonical"]
    assert manifest.swarm_id.hex() == vector["swarm_id"]
    assert gossip_topic(manifest.swarm_id) == vector["gossip_topic"]
    assert dht_key(manifest.swarm_id).hex() == vector["dht_key"]
    decoded = decode_manifest(bytes.fromhex(vector["canonical"]))
    assert sorted(decoded.tasks) == sorted(manifest.tasks)
    assert decoded.name == manifest.name
    assert manifest_frame(manifest).hex() == vector["frame"]
    assert decode_manifest_of(body_of(bytes.fromhex(vector["frame"])), manifest.swarm_id) == decoded


@pytest.mark.parametrize("vector", vectors("gossip_messages"), ids=lambda v: v["name"])
def test_gossip_message_id(vector: Any) -> None:
    found = gossip_message_id(vector["topic"], bytes.fromhex(vector["data"]))
    assert (found.decode(), found.hex(), len(found)) == (
        vector["message_id"],
        vector["message_id_bytes"],
        MESSAGE_ID_BYTES,
    )


@pytest.mark.parametrize("vector", vectors("groups"), ids=lambda v: v["name"])
def test_group(vector: Any) -> None:
    blob = bytes.fromhex(vector["blob"])
    group = built_group(vector["group"])
    assert zstandard.decompress(encode_group(group)[len(GROUP_MAGIC) :]).hex() == vector["content"]
    assert plain(decode_group(blob)) == vector["group"]
    assert zstandard.decompress(blob[len(GROUP_MAGIC) :]).hex() == vector["content"]
    assert advert_of(group, blob) == built(GroupAdvert, vector["advert"])


@pytest.mark.parametrize("vector", vectors("announcements"), ids=lambda v: v["kind"])
def test_announcement(vector: Any) -> None:
    swarm_id, raw = bytes.fromhex(vector["swarm_id"]), bytes.fromhex(vector["announcement"])
    key = NodeKey(bytes.fromhex(vector["seed"]))
    body = built(KINDS[vector["kind"]], vector["body"])
    sent_seconds = vector["time_milliseconds"] / 1000
    sealed = seal(key, swarm_id=swarm_id, sequence=vector["sequence"], time_seconds=sent_seconds, body=body)
    assert sealed.hex() == vector["announcement"]
    opened = open_announcement(raw, swarm_id=swarm_id, now_seconds=sent_seconds)
    assert (opened.sender, opened.sequence, opened.time_seconds) == (key.peer_id, vector["sequence"], sent_seconds)
    assert opened.body == body


@pytest.mark.parametrize("vector", vectors("conversations"), ids=lambda v: v["first_text"])
def test_digests_of_a_conversation(vector: Any) -> None:
    digest = beginning_digest(built(PromptRef, vector["prompt"]), vector["first_text"], vector["first_reward"])
    assert digest.hex() == vector["beginning"]
    for turn in vector["turns"]:
        digest = turn_digest(digest, turn["action"], turn["observation"], turn["reward"], done=turn["done"])
        assert digest.hex() == turn["digest"]


@pytest.mark.parametrize("vector", vectors("refused_groups"), ids=lambda v: v["name"])
def test_refused_group(vector: Any) -> None:
    with pytest.raises(errors.ProtocolError) as refusal:
        decode_group(bytes.fromhex(vector["blob"]), tokens=min(vector["tokens"], limits.GROUP_TOKENS))
    assert refusal.value.reason == vector["reason"]


@pytest.mark.parametrize("vector", vectors("refused_announcements"), ids=lambda v: v["name"])
def test_refused_announcement(vector: Any) -> None:
    with pytest.raises(errors.ProtocolError) as refusal:
        open_announcement(
            bytes.fromhex(vector["announcement"]),
            swarm_id=bytes.fromhex(vector["swarm_id"]),
            now_seconds=vector["now_milliseconds"] / 1000,
        )
    assert refusal.value.reason == vector["reason"]


def built_layout(value: Any) -> TensorLayout:
    return TensorLayout(tuple((name, tuple(shape)) for name, shape in value))


@pytest.mark.parametrize("vector", vectors("sparse_updates"), ids=lambda v: v["kept"])
def test_sparse_update(vector: Any) -> None:
    layout = built_layout(vector["layout"])
    assert layout.digest.hex() == vector["layout_digest"]
    residuals = [np.array(ramp(size, 577), np.float32) for size in layout.sizes]
    deltas = [np.array(ramp(size, 1201), np.float32) for size in layout.sizes]
    tensors = [
        sparsify(residual, delta, decay=vector["decay"], kept=vector["kept"])
        for residual, delta in zip(residuals, deltas, strict=True)
    ]
    assert encode_update(layout, tensors).hex() == vector["blob"]
    left = hashlib.sha256(np.concatenate(residuals).astype("<f4").tobytes())
    assert left.hexdigest() == vector["residuals_left_sha256"]
    decoded = decode_update(bytes.fromhex(vector["blob"]), layout)
    assert [tensor.codebook.tolist() for tensor in decoded] == vector["codebooks"]
    for found, tensor in zip(decoded, tensors, strict=True):
        assert (found.positions == tensor.positions).all()
        assert (found.codes == tensor.codes).all()


@pytest.mark.parametrize("vector", vectors("compressed_weights"), ids=lambda v: v["stride"])
def test_compressed_weights(vector: Any) -> None:
    layout = built_layout(vector["layout"])
    weights = [np.array(ramp(size, 577), np.float32) for size in layout.sizes]
    shape = {name: vector[name] for name in ("stride", "phase", "bits")}
    part = quantise_slice(layout, weights, np.array(vector["steps"], np.float32), **shape)
    found = decode_compressed(bytes.fromhex(vector["blob"]), layout)
    assert hashlib.sha256(found.part.codes.tobytes()).hexdigest() == vector["codes_sha256"]
    assert encode_compressed(layout, encode_update(layout, found.update), part).hex() == vector["blob"]
    differences = slice_differences(layout, found.part, [tensor + np.float32(0.01) for tensor in weights])
    digest = hashlib.sha256(np.concatenate(differences).astype("<f4").tobytes()).hexdigest()
    assert digest == vector["differences_sha256"]


@pytest.mark.parametrize("vector", vectors("weight_diffs"), ids=lambda v: v["target_hash"][:8])
def test_weight_diff(vector: Any) -> None:
    layout = built_layout(vector["layout"])
    base, target = ([bytes.fromhex(tensor) for tensor in vector[which]] for which in ("base", "target"))
    weights: list[Patterns] = [np.frombuffer(tensor, "<u2").astype(np.uint16) for tensor in base]
    assert weights_hash(layout, weights).hex() == vector["base_hash"]
    assert apply_diff(bytes.fromhex(vector["blob"]), layout, weights)
    assert weights_hash(layout, weights).hex() == vector["target_hash"]
    assert [tensor.astype("<u2").tobytes() for tensor in weights] == target


@pytest.mark.parametrize("vector", vectors("dense_weights"), ids=lambda v: v["layout"][0][0])
def test_dense_weights(vector: Any) -> None:
    layout = built_layout(vector["layout"])
    tensors = [bytes.fromhex(tensor) for tensor in vector["tensors"]]
    assert encode_dense(layout, [np.frombuffer(t, "<u2").astype(np.uint16) for t in tensors]).hex() == vector["blob"]
    opened = open_dense(bytes.fromhex(vector["blob"]), layout)
    assert [tensor.astype("<u2").tobytes() for tensor in opened] == tensors


@pytest.mark.parametrize("vector", vectors("membership"), ids=lambda v: v["swarm_id"])
def test_cluster_and_invite(vector: Any) -> None:
    owner, key = (NodeKey(bytes.fromhex(vector[seed])) for seed in ("owner_seed", "invitation_seed"))
    cluster = sign_manifest(owner, built(ClusterManifest, vector["manifest"]))
    assert (cluster.document.hex(), cluster.swarm_id.hex()) == (vector["manifest_document"], vector["swarm_id"])
    assert open_manifest(bytes.fromhex(vector["manifest_document"])) == cluster
    document, psk = bytes.fromhex(vector["invitation_document"]), bytes.fromhex(vector["psk"])
    parts: dict[str, Any] = {"owner": owner.public_bytes, "psk": psk, "addresses": tuple(vector["addresses"])}
    assert encode_invite(document=document, key=key, **parts) == vector["invite"]
    invite = decode_invite(vector["invite"])
    assert (invite.document, invite.secret, invite.owner) == (document, key.private_bytes, owner.public_bytes)
    assert (invite.psk, invite.addresses) == (psk, tuple(vector["addresses"]))


@pytest.mark.parametrize("vector", vectors("membership")[0]["credentials"], ids=lambda v: v["name"])
def test_credential(vector: Any) -> None:
    of = vectors("membership")[0]
    cluster = open_manifest(bytes.fromhex(of["manifest_document"]))
    peer = NodeKey(bytes.fromhex(of["peer_seed"])).public_bytes
    revoked: Any = vector["revocations"] and judge_revocations(cluster, None, bytes.fromhex(vector["revocations"]))
    answer = judge_credential(vector["now_seconds"], cluster, revoked, {}, bytes.fromhex(vector["credential"]), peer)
    found = plain(answer) if isinstance(answer, Admitted) else answer.reason
    assert found == vector["answer"]


def test_every_kind_of_announcement_has_a_vector() -> None:
    assert {vector["kind"] for vector in vectors("announcements")} == set(KINDS)


def body_of(frame: bytes, max_bytes: int = 2**20) -> bytes:
    """The body of exactly one frame."""
    length = checked_body_length(frame[:LENGTH_BYTES], max_bytes=max_bytes, what="a vector")
    assert len(frame) == LENGTH_BYTES + length
    return frame[LENGTH_BYTES:]


STREAM_VECTORS = [(protocol, vector) for protocol in STREAM_KINDS for vector in vectors(f"{protocol}_messages")]


@pytest.mark.parametrize(("protocol", "vector"), STREAM_VECTORS, ids=lambda v: v if isinstance(v, str) else v["name"])
def test_stream_message(protocol: str, vector: Any) -> None:
    frame, kind = bytes.fromhex(vector["frame"]), STREAM_KINDS[protocol][vector["kind"]]
    message = built(kind, vector["fields"])
    assert framed_message(message) == frame
    assert STREAM_DECODERS[protocol](body_of(frame), kind) == message


def test_every_kind_of_stream_message_has_a_vector() -> None:
    for protocol, kinds in STREAM_KINDS.items():
        assert {vector["kind"] for vector in vectors(f"{protocol}_messages")} == set(kinds)
    declined = {vector["fields"].get("reason") for vector in vectors("averaging_messages")}
    assert declined >= set(DeclineReason)
    assert {each["fields"]["reason"] for each in vectors("lend_messages") if each["kind"] == "refused"} == set(
        LendRefusal
    )
    refused = {each["fields"]["reason"] for each in vectors("stage_messages") if each["kind"] == "answer refused"}
    assert refused == set(StageRefusal)


@pytest.mark.parametrize("vector", vectors("donor_invitations"), ids=lambda v: v["fields"]["swarm_name"])
def test_donor_invitation(vector: Any) -> None:
    invitation = built(DonorInvitation, vector["fields"])
    assert encode_donor_invitation(invitation) == vector["text"]
    assert decode_donor_invitation(f" <{vector['text']}>\n") == invitation
    assert invitation.secret_hash.hex() == vector["secret_hash"]
    assert invitation.secret.hex() not in repr(invitation)


@pytest.mark.parametrize("vector", vectors("swarm_lists"), ids=lambda v: v["name"])
def test_swarm_list(vector: Any) -> None:
    document, answer = bytes.fromhex(vector["document"]), vector["answer"]
    if isinstance(answer, str):
        with pytest.raises(errors.ProtocolError) as refused:
            open_swarm_list(document, now_seconds=vector["now_seconds"])
        assert refused.value.reason == answer
        return
    opened = open_swarm_list(document, now_seconds=vector["now_seconds"])
    content = built(SwarmList, answer["content"])
    assert (opened.content, opened.document, opened.signer) == (content, document, PEER.peer_id)
    assert [each.swarm_id.hex() for each in opened.swarms] == answer["swarm_ids"]
    assert [each.name for each in opened.swarms] == answer["names"]
    assert sign_swarm_list(PEER, content) == document


@pytest.mark.parametrize("vector", vectors("blob_messages"), ids=lambda v: v["name"])
def test_blob_request_and_answers(vector: Any) -> None:
    content = pattern(655)
    ranges = built(tuple[ChunkRange, ...], vector["ranges"])
    assert framed_message(ranges).hex() == vector["frame"]
    assert decode_blob_request(body_of(bytes.fromhex(vector["frame"]))) == ranges
    for asked, answer in zip(ranges, map(bytes.fromhex, vector["answers"]), strict=True):
        header, rest = answer[:ANSWER_HEADER_BYTES], answer[ANSWER_HEADER_BYTES:]
        if asked.blob == blob_id(content):
            assert decode_answer_header(header) == (BlobStatus.HERE, len(content))
            hashes = b"".join(chunk_hashes(content)) if asked.hashes else b""
            assert rest == hashes + content[asked.first * CHUNK_BYTES :]
        else:
            assert (decode_answer_header(header), rest) == ((BlobStatus.MISSING, 0), b"")
    for answer in vector["answers_if_busy"]:
        assert decode_answer_header(bytes.fromhex(answer)) == (BlobStatus.BUSY, 0)


@pytest.mark.parametrize(
    "vector", vectors("refused_stream_messages"), ids=lambda v: f"{v['protocol']} {v['expected']} {v['name']}"
)
def test_refused_stream_message(vector: Any) -> None:
    protocol = vector["protocol"].removesuffix("s")
    max_bytes = {
        "averaging": limits.AVERAGING_MESSAGE_BYTES,
        "blob": limits.BLOB_REQUEST_BYTES,
        "engine": limits.ENGINE_REQUEST_BYTES,
        "peer": limits.PEER_MESSAGE_BYTES,
        "handshake": limits.HANDSHAKE_MESSAGE_BYTES,
        "lend": limits.LEND_MESSAGE_BYTES,
        "letter": limits.LETTER_MESSAGE_BYTES,
        "member": limits.MEMBERS_MESSAGE_BYTES,
        "stage": limits.STAGE_MESSAGE_BYTES,
    }[protocol]
    with pytest.raises(errors.ProtocolError) as refusal:
        body = body_of(bytes.fromhex(vector["frame"]), max_bytes)
        if protocol == "blob":
            decode_blob_request(body)
        else:
            STREAM_DECODERS[protocol](body, STREAM_KINDS[protocol].get(vector["expected"]))
    assert refusal.value.reason == vector["reason"]


FRAMES = {"groups.json": ("blob", "advert"), "refused_groups.json": ("blob",), "weight_diffs.json": ("blob",)}


def test_files_are_those_that_the_script_writes() -> None:
    for name, expected in all_vectors().items():
        found = vectors(Path(name).stem)
        for vector in (*found, *expected):  # a zstd frame may differ between releases of zstd; what is in it may not
            for frame in FRAMES.get(name, ()):
                del vector[frame]
        assert found == expected, f"run python -m scripts.make_vectors if {name} was meant to change"


def test_the_foreign_client_says_of_every_file_and_stream_whether_it_reads_it() -> None:
    """It is run by ``scripts/test_foreign.sh`` alone, which needs npm: a file that it does not know is seen here."""
    client = (FOLDER.parent / "foreign" / "vectors.js").read_text(encoding="utf-8")
    files = [path.stem for path in FOLDER.glob("*.json")]
    assert files and [f for f in files if f not in client and f"'{f.removesuffix('_messages')}'" not in client] == []
    streams = client + (FOLDER.parent / "foreign" / "starling" / "streams.js").read_text(encoding="utf-8")
    refused = {vector["protocol"] for vector in vectors("refused_stream_messages")}
    assert refused and [name for name in refused if f"{name}:" not in streams and f"'{name}'" not in streams] == []
