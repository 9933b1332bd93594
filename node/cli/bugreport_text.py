"""The text that a user attaches to a report of a fault: everything that helps to find its cause.

Guarantees: the text holds no secret of the data directory (``node.masking``); a part that is not available says why,
and the other parts are there; its length is bounded; text of peers and of processes moves no cursor.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from node.api.node_client import ask_peers, ask_status
from node.cli.swarm_facts import cluster_facts, cluster_lines
from node.cli.verbs.config import as_toml
from node.cli.verbs.version import versions
from node.cli.wording import finding_lines, peer_lines, status_lines
from node.doctor.examination import examine
from node.doctor.findings import Report
from node.doctor.settings_in_use import settings_of
from node.home import Home
from node.masking import Mask, secrets_of
from node.printable import printable
from protocol.errors import StarlingError, StorageError
from swarm.cluster.cluster_files import cluster_files, has_cluster

MAX_LOG_LINES = 200  # the last ones of each log
MAX_EVENT_LINES = 60
MAX_LINE_CHARACTERS = 2000
MAX_TAIL_BYTES = 512 << 10  # the end of a file, from which its last lines are taken
CONTENTS = """\
It holds versions, the findings of starling doctor, the configuration, the status of the node and its peers, the node's
last events, and the last lines of its logs. It holds no key, no token, no invite and no pre-shared key. It does hold
names of models, tasks and files, and the names, peer ids and addresses of this node and of its peers: read it before
you share it."""


def compose_bugreport(
    home: Home,
    environment: Mapping[str, str],
    now_seconds: float,
    *,
    examine: Callable[[Home, Mapping[str, str], Mapping[str, str]], Report] = examine,
) -> str:
    """Returns the whole text. Takes seconds, because doctor examines torch."""
    parts: dict[str, Callable[[], Iterator[str]]] = {
        "versions": _versions,
        "doctor": lambda: iter(finding_lines(examine(home, environment, {}))),
        "configuration": lambda: _configuration(home, environment),
        "status": lambda: iter(status_lines(ask_status(home))),
        "peers": lambda: iter(peer_lines(ask_peers(home).peers)),
        "private cluster": lambda: _cluster(home),
        "last events": lambda: _last_lines(home.metrics, MAX_EVENT_LINES, skip='{"event":"usage"'),
        "log of the node": lambda: _last_lines(home.log("node"), MAX_LOG_LINES),
        "log of the learner": lambda: _last_lines(home.log("learner"), MAX_LOG_LINES),
        "log of the swarm process": lambda: _last_lines(home.log("swarm"), MAX_LOG_LINES),
    }
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_seconds))
    lines = [f"starling bugreport, {made}, of {home.path}", *CONTENTS.split("\n")]
    for title, part in parts.items():
        lines += ["", f"== {title} =="]
        try:
            lines += [printable(line, MAX_LINE_CHARACTERS) for line in part()]
        except StarlingError as error:  # that no node runs, or the configuration is invalid, is a finding too
            lines.append(printable(f"not available: {error}", MAX_LINE_CHARACTERS))
    return Mask(secrets_of(home, environment)).masked("\n".join(lines)) + "\n"


def write_bugreport(text: str, path: Path) -> None:
    """Writes ``text`` to a new file that only its owner can read. Raises ``StorageError``."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror}): name another file") from None


def _versions() -> Iterator[str]:
    yield from (f"{name} {number}" for name, number in versions().items())
    yield f"{platform.platform()}, {os.cpu_count()} cores"


def _configuration(home: Home, environment: Mapping[str, str]) -> Iterator[str]:
    shown = settings_of(home, environment, {})
    yield from (f"# {line}" for line in shown.lines())
    yield from as_toml(dict(shown.config)).split("\n")


def _cluster(home: Home) -> Iterator[str]:
    files = cluster_files(home.path)
    return iter(cluster_lines(cluster_facts(files)) if has_cluster(files) else ["none"])


def _last_lines(path: Path, max_lines: int, skip: str | None = None) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, size_bytes - MAX_TAIL_BYTES))
            lines = file.read(MAX_TAIL_BYTES).decode("utf-8", errors="replace").splitlines()
    except OSError as error:
        return iter([f"{path}: {error.strerror}"])
    if size_bytes > MAX_TAIL_BYTES:
        lines = lines[1:]  # the first one may be incomplete
    return iter([line for line in lines if skip is None or not line.startswith(skip)][-max_lines:])
