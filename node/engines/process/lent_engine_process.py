"""The engine process of a donor: ``python -m node.engines.process.lent_engine_process``. ``starling lend`` starts it.

As ``engine_process``, but its client is a session of the donor with the owner: when that ends, the process keeps its
model and weights and serves the next one. What it holds then is told by a measured hash, so that an owner that is back
sends a diff rather than everything.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from node.engines.process.engine_process import accepted, end, main
from node.engines.process.engine_setup import LentSetup
from node.library_imports import importing_libraries
from protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from node.policy.policy import Policy


def serve(connection: socket.socket, setup: LentSetup) -> None:
    """Loads the model and serves one client after another. Raises ``StarlingError``, ``ConfigurationError`` among them
    for a model that is not the owner's."""
    with importing_libraries():  # late, so that the socket answers before
        from node.configuration import PolicySection
        from node.engines.process.channel import SocketChannel
        from node.engines.process.hosted_torch import HostedTorchEngine
        from node.engines.process.serving import EngineSession
        from node.policy.policy import Policy

    policy = Policy.load(PolicySection.model_validate(setup.policy))
    check_family(policy, setup)
    engine = HostedTorchEngine(policy, merge_adapters=setup.merge_adapters)
    for each in connections(connection, Path(setup.socket)):
        EngineSession(engine, SocketChannel(each), files=None).serve()
        engine.sleep()


def check_family(policy: Policy, setup: LentSetup) -> None:
    """Raises ``ConfigurationError`` for a model that is not the owner's."""
    if policy.family.hex() != setup.family:
        raise ConfigurationError(
            f"the model {setup.policy['model']} has family {policy.family.hex()}, the owner's has {setup.family}: copy "
            "the owner's model folder to this machine, and name it with --model"
        )


def connections(first: socket.socket, path: Path) -> Iterator[socket.socket]:
    """Yields one session's connection after the other: ``first``, then those of the parent at ``path``. Each is closed
    before the next is awaited."""
    connection = first
    while True:
        yield connection
        connection.close()
        path.unlink(missing_ok=True)
        connection = accepted(path, os.getppid())


if __name__ == "__main__":
    end(main(LentSetup, serve))
