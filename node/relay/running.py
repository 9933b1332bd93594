"""Runs a relay in this process. What is imported here is most of its memory."""

from __future__ import annotations

import logging
import random
import sys
import time

import anyio

from node.relay.relay_output import EventLines, RelayLines
from protocol.errors import StarlingError
from protocol.identity import NodeKey
from swarm.exit_codes import ExitCode, exit_code_of
from swarm.hosts.choosing import host_for
from swarm.hosts.unwrapping import unwrapped
from swarm.process_start import first_line, leave_on_signal, membership_of
from swarm.relay_service import RelayService
from swarm.settings import ServiceSettings, decode_settings
from swarm.socket_server import serving


def run_relay(*, as_json: bool) -> ExitCode:
    """Returns the exit code, once it was asked to end or could not go on."""
    try:
        settings = decode_settings(first_line())
        logging.basicConfig(level=settings.log_number, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        with unwrapped():
            anyio.run(_run, settings, as_json, backend="trio")
    except StarlingError as error:
        print(f"starling relay: {error}", file=sys.stderr)  # noqa: T201  the last words of a process
        return exit_code_of(error)
    return ExitCode.DONE


async def _run(settings: ServiceSettings, as_json: bool) -> None:
    key = NodeKey.load_or_create(settings.home_path / "identity.key")
    membership = membership_of(settings, key)
    service = RelayService(
        host_for(settings, key, membership),
        key,
        settings,
        wall_clock=time.time,
        random=random.Random(),
        emit=EventLines(sys.stdout) if as_json else RelayLines(sys.stdout, settings),
        membership=membership,
    )
    async with serving(settings.home_path / "swarm.sock", service.answer), anyio.create_task_group() as tasks:
        tasks.start_soon(leave_on_signal, service.leave)
        await service.run()
        tasks.cancel_scope.cancel()
