"""What a donor lends: a process with an engine, or with layers, of the model that the owner's terms name. It is kept
from session to session."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

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

ENGINE_MODULE: Final = "node.engines.process.lent_engine_process"
STAGE_MODULE: Final = "node.stages.lent_stage_process"
START_SECONDS: Final = 60.0  # until the process listens; its model it loads afterwards


class LentEngine:
    """Call it from one task at a time. ``emit`` is called on threads with the events of a stage's process."""

    def __init__(
        self, home: Home, lending: LendingSetup, *, log_level: str, emit: Callable[[str, Mapping[str, Any]], None]
    ) -> None:
        self._home, self._lending, self._log_level, self._emit = home, lending, log_level, emit
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
            module = STAGE_MODULE if terms.layers else ENGINE_MODULE
            told = self._told if terms.layers else None
            child = EngineChild(self._setup(terms), (sys.executable, "-P", "-m", module), told=told)
            self._child, self._terms = child, terms
        return child.connect(START_SECONDS).detached()

    def _told(self, line: bytes) -> None:
        fields = json.loads(line)
        self._emit(fields.pop("event"), fields)

    def _setup(self, terms: LendTerms) -> LentSetup:
        policy = {
            "model": model_for(terms, self._lending.model),
            "adapter_rank": terms.adapter_rank,
            "four_bit": terms.four_bit,
            "chat": terms.chat,
            "device": self._lending.device,
            "dtype": terms.layers or self._lending.dtype,
        }
        return LentSetup(
            socket=str(self._home.engine_socket),
            files=str(self._home.engine_files),
            log_level=self._log_level.upper(),
            policy=policy,
            seed=self._lending.seed,
            merge_adapters=True,
            family=terms.family.hex(),
            max_memory_bytes=self._lending.max_memory_bytes,
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
