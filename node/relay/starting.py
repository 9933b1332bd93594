"""Prepares a data directory for a relay, as ``node.supervision.start`` does for a node, and becomes the relay.

The command's own process becomes the relay (``execv``): what the command imported is gone, and nothing watches over it
in memory of its own. A service manager starts a relay again, if one is to (``docs/reach.md``).
"""

from __future__ import annotations

import os
import sys
from typing import Final, NoReturn

import msgspec

from node.becoming import become
from node.configuration import Config
from node.home import Home, Lock, LockHeld, lock_home
from node.supervision.cluster_setup import ensure_joined
from node.supervision.outcome import RunOutcome
from node.supervision.swarm_settings import settings_without_learner
from protocol.identity import NodeKey
from swarm.exit_codes import ExitCode
from swarm.settings import ServiceSettings

RELAY_COMMAND: Final = (sys.executable, "-P", "-m", "node.relay.relay_process")
# Threads that resolve names would each take an arena of glibc, whose holes stay: 1 MB or so each.
RELAY_ENVIRONMENT: Final = {"MALLOC_ARENA_MAX": "1"}


def prepare_relay(home: Home, config: Config, invite: str | None) -> tuple[Lock, ServiceSettings] | RunOutcome:
    """Locks the directory, joins the private cluster of ``invite`` if there is one, and returns what ``become_relay``
    takes; a refusal where another node uses the directory.

    Raises ``ConfigurationError``, ``StorageError``, ``IdentityError``, or the errors of ``ensure_joined``.
    """
    home.prepare()
    lock = lock_home(home)
    if isinstance(lock, LockHeld):
        return RunOutcome(
            ExitCode.TRY_AGAIN,
            f"the data directory {home.path} is in use ({lock.holder}); end what runs there with starling down, or "
            "start the relay elsewhere with --home",
        )
    key = NodeKey.load_or_create(home.key)
    if invite is not None:
        ensure_joined(home, config, invite)
    return lock, settings_without_learner(home, config, key, "relay")


def become_relay(lock: Lock, settings: ServiceSettings, *, as_json: bool) -> NoReturn:
    """Replaces this process by the relay, which keeps the lock."""
    command = [*RELAY_COMMAND, *(["--json"] if as_json else [])]
    become(command, msgspec.json.encode(settings), lock, {**RELAY_ENVIRONMENT, **os.environ})
