"""The swarm process: ``python -m swarm.swarm_process``.

Standard input: one line, the JSON of ``ServiceSettings``; the end of the input means that the supervisor is gone.
Standard output: JSON lines of events (``{"event": "ready", "peer": …, "addresses": […]}``, ``alone``, ``connected``,
``banned``, ``refused``, ``left``). Logs go to standard error. On SIGTERM, SIGINT and the end of standard input the
process says goodbye to its peers and ends with 0; a second signal ends it at once. If it cannot start, or its
membership is over, it ends with a code of ``swarm.exit_codes``.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

import anyio
import anyio.to_thread

from protocol.errors import RefusedError, StarlingError
from protocol.identity import NodeKey
from swarm.exit_codes import exit_code_of
from swarm.hosts.choosing import host_for
from swarm.hosts.routers.home_router import HomeRouter
from swarm.hosts.unwrapping import unwrapped
from swarm.process_start import INPUT, first_line, keep_freed_memory, leave_on_signal, membership_of
from swarm.service import SwarmService
from swarm.settings import ServiceSettings, decode_settings
from swarm.socket_server import serving

log = logging.getLogger(__name__)


def main() -> NoReturn:
    try:
        settings = decode_settings(first_line())
        logging.basicConfig(level=settings.log_number, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        settings.home_path.mkdir(mode=0o700, parents=True, exist_ok=True)
        keep_freed_memory()
        with unwrapped():
            anyio.run(_run, settings, backend="trio")
    except StarlingError as error:
        if isinstance(error, RefusedError):
            _emit("refused", {"reason": error.reason, "message": str(error)})
        print(f"starling swarm: {error}", file=sys.stderr)  # noqa: T201  the last words of a process
        sys.exit(exit_code_of(error))
    sys.exit(0)


async def _run(settings: ServiceSettings) -> None:
    key = NodeKey.load_or_create(settings.home_path / "identity.key")
    membership = membership_of(settings, key)
    host = host_for(settings, key, membership)
    service = SwarmService(
        host,
        key,
        settings,
        wall_clock=time.time,
        random=random.Random(),
        emit=_emit,
        membership=membership,
        router=HomeRouter() if settings.port_mapping else None,
    )
    async with (
        serving(settings.home_path / "swarm.sock", service.answer, service.carry),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(leave_on_signal, service.leave)
        tasks.start_soon(_leave_with_supervisor, service)
        await service.run()
        tasks.cancel_scope.cancel()


async def _leave_with_supervisor(service: SwarmService) -> None:
    while await anyio.to_thread.run_sync(os.read, INPUT, 4096, abandon_on_cancel=True):
        pass  # nothing meaningful follows the first line
    service.leave("its supervisor ended")


def _emit(event: str, fields: Mapping[str, object]) -> None:
    with suppress(BrokenPipeError):  # the supervisor is gone; the end of standard input ends this process
        sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
