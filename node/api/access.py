"""Who may use the API over TCP. The Unix socket needs none of this: only its owner can open it.

Reading is open to whoever is on this machine. What changes the node's state asks for ``Authorization: Bearer TOKEN``;
the token is 32 random bytes in a file that only its owner can read. A request that names another host than this machine
is refused, so that a web page cannot reach the API by pointing its own name at 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from node.api.types import ErrorAnswer
from protocol.errors import IdentityError, StorageError

TOKEN_BYTES = 32
MIN_TOKEN_CHARACTERS = 32  # of one that the user wrote
READING = frozenset({"GET", "HEAD"})
OUR_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
OTHERS = stat.S_IRWXG | stat.S_IRWXO


def load_or_create_token(path: Path) -> str:
    """The token in ``path``, made first where there is none.

    Raises ``IdentityError`` for a file that others can read or that holds none, ``StorageError`` where none can be
    made.
    """
    try:
        _create(path)
    except FileExistsError:
        pass  # from an earlier start
    except OSError as error:
        raise StorageError(f"the API's token {path} cannot be written ({error.strerror}); make space there") from None
    try:
        mode, token = stat.S_IMODE(path.stat().st_mode), path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise IdentityError(f"the API's token {path} cannot be read ({error}); delete it to have a new one") from None
    if mode & OTHERS:
        raise IdentityError(f"others may read the API's token {path} (mode {mode:03o}): delete it to have a new one")
    if len(token) < MIN_TOKEN_CHARACTERS:
        raise IdentityError(
            f"the API's token {path} has {len(token)} characters, at least {MIN_TOKEN_CHARACTERS} are safe: "
            "delete it to have a new one"
        )
    return token


def guard(token: str) -> Middleware:
    """Refuses with 403 what is addressed to another host, with 401 what changes something without ``token``."""
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def guarded(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.url.host not in OUR_HOSTS:
            return _refused(403, "this API answers requests to 127.0.0.1 and localhost only")
        given = request.headers.get("Authorization", "").encode()
        if request.method not in READING and not hmac.compare_digest(given, expected):
            return _refused(401, "this changes the node: send Authorization: Bearer and the text of HOME/api.token")
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
