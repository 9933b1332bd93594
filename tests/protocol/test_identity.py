from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from hypothesis import given
from hypothesis import strategies as st
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID

from protocol.errors import IdentityError, MalformedError, SignatureError, StorageError
from protocol.identity import NodeKey, peer_id_of, public_bytes_of, verify


def pem(key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey, password: bytes | None = None) -> bytes:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password:
        encryption = serialization.BestAvailableEncryption(password)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def written(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


@given(st.binary(min_size=32, max_size=32))
def test_peer_id_and_public_key_are_those_of_libp2p(seed: bytes) -> None:
    theirs = create_new_key_pair(seed)
    ours = NodeKey(seed)
    assert ours.public_bytes == theirs.public_key.to_bytes()
    assert ours.peer_id == str(ID.from_pubkey(theirs.public_key))


@given(st.binary(min_size=32, max_size=32))
def test_public_key_comes_back_out_of_the_peer_id(public_bytes: bytes) -> None:
    assert public_bytes_of(peer_id_of(public_bytes)) == public_bytes


@pytest.mark.parametrize(
    "peer_id",
    ["", "1" * 52, "z" * 52, "12D3Koo", "0" * 52, "é" * 52, "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"],
)
def test_text_that_is_no_ed25519_peer_id_is_malformed(peer_id: str) -> None:
    with pytest.raises(MalformedError, match="12D3Koo"):
        public_bytes_of(peer_id)


@given(st.text(max_size=60))
def test_any_text_is_a_peer_id_or_malformed(text: str) -> None:
    with contextlib.suppress(MalformedError):
        assert peer_id_of(public_bytes_of(text)) == text


def test_signature_verifies_for_its_domain_alone(key: NodeKey) -> None:
    signature = key.sign(b"one", b"message")
    verify(key.public_bytes, b"one", b"message", signature)
    for domain, message in ((b"two", b"message"), (b"one", b"massage"), (b"onem", b"essage")):
        with pytest.raises(SignatureError):
            verify(key.public_bytes, domain, message, signature)


def test_signature_of_another_key_or_length_is_refused(key: NodeKey) -> None:
    signature = NodeKey(bytes(32)).sign(b"one", b"message")
    for wrong in (signature, b"", signature[:63], signature + b"\0"):
        with pytest.raises(SignatureError):
            verify(key.public_bytes, b"one", b"message", wrong)
    with pytest.raises(SignatureError):
        verify(b"short", b"one", b"message", signature)


@pytest.mark.parametrize("domain", [b"", b"a\0b", b"a\0"])
def test_a_domain_that_could_run_into_the_message_is_our_bug(key: NodeKey, domain: bytes) -> None:
    with pytest.raises(ValueError, match="domain"):
        key.sign(domain, b"message")


def test_first_start_makes_a_key_that_only_the_owner_may_read_and_the_second_finds_it(tmp_path: Path) -> None:
    path = tmp_path / "home" / "identity.key"
    first = NodeKey.load_or_create(path)
    content = path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert NodeKey.load_or_create(path).private_bytes == first.private_bytes
    assert NodeKey.load(path).peer_id == first.peer_id
    assert path.read_bytes() == content


def test_a_permissive_umask_does_not_open_the_key_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        NodeKey.load_or_create(tmp_path / "identity.key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "identity.key").stat().st_mode) == 0o600


def test_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match=r"there is no file .*identity\.key"):
        NodeKey.load(tmp_path / "identity.key")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_key_file_open_to_others_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "identity.key", pem(ed25519.Ed25519PrivateKey.generate()), mode)
    with pytest.raises(IdentityError, match=rf"chmod 600 {path}"):
        NodeKey.load(path)


def test_key_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "identity.key").mkdir()
    with pytest.raises(IdentityError, match="cannot be read"):
        NodeKey.load_or_create(tmp_path / "identity.key")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not an unencrypted PKCS #8 PEM key"),
        (b"not a key at all", "not an unencrypted PKCS #8 PEM key"),
        (bytes(100_000), "not an unencrypted PKCS #8 PEM key"),
        (pem(ed25519.Ed25519PrivateKey.generate())[:-40], "not an unencrypted PKCS #8 PEM key"),
        (pem(ed25519.Ed25519PrivateKey.generate(), b"secret"), "not an unencrypted PKCS #8 PEM key"),
        (pem(ec.generate_private_key(ec.SECP256R1())), "another kind than Ed25519"),
    ],
    ids=["empty", "text", "far too long", "cut short", "encrypted", "another kind"],
)
def test_foreign_key_file_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes, reason: str) -> None:
    path = written(tmp_path / "identity.key", content)
    with pytest.raises(IdentityError, match=reason):
        NodeKey.load_or_create(path)
    assert path.read_bytes() == content


def test_key_that_cannot_be_created_is_the_data_directorys_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="choose another directory with --home"):
        NodeKey.load_or_create(tmp_path / "file" / "home" / "identity.key")


def test_full_disk_leaves_no_half_key_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    path = tmp_path / "identity.key"
    with pytest.raises(StorageError, match="No space left on device"):
        NodeKey.load_or_create(path)
    assert not path.exists()


def test_key_in_text_never_shows_the_secret(key: NodeKey) -> None:
    assert repr(key) == f"NodeKey({key.peer_id})"
    assert key.private_bytes.hex() not in repr(key)
