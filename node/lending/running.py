"""Runs a donor in this process: its part in the swarm, and the engine process that it lends."""

from __future__ import annotations

import logging
import random
import sys
import time
from pathlib import Path
from typing import Final

import anyio
import msgspec

from node.home import Home
from node.lending.lending_output import LendingLines
from node.lending.lending_setup import LendingSetup
from node.lending.lent_engine import LentEngine
from node.printable import printable
from node.relay.relay_output import EventLines
from protocol.errors import ConfigurationError, StarlingError
from protocol.identity import NodeKey
from swarm.donors.lender_service import LenderService
from swarm.exit_codes import ExitCode, exit_code_of
from swarm.hosts.choosing import host_for
from swarm.hosts.unwrapping import unwrapped
from swarm.process_start import first_line, leave_on_signal, membership_of
from swarm.settings import ServiceSettings
from swarm.socket_server import serving

MESSAGE_CHARACTERS: Final = 2000


class LendingStart(msgspec.Struct, frozen=True):
    """The line on standard input."""

    settings: ServiceSettings
    lending: LendingSetup


def run_lending(*, as_json: bool) -> ExitCode:
    """Returns the exit code, once it was asked to end or could not go on."""
    try:
        start = _start()
        level = start.settings.log_number
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        with unwrapped():
            anyio.run(_run, start, as_json, backend="trio")
    except StarlingError as error:
        words = printable(str(error), MESSAGE_CHARACTERS)  # it may quote the owner
        print(f"starling lend: {words}", file=sys.stderr)  # noqa: T201  the last words of a process
        return exit_code_of(error)
    return ExitCode.DONE


def _start() -> LendingStart:
    try:
        return msgspec.json.decode(first_line(), type=LendingStart)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"the lending process cannot use its settings: {error}") from error


async def _run(start: LendingStart, as_json: bool) -> None:
    settings, lending = start.settings, start.lending
    key = NodeKey.load_or_create(settings.home_path / "identity.key")
    membership = membership_of(settings, key)
    emit = EventLines(sys.stdout) if as_json else LendingLines(sys.stdout)
    engine = LentEngine(Home(Path(settings.home)), lending, log_level=settings.log_level, emit=emit)
    service = LenderService(
        host_for(settings, key, membership),
        key,
        settings,
        owner=lending.owner,
        secret=bytes.fromhex(lending.secret),
        engine=engine.connected,
        wall_clock=time.time,
        random=random.Random(),
        emit=emit,
        membership=membership,
    )
    try:
        async with serving(settings.home_path / "swarm.sock", service.answer), anyio.create_task_group() as tasks:
            tasks.start_soon(leave_on_signal, service.leave)
            await service.run()
            tasks.cancel_scope.cancel()
    finally:
        engine.close()
