"""Signed lists of swarms: read from a file or the web within bounds, and kept in the data directory.

``swarm-lists/<peer id>`` is the newest list of that signer that was read here, at most ``MAX_KEPT`` of them. So a swarm
can be joined later by its name alone, a signer is recognised, and whoever hosts a list cannot serve an earlier one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urljoin, urlsplit

from node.home import Home
from node.printable import one_line, printable
from protocol import limits
from protocol.errors import ProtocolError, RefusedError, StorageError, UnreachableError
from protocol.swarm_list import OpenedSwarmList, open_swarm_list
from swarm.atomic_file import write_atomically

if TYPE_CHECKING:
    import aiohttp

FETCH_SECONDS: Final = 20.0
MAX_REDIRECTS: Final = 3
MAX_KEPT: Final = 64
SOURCE_CHARACTERS: Final = 300
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
OK: Final = 200


@dataclass(frozen=True, slots=True)
class ReadList:
    """A list that is valid now."""

    opened: OpenedSwarmList
    source: str  # where it was read
    seen_before: bool  # whether a list of this signer had been read here before


def read_list(home: Home, source: str, now_seconds: float) -> ReadList:
    """Reads the list at ``source``, a path or a URL (https, http, file), and keeps it.

    Raises ``UnreachableError`` where nothing could be read, ``RefusedError`` for what is no valid list, or an earlier
    one of its signer than was read here before, ``StorageError`` where it cannot be kept.
    """
    shown = printable(source, SOURCE_CHARACTERS)
    try:
        opened = open_swarm_list(bytes_at(source), now_seconds=now_seconds)
    except ProtocolError as error:
        raise RefusedError(f"{shown} is no list of swarms that can be used: {error}") from None
    kept = home.swarm_lists / opened.signer
    earlier = _kept(kept)
    if earlier is not None and earlier.content.made_seconds > opened.content.made_seconds:
        raise RefusedError(
            f"{shown} is an earlier list of {opened.signer} than the one that was read here before: ask for the "
            f"newest, or delete {kept} to forget that one"
        )
    _keep(home, kept, opened)
    return ReadList(opened, source, earlier is not None)


def kept_lists(home: Home, now_seconds: float) -> tuple[list[ReadList], list[str]]:
    """Returns the lists that were read here and are still valid, and why others are not."""
    valid, refused = [], []
    for path in _files(home):
        try:
            opened = open_swarm_list(_file_bytes(path), now_seconds=now_seconds)
        except (ProtocolError, UnreachableError) as error:
            refused.append(f"{path}: {one_line(str(error))}")
        else:
            valid.append(ReadList(opened, str(path), True))
    return valid, refused


def bytes_at(source: str) -> bytes:
    """Returns what stands at a path or URL. Raises ``UnreachableError``; ``OversizedError`` above the bound, before
    more is read."""
    scheme, separator, rest = source.partition("://")
    match scheme.lower() if separator else None:
        case None:
            return _file_bytes(Path(source).expanduser())
        case "http" | "https":
            return asyncio.run(_fetched(source))
        case "file" if rest.startswith("/"):
            return _file_bytes(Path(unquote(rest)))
    raise UnreachableError(
        f"{printable(source, SOURCE_CHARACTERS)} is no place to read a list from: give a file, or a URL that begins "
        "with https://, http:// or file:///"
    )


def _file_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limits.SWARM_LIST_BYTES + 1)  # one more: a longer one is refused
    except OSError as error:
        raise UnreachableError(f"{printable(str(path), SOURCE_CHARACTERS)} cannot be read: {error.strerror}") from None


async def _fetched(source: str) -> bytes:
    import aiohttp  # takes a moment, and files do not need it

    session = aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=FETCH_SECONDS),  # of each request
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
        trust_env=True,  # proxies
    )
    url = source
    try:
        async with asyncio.timeout(FETCH_SECONDS), session:
            for _ in range(MAX_REDIRECTS + 1):
                async with session.get(url, allow_redirects=False) as answer:
                    if answer.status not in REDIRECTS:
                        return await _content(answer)
                    url = _redirected(url, answer.headers.get("Location", ""))
    except TimeoutError:
        raise UnreachableError(f"{printable(url, SOURCE_CHARACTERS)} was not read within {FETCH_SECONDS:g} s") from None
    except (aiohttp.ClientError, ValueError) as error:  # ValueError: of a URL that is none
        raise UnreachableError(f"{printable(url, SOURCE_CHARACTERS)} cannot be read: {one_line(str(error))}") from None
    raise UnreachableError(f"{printable(source, SOURCE_CHARACTERS)} redirects more than {MAX_REDIRECTS} times")


async def _content(answer: aiohttp.ClientResponse) -> bytes:
    if answer.status != OK:
        raise UnreachableError(f"{printable(str(answer.url), SOURCE_CHARACTERS)} answers with status {answer.status}")
    content = bytearray()
    async for part in answer.content.iter_any():
        content += part
        if len(content) > limits.SWARM_LIST_BYTES:
            break  # a longer one is refused
    return bytes(content)


def _redirected(url: str, location: str) -> str:
    """Returns where an answer leads; another scheme is refused, so that nothing that was asked for by https comes over
    another one."""
    there = urljoin(url, location)
    if urlsplit(there).scheme.lower() != urlsplit(url).scheme.lower():
        raise UnreachableError(
            f"{printable(url, SOURCE_CHARACTERS)} redirects to {printable(there, SOURCE_CHARACTERS)}, which has "
            "another scheme: give that address, if you trust it"
        )
    return there


def _kept(path: Path) -> OpenedSwarmList | None:
    with suppress(UnreachableError, ProtocolError):  # none yet; or one that no version of ours wrote
        return open_swarm_list(_file_bytes(path), now_seconds=None)
    return None


def _keep(home: Home, path: Path, opened: OpenedSwarmList) -> None:
    try:
        home.swarm_lists.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, opened.document)
        for old in list(_files(home))[MAX_KEPT:]:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"{home.swarm_lists} cannot be written ({error.strerror}): free space, or chown it"
        ) from None


def _files(home: Home) -> Iterator[Path]:
    """Yields the files of lists, the one that was read last first."""
    with suppress(OSError):
        found = [path for path in home.swarm_lists.iterdir() if not path.name.startswith(".")]
        yield from sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
