"""The engine that a donor lends: a process with the model that the owner's terms name, kept from session to session."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio.to_thread
from anyio.abc import ByteStream, UNIXSocketStream

from node.engines.process.engine_child import EngineChild
from node.engines.process.engine_setup import LentSetup
from node.home import Home
from node.lending.lending_setup import LendingSetup
from node.printable import printable
from protocol.errors import ConfigurationError
from protocol.streams.lend_messages import LendTerms
from swarm.exit_codes import ExitCode

COMMAND_MODULE: Final = "node.engines.process.lent_engine_process"
START_SECONDS: Final = 60.0  # until the process listens; its model it loads afterwards


class LentEngine:
    """Call it from one task at a time. ``start`` starts a process."""

    def __init__(
        self, home: Home, lending: LendingSetup, *, log_level: str, start: Callable[[LentSetup], EngineChild]
    ) -> None:
        self._home, self._lending, self._log_level, self._start = home, lending, log_level, start
        self._child: EngineChild | None = None
        self._terms: LendTerms | None = None

    async def connected(self, terms: LendTerms) -> ByteStream:
        """Returns a connection to an engine with the model of ``terms``. Raises ``EngineLostError``, and
        ``ConfigurationError`` for a model that this machine must be told, or that the last engine could not load."""
        connection = await anyio.to_thread.run_sync(self._connect, terms)
        return await UNIXSocketStream.from_socket(connection)

    def close(self) -> None:
        """Ends the process, if one runs."""
        if self._child is not None:
            self._child.end()
        self._child = None

    def _connect(self, terms: LendTerms) -> socket.socket:
        child = self._child
        if child is not None and child.exit_code == ExitCode.BAD_CONFIGURATION:
            raise ConfigurationError(
                f"the engine cannot load {printable(model_for(terms, self._lending.model), 200)} as the owner has it: "
                "the line above says why"
            )
        if child is None or child.exit_code is not None or terms != self._terms:
            self.close()
            child = self._child = self._start(self._setup(terms))
            self._terms = terms
        return child.connect(START_SECONDS).detached()

    def _setup(self, terms: LendTerms) -> LentSetup:
        policy = {
            "model": model_for(terms, self._lending.model),
            "adapter_rank": terms.adapter_rank,
            "four_bit": terms.four_bit,
            "chat": terms.chat,
            "device": self._lending.device,
            "dtype": self._lending.dtype,
        }
        return LentSetup(
            socket=str(self._home.engine_socket),
            files=str(self._home.engine_files),
            log_level=self._log_level.upper(),
            policy=policy,
            seed=self._lending.seed,
            merge_adapters=True,
            family=terms.family.hex(),
        )


def model_for(terms: LendTerms, given: str) -> str:
    """Returns the model to load: ``given`` on this machine, otherwise the one that the owner names, unless that is a
    folder of the owner's. Raises ``ConfigurationError``."""
    if given:
        return given
    is_hub_id = terms.model.count("/") == 1 and not terms.model.startswith((".", "/", "~"))
    if terms.model.startswith("builtin:") or (is_hub_id and not Path(terms.model).exists()):
        return terms.model
    raise ConfigurationError(
        f"the owner trains {printable(terms.model, 200)}, a folder on its own machine: copy it here, and name it with "
        "--model FOLDER"
    )
