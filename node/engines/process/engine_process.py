"""The engine process: ``python -m node.engines.process.engine_process``. The learner starts, watches and ends it.

Standard input: one line, ``EngineSetup`` as JSON, then nothing. Its end means that the learner is gone, also by
``kill -9``, and ends this process at once, whatever it does: nothing here is to be saved. It listens on one Unix socket
for one client, which must be its parent, and ends with that connection. Its output goes to the learner's log.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec

from node.engines.process.engine_setup import EngineSetup, ProcessSetup
from node.library_imports import importing_libraries
from protocol.errors import StarlingError
from swarm.exit_codes import ExitCode, exit_code_of
from swarm.process_start import INPUT, first_line
from swarm.socket_peer import is_process

S = TypeVar("S", bound="ProcessSetup")


def main(setup_type: type[S], serve: Callable[[socket.socket, S], None]) -> int:
    """``serve`` loads the model that the setup names, and serves the client. It may raise ``StarlingError``."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the learner ends it by closing its standard input
        signal.signal(number, signal.SIG_IGN)
    line = first_line()
    if not line:
        return ExitCode.USAGE
    setup = msgspec.json.decode(line, type=setup_type)
    logging.basicConfig(
        level=setup.log_level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    threading.Thread(target=_end_with_the_learner, name="stdin", daemon=True).start()
    try:
        connection = accepted(Path(setup.socket), os.getppid())
        serve(connection, setup)
    except StarlingError as error:
        logging.getLogger(__name__).error("%s", error)
        return exit_code_of(error)
    return ExitCode.DONE


def accepted(path: Path, client: int) -> socket.socket:
    """Listens at ``path`` until process ``client`` of this user connects. Others are refused."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(1)
        while True:
            connection, _ = listener.accept()
            if is_process(connection, client):
                return connection
            connection.close()
            logging.getLogger(__name__).warning("refused a connection of another process on %s", path)


def serve(connection: socket.socket, setup: EngineSetup) -> None:
    """Loads the model and serves the client to the end of its connection. Raises ``StarlingError``."""
    with importing_libraries():  # late, so that the socket answers before
        from node.configuration import PolicySection
        from node.engines.process.channel import SocketChannel
        from node.engines.process.hosted_torch import HostedTorchEngine
        from node.engines.process.serving import EngineSession
        from node.policy.policy import Policy

    policy = Policy.load(PolicySection.model_validate(setup.policy))
    engine = HostedTorchEngine(policy, merge_adapters=setup.merge_adapters)
    EngineSession(engine, SocketChannel(connection), files=Path(setup.files)).serve()


def end(code: int) -> NoReturn:
    """Ends this process at once: a thread that still computes must not delay it."""
    sys.stderr.flush()
    os._exit(code)


def _end_with_the_learner() -> None:
    while os.read(INPUT, 1 << 16):
        pass
    os._exit(ExitCode.DONE)


if __name__ == "__main__":
    end(main(EngineSetup, serve))
