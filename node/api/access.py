"""Access to the API over TCP. The Unix socket needs none of this, because only its owner can open it.

Every user of this machine may read. A request that changes the node's state needs ``Authorization: Bearer TOKEN``; the
token is 32 random bytes in a file that only its owner can read. A request addressed to a host other than this machine
is refused, so that a web page cannot reach the API by pointing its own domain name at 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from pathlib import Path

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from node.api.types import ErrorAnswer
from protocol.errors import IdentityError, StorageError

TOKEN_BYTES = 32
MIN_TOKEN_CHARACTERS = 32  # of a token that the user wrote
READ_METHODS = frozenset({"GET", "HEAD"})
LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
OTHER_USERS = stat.S_IRWXG | stat.S_IRWXO


def load_or_create_token(path: Path) -> str:
    """Returns the token in ``path``, which it makes first where there is none.

    Raises ``IdentityError`` for a file that other users can read or that holds no token, ``StorageError`` where the
    file cannot be written.
    """
    try:
        _create(path)
    except FileExistsError:
        pass  # an earlier start made it
    except OSError as error:
        raise StorageError(
            f"the API token {path} cannot be written ({error.strerror}): free some space there"
        ) from None
    try:
        mode, token = stat.S_IMODE(path.stat().st_mode), path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise IdentityError(f"the API token {path} cannot be read ({error}): delete it to get a new one") from None
    if mode & OTHER_USERS:
        raise IdentityError(f"other users can read the API token {path} (mode {mode:03o}): delete it to get a new one")
    if len(token) < MIN_TOKEN_CHARACTERS:
        raise IdentityError(
            f"the API token {path} has {len(token)} characters, fewer than the safe {MIN_TOKEN_CHARACTERS}: "
            "delete it to get a new one"
        )
    return token


def guard(token: str) -> Middleware:
    """Returns a middleware that refuses a request to another host (403) and a change without ``token`` (401)."""
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.url.host not in LOCAL_HOSTS:
            return _refused(403, "this API answers requests to 127.0.0.1 and localhost only")
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")  # as it came
        if request.method not in READ_METHODS and not hmac.compare_digest(given, expected):
            return _refused(401, "this request changes the node: send Authorization: Bearer TOKEN, from HOME/api.token")
        return await handler(request)

    return guarded


def _refused(status: int, because: str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    body = msgspec.json.encode(ErrorAnswer(because))
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def _create(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
