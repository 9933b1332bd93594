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
from node.supervision.cluster_setup import credentials_of, ensure_joined
from node.supervision.outcome import RunOutcome
from node.supervision.start import swarm_settings
from protocol.identity import NodeKey
from swarm.exit_codes import ExitCode
from swarm.settings import ServiceSettings

RELAY_COMMAND: Final = (sys.executable, "-P", "-m", "node.relay.relay_process")
NAME_END_CHARACTERS: Final = 5  # of the peer id, in the name of a relay without a configured one
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
        holder = f"process {lock.supervisor}" if lock.supervisor else "processes that are still ending"
        return RunOutcome(
            ExitCode.TRY_AGAIN,
            f"the data directory {home.path} is in use ({holder}); end what runs there with starling down, or start "
            "the relay elsewhere with --home",
        )
    key = NodeKey.load_or_create(home.key)
    if invite is not None:
        ensure_joined(home, config, invite)
    return lock, relay_settings(home, config, key)


def relay_settings(home: Home, config: Config, key: NodeKey) -> ServiceSettings:
    """Returns the settings of a relay: those of the node's swarm process, with a name that tells what it is."""
    settings = swarm_settings(home, config, credentials_of(home, key))
    return msgspec.structs.replace(
        settings,
        name=config.name or f"relay-{key.peer_id[-NAME_END_CHARACTERS:]}",
        log_level="error" if settings.log_level == "info" else settings.log_level,  # its terminal is no log file
    )


def become_relay(lock: Lock, settings: ServiceSettings, *, as_json: bool) -> NoReturn:
    """Replaces this process by the relay, which keeps the lock."""
    command = [*RELAY_COMMAND, *(["--json"] if as_json else [])]
    become(command, msgspec.json.encode(settings), lock, {**RELAY_ENVIRONMENT, **os.environ})
