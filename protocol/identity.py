"""The identity of a node: one Ed25519 key, named by libp2p's peer id, that signs with domain separation.

A signature covers ``domain ‖ 0x00 ‖ message``. A domain holds no zero byte, so that a signature for one purpose never
verifies for another. The key file is created once, with mode 0600, and never replaced by this code.

A peer id is the base58btc form of the identity multihash of libp2p's protobuf of the public key:
``00 24 ‖ 08 01 12 20 ‖ public key (32 bytes)``. https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocol import base58
from protocol.errors import IdentityError, MalformedError, SignatureError, StorageError

PUBLIC_KEY_BYTES: Final = 32
PEER_ID_PREFIX: Final = bytes.fromhex("0024 08011220")  # of the binary form; the public key follows it

PEER_ID_BYTES: Final = 64  # at most, of any kind of key: base58 of a longer id takes time in the square of its length
_PEER_ID_CHARACTERS: Final = 52  # of every Ed25519 peer id: the prefix fixes the magnitude of the number
_KEY_FILE_BYTES: Final = 4096  # more than any key file has; bounds how much of a wrong file is read
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class NodeKey:
    """A node's private key. Its text form never shows the secret."""

    __slots__ = ("_key", "peer_id", "public_bytes")

    peer_id: str  # libp2p's, base58btc, "12D3Koo…"
    public_bytes: bytes  # 32

    def __init__(self, private_bytes: bytes) -> None:
        """Takes the 32 bytes of the Ed25519 seed."""
        self._key = Ed25519PrivateKey.from_private_bytes(private_bytes)
        self.public_bytes = self._key.public_key().public_bytes_raw()
        self.peer_id = peer_id_of(self.public_bytes)

    @classmethod
    def generate(cls) -> NodeKey:
        """A new key, from the operating system's randomness."""
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def load(cls, path: Path) -> NodeKey:
        """The key in ``path``, an unencrypted PKCS #8 PEM file of mode 0600. Raises ``IdentityError``."""
        remedy = "give the data directory that has it, or start once"
        return cls(_private_bytes_of(read_private_file(path, _KEY_FILE_BYTES, if_missing=remedy), path))

    @classmethod
    def load_or_create(cls, path: Path) -> NodeKey:
        """The key in ``path``, which is created first if it does not exist.

        An existing file is never replaced or changed, whatever it holds. Raises ``IdentityError`` for a file that
        cannot be used, ``StorageError`` if a new one cannot be written.
        """
        with contextlib.suppress(FileExistsError):  # made by an earlier start, or by another process just now
            create_private_file(path, cls.generate()._pem())
        return cls.load(path)

    @property
    def private_bytes(self) -> bytes:
        """The private key, which is Ed25519's seed of 32 bytes (RFC 8032). It is for the libp2p host of this node only,
        and must not be logged or sent."""
        return self._key.private_bytes_raw()

    def _pem(self) -> bytes:
        from cryptography.hazmat.primitives import serialization  # late, as below

        return self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def sign(self, domain: bytes, message: bytes) -> bytes:
        """The signature, 64 bytes, over ``domain ‖ 0x00 ‖ message``."""
        return self._key.sign(_separated(domain, message))

    def __repr__(self) -> str:
        return f"NodeKey({self.peer_id})"


def verify(public_bytes: bytes, domain: bytes, message: bytes, signature: bytes) -> None:
    """Raises ``SignatureError`` unless the key ``public_bytes`` signed ``message`` for ``domain``."""
    try:
        Ed25519PublicKey.from_public_bytes(public_bytes).verify(signature, _separated(domain, message))
    except (InvalidSignature, ValueError) as error:
        raise SignatureError(
            f"signature does not verify for public key {public_bytes.hex()}: altered on the way, or not signed by it"
        ) from error


def peer_id_of(public_bytes: bytes) -> str:
    """The libp2p peer id of an Ed25519 public key (32 bytes)."""
    if len(public_bytes) != PUBLIC_KEY_BYTES:
        raise ValueError(f"an Ed25519 public key has {PUBLIC_KEY_BYTES} bytes, not {len(public_bytes)}")
    return base58.to_text(PEER_ID_PREFIX + public_bytes)


def public_bytes_of(peer_id: str) -> bytes:
    """The public key in an Ed25519 peer id. Raises ``MalformedError`` for anything else."""
    if len(peer_id) == _PEER_ID_CHARACTERS and set(peer_id) <= set(base58.ALPHABET):
        public_bytes = base58.to_bytes(peer_id)[len(PEER_ID_PREFIX) :]
        if len(public_bytes) == PUBLIC_KEY_BYTES and peer_id_of(public_bytes) == peer_id:
            return public_bytes
    shown = peer_id[: 2 * _PEER_ID_CHARACTERS]
    raise MalformedError(f"{shown!r} is not the peer id of an Ed25519 key (52 characters that begin with 12D3Koo)")


def _separated(domain: bytes, message: bytes) -> bytes:
    if not domain or b"\0" in domain:
        raise ValueError(f"a signing domain is not empty and holds no zero byte: {domain!r}")
    return domain + b"\0" + message


def read_private_file(path: Path, max_bytes: int, *, if_missing: str) -> bytes:
    """Returns the content of a file that no other user may read or change, at most ``max_bytes`` + 1 bytes of it.

    Raises ``IdentityError``; ``if_missing`` is its remedy for a file that does not exist.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(max_bytes + 1)
    except FileNotFoundError as error:
        raise IdentityError(f"there is no file {path}; {if_missing}") from error
    except OSError as error:
        raise IdentityError(f"{path} cannot be read ({error.strerror}); give it to this user (chown)") from error
    if mode & _OTHERS:
        raise IdentityError(
            f"{path} has mode {stat.S_IMODE(mode):04o}, so that other users may read or change it; if you are sure "
            f"that none did: chmod 600 {path}"
        )
    return content


def create_private_file(path: Path, content: bytes) -> None:
    """Writes a new file of mode 0600 to disk, in a directory that is made if there is none.

    Raises ``FileExistsError``, and ``StorageError`` if it cannot be written; no half of it stays then.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                path.unlink()  # this call made it: the next start must not find half a key
                raise
    except FileExistsError:
        raise
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror}); make space, or choose another directory with --home"
        ) from error


def _private_bytes_of(content: bytes, path: Path) -> bytes:
    from cryptography.hazmat.primitives import serialization  # late: it costs as much as all else here, RSA and SSH too

    remedy = "restore it from a backup, or move it away to start under a new identity"
    try:
        if len(content) > _KEY_FILE_BYTES:
            raise ValueError(f"more than {_KEY_FILE_BYTES} bytes")
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it is encrypted
        raise IdentityError(f"key file {path} is not an unencrypted PKCS #8 PEM key; {remedy}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise IdentityError(f"key file {path} holds a key of another kind than Ed25519; {remedy}")
    return key.private_bytes_raw()
