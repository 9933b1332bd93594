"""The port of 127.0.0.1 on which the API is served: the one that was set, and no other, or else a free one.

A free one stays the data directory's own (``swarm.kept_port``), so that a bookmark of its page stays true.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from node.configuration import ApiSection
from swarm.kept_port import kept_port

FREE_PORTS: Final = range(8470, 8480)  # so that several nodes of one machine have a page each


def ports_to_try(section: ApiSection, remembered: Path) -> Sequence[int]:
    """Returns the ports to try, in order; empty for none. ``remembered`` is the file of ``keep_port``."""
    if section.port != "auto":
        return (section.port,) if section.port else ()
    own = kept_port(remembered)
    return FREE_PORTS if own is None else (own, *(port for port in FREE_PORTS if port != own))
