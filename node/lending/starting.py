"""Prepares a data directory for a donor, and becomes the donor, as ``node.relay.starting`` does for a relay."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final, NoReturn

import msgspec

from node.becoming import become
from node.configuration import Config
from node.configuration.sources import resolve
from node.home import Home, Lock, LockHeld, lock_home
from node.lending.invited import invitation_of
from node.lending.lending_setup import LendingSetup
from node.printable import printable
from node.supervision.cluster_setup import ensure_joined
from node.supervision.outcome import RunOutcome
from node.supervision.swarm_settings import settings_without_learner
from protocol.donor_invitation import DonorInvitation
from protocol.errors import ConfigurationError
from protocol.identity import NodeKey
from swarm.exit_codes import ExitCode
from swarm.settings import ServiceSettings

LENDING_COMMAND: Final = (sys.executable, "-P", "-m", "node.lending.lending_process")


def prepare_lending(
    home: Home, environment: Mapping[str, str], flags: Mapping[str, str], given: str | None
) -> tuple[Lock, ServiceSettings, LendingSetup] | RunOutcome:
    """Locks the directory, joins the owner's private cluster if it has one, and returns what ``become_donor`` takes; a
    refusal where another node uses the directory.

    Raises ``ConfigurationError``, ``StorageError``, ``IdentityError``, or the errors of ``ensure_joined``.
    """
    resolved = resolve(home.path, environment, flags)
    if resolved.problems:
        raise ConfigurationError("; ".join(printable(each, 600) for each in resolved.problems))
    config = resolved.config
    home.prepare()
    lock = lock_home(home)
    if isinstance(lock, LockHeld):
        return RunOutcome(
            ExitCode.TRY_AGAIN,
            f"the data directory {home.path} is in use ({lock.holder}); end what runs there with starling down, or "
            "lend with a directory of its own: --home DIRECTORY",
        )
    key = NodeKey.load_or_create(home.key)
    invitation = invitation_of(home, given)
    if invitation.cluster_invite:
        ensure_joined(home, config, invitation.cluster_invite)
    settings = donor_settings(home, config, key, invitation)
    lending = LendingSetup(
        owner=invitation.owner,
        secret=invitation.secret.hex(),
        model=flags.get("policy.model", ""),
        device=config.policy.device,
        dtype=config.policy.dtype,
        seed=config.seed,
        max_memory_bytes=config.machine.max_memory_bytes,
    )
    return lock, settings, lending


def donor_settings(home: Home, config: Config, key: NodeKey, invitation: DonorInvitation) -> ServiceSettings:
    """Returns the settings of a donor's part in the owner's swarm."""
    settings = settings_without_learner(home, config, key, "donor")
    if not settings.private:
        settings = msgspec.structs.replace(
            settings, swarm_name=invitation.swarm_name, swarm_id=invitation.swarm_id.hex(), manifest=""
        )
    peers = tuple(dict.fromkeys((*invitation.addresses, *settings.peers)))
    return msgspec.structs.replace(settings, peers=peers, relay=False)


def become_donor(lock: Lock, settings: ServiceSettings, lending: LendingSetup, *, as_json: bool) -> NoReturn:
    """Replaces this process by the donor, which keeps the lock."""
    command = [*LENDING_COMMAND, *(["--json"] if as_json else [])]
    line = msgspec.json.encode({"settings": settings, "lending": lending})
    become(command, line, lock, os.environ)
