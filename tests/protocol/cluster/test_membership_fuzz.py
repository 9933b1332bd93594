"""Whatever a stranger sends about membership gives a value, a refusal or a ``ProtocolError``, and never lets it in."""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import base58
from protocol.cluster.admission import (
    Admitted,
    certify,
    judge_credential,
    judge_join,
    judge_revocations,
    read_invite,
    read_manifest,
)
from protocol.cluster.cluster_manifest import Cluster, open_manifest
from protocol.cluster.documents import (
    CERTIFICATE_DOMAIN,
    INVITATION_DOMAIN,
    JOIN_DOMAIN,
    REVOCATIONS_DOMAIN,
    Credential,
    FormerKey,
    KeyChange,
    decode_credential,
    open_certificate,
    open_invitation,
    open_join,
    open_key_change,
    open_revocations,
    sign_key_change,
    sign_revocations,
)
from protocol.cluster.invite import SCHEME, Invite, decode_invite
from protocol.cluster.refusal import AdmissionRefused
from protocol.errors import ProtocolError
from tests.examples import examples
from tests.protocol.mutation import mutated


@pytest.fixture(scope="module")
def join(lab: Any) -> bytes:
    return lab.join()


@pytest.fixture(scope="module")
def certified(lab: Any) -> bytes:
    admitted = Admitted(lab.PEER.public_bytes, lab.INVITATION_KEY.public_bytes, True, 0.0, "Wren")
    return certify(lab.OWNER, lab.cluster, admitted, lab.MADE)


@pytest.fixture(scope="module")
def listed(lab: Any) -> bytes:
    """A list of revocations."""
    return sign_revocations(lab.OWNER, lab.revocations(peers=(bytes(32),)))


@pytest.fixture(scope="module")
def bodies(lab: Any, join: bytes, certified: bytes) -> list[bytes]:
    """Of an invitation, a join, a certificate and a manifest."""
    documents = (lab.invitation(), join, certified, lab.cluster.document)
    return [msgspec.msgpack.encode(msgspec.msgpack.decode(msgspec.msgpack.decode(raw)[0])[2]) for raw in documents]


@pytest.fixture(scope="module")
def invite(lab: Any) -> Invite:
    return decode_invite(lab.invite())


@pytest.fixture(scope="module")
def invite_body(lab: Any) -> bytes:
    return base58.to_bytes(lab.invite()[len(SCHEME) + 1 :])[:-4]


def judged(lab: Any, credential: bytes) -> Admitted | AdmissionRefused:
    return judge_credential(lab.MADE + 60, lab.cluster, None, {}, credential, lab.PEER.public_bytes)


@pytest.fixture(scope="module")
def credentials(lab: Any, join: bytes, certified: bytes) -> list[bytes]:
    sound = [lab.credential(join), Credential("certificate", certified).encode()]
    assert all(isinstance(judged(lab, credential), Admitted) for credential in sound)
    return sound


@given(st.data())
@examples(400)
def test_no_change_of_a_credential_lets_anybody_in(lab, credentials, data) -> None:
    raw = data.draw(mutated(credentials) | st.binary(max_size=400))
    assert isinstance(judged(lab, raw), Admitted if raw in credentials else AdmissionRefused)


@given(st.data())
@examples(200)
def test_no_change_of_a_request_a_list_or_a_manifest_is_taken(lab, join, listed, invite, data) -> None:
    raw = data.draw(mutated([join]) | st.binary(max_size=400))
    if raw != join:
        answer = judge_join(lab.MADE + 60, lab.cluster, None, {}, raw, lab.PEER.public_bytes)
        assert isinstance(answer, AdmissionRefused)
    raw = data.draw(mutated([listed]) | st.binary(max_size=400))
    if raw != listed:
        assert isinstance(judge_revocations(lab.cluster, None, raw), AdmissionRefused)
    raw = data.draw(mutated([lab.cluster.document]) | st.binary(max_size=400))
    read = read_manifest(invite, raw)
    assert isinstance(read, Cluster if raw == lab.cluster.document else AdmissionRefused)


def test_every_single_bit_of_every_document_matters_and_so_does_every_cut(lab, join, certified, listed) -> None:
    owner = lab.OWNER.public_bytes
    former = (FormerKey(lab.PSK, lab.MADE + 60),)
    changed = sign_key_change(lab.OWNER, KeyChange(lab.cluster.swarm_id, 1, lab.MADE, bytes(32), former))
    openers = [
        (lab.invitation(), lambda raw: open_invitation(raw, owner=owner)),
        (join, lambda raw: open_join(raw, owner=owner)),
        (certified, lambda raw: open_certificate(raw, owner=owner)),
        (listed, lambda raw: open_revocations(raw, owner=owner)),
        (changed, lambda raw: open_key_change(raw, owner=owner)),
        (lab.cluster.document, lambda raw: open_manifest(raw, swarm_id=lab.cluster.swarm_id)),
    ]
    for sound, opened in openers:
        opened(sound)
        flipped = [
            sound[:byte] + bytes([sound[byte] ^ 1 << bit]) + sound[byte + 1 :]
            for byte in range(len(sound))
            for bit in (0, 7)
        ]
        accepted = []
        for raw in (*flipped, *(sound[:length] for length in range(len(sound)))):
            with contextlib.suppress(ProtocolError):
                opened(raw)
                accepted.append(raw)
        assert accepted == []


@given(st.data())
@examples(300)
def test_rightly_signed_nonsense_raises_protocol_errors_alone(lab, join, bodies, data) -> None:
    """The owner's key in wrong hands, or another implementation's bug: signatures verify, contents are anything."""
    owner = lab.OWNER.public_bytes
    body = data.draw(st.binary(max_size=200) | mutated(bodies))
    payload = msgspec.msgpack.encode((1, 0, msgspec.Raw(body)))
    for domain, opened in (
        (INVITATION_DOMAIN, open_invitation),
        (CERTIFICATE_DOMAIN, open_certificate),
        (REVOCATIONS_DOMAIN, open_revocations),
    ):
        with contextlib.suppress(ProtocolError):
            opened(msgspec.msgpack.encode((payload, lab.OWNER.sign(domain, payload))), owner=owner)
    signatures = lab.INVITATION_KEY.sign(JOIN_DOMAIN, payload), lab.PEER.sign(JOIN_DOMAIN, payload)
    raw = msgspec.msgpack.encode((payload, *signatures))
    assert isinstance(judged(lab, lab.credential(raw)), AdmissionRefused) or raw == join


@given(st.data())
@examples(300)
def test_invite_whose_checksum_fits_raises_protocol_errors_alone(lab, invite_body, data) -> None:
    raw = data.draw(mutated([invite_body]) | st.binary(max_size=300))
    check = hashlib.sha256(b"starling/invite/1\0" + raw).digest()[:4]
    read_invite(SCHEME + "1" + base58.to_text(raw + check), lab.MADE)


@given(st.text(max_size=200) | st.text(alphabet=base58.ALPHABET, max_size=400).map((SCHEME + "1").__add__))
@examples(300)
def test_any_text_as_an_invite_is_refused(lab, text: str) -> None:
    assert isinstance(read_invite(text, lab.MADE), AdmissionRefused)


@given(st.binary(max_size=200))
def test_any_bytes_as_a_credential(raw: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode_credential(raw)
