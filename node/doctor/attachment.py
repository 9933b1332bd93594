"""One page of text about a machine and its node, to attach to a report of a fault: nothing secret, nothing that names.

It has the versions, the findings of the examination, the settings that shape the weights where they differ from the
defaults, and the last lines of the logs. ``anonymous`` takes out what names a person, a machine or a peer.
"""

from __future__ import annotations

import platform
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from node.configuration import Config
from node.configuration.published import shaping_configuration
from node.doctor.findings import Report
from node.doctor.gpu_devices import devices
from node.fit.host_memory import machine_bytes
from node.home import Home
from node.printable import printable
from node.quantities import size
from node.version import VERSION

LOGS: Final = ("node", "learner", "swarm")
LOG_LINES: Final = 40  # of each
LINE_CHARACTERS: Final = 400
_PEER: Final = re.compile(r"\b(?:12D3KooW|Qm|16Uiu2HA)[1-9A-HJ-NP-Za-km-z]{38,}\b")
_IP4: Final = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_IP6: Final = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:])")
_SECRET: Final = re.compile(r"[A-Za-z0-9_+=-]{40,}")  # a token, a key, an invitation, a hash
_NAMED: Final = re.compile(r"/dns(?:4|6|addr)?/[^/\s]+")
_CLOCK: Final = re.compile(r"\d{1,2}:\d\d:\d\d")  # a time of day, which reads like an address


def attachment(home: Home, config: Config, report: Report) -> str:
    """Returns the page, in Markdown, as ``anonymous`` leaves it."""
    names = {str(home.path): "HOME", str(Path.home()): "~", Path.home().name: "USER", socket.gethostname(): "MACHINE"}
    return anonymous("\n".join(_lines(home, config, report)) + "\n", names)


def anonymous(text: str, names: Mapping[str, str]) -> str:
    """Returns ``text`` without addresses, peer ids and anything as long as a secret.

    ``names``: what stands for texts that name this machine or its owner. A peer is the same ``peer-N`` in all of it.
    """
    for name, instead in sorted(names.items(), key=lambda item: -len(item[0])):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", instead, text) if name else text
    peers: dict[str, str] = {}
    text = _PEER.sub(lambda found: peers.setdefault(found[0], f"peer-{len(peers) + 1}"), text)
    text = _NAMED.sub("/dns/NAME", _IP4.sub("ADDRESS", text))
    text = _IP6.sub(lambda found: found[0] if _CLOCK.fullmatch(found[0]) else "ADDRESS", text)
    return _SECRET.sub("LONG", text)


def _lines(home: Home, config: Config, report: Report) -> Iterator[str]:
    yield f"# starling {VERSION}"
    yield from (
        "",
        f"- {platform.system()} {platform.release()}, {platform.machine()}, Python {platform.python_version()}",
    )
    yield f"- {size(machine_bytes())} of memory; graphics: {', '.join(devices()) or 'none'}"
    yield from ("", "## Findings", "")
    for finding in report.findings:
        yield f"- **{finding.severity}** {finding.check}: {printable(finding.message, LINE_CHARACTERS)}"
    yield from ("", "## Settings that differ from the defaults", "")
    ours, usual = (_flat(shaping_configuration(each.model_dump(mode="json"))) for each in (config, Config()))
    yield from (
        f"- {key} = {printable(repr(value), LINE_CHARACTERS)}" for key, value in ours.items() if usual.get(key) != value
    )
    for log in LOGS:
        if home.log(log).is_file():
            yield from ("", f"## The last lines of the log of {log}", "", "```")
            lines = home.log(log).read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
            yield from (printable(line, LINE_CHARACTERS).replace("```", "'''") for line in lines)
            yield "```"


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        key = f"{prefix}{name}"
        found |= _flat(value, f"{key}.") if isinstance(value, Mapping) else {key: value}
    return found
