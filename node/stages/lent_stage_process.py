"""The process of a donor that holds layers: ``python -m node.stages.lent_stage_process``. ``starling lend`` starts it.

As ``node.engines.process.lent_engine_process``, but it has no weights until an owner says which layers it holds.
Standard output: events of ``node.stages.stage_events``, a line of JSON each.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from node.engines.process.engine_process import end, main
from node.engines.process.engine_setup import LentSetup
from node.engines.process.lent_engine_process import check_family, connections
from node.library_imports import importing_libraries


def serve(connection: socket.socket, setup: LentSetup) -> None:
    """Serves one owner's session after another. Raises ``StarlingError``, ``ConfigurationError`` among them for a model
    that is not the owner's."""
    with importing_libraries():  # late, so that the socket answers before
        from node.configuration import PolicySection
        from node.engines.process.channel import SocketChannel
        from node.fit.planning import machine_here
        from node.home import Home
        from node.policy.device import device_memory_bytes
        from node.policy.model_counting import counted_sizes
        from node.policy.model_files import model_folder
        from node.policy.policy import Policy
        from node.stages.pace import layer_pace
        from node.stages.serving import StageSession
        from node.stages.stage_events import StageEvents
        from node.stages.worker import StageWorker
        from protocol.streams.stage_messages import STAGE_MAJOR, STAGE_MINOR, StageWelcome

    section, path = PolicySection.model_validate(setup.policy), Path(setup.socket)
    policy = Policy.without_weights(section)
    check_family(policy, setup)
    folder = model_folder(section.model)
    worker = StageWorker(policy, folder)
    machine = machine_here(
        Home(path.parent),
        "cuda" if policy.device.type == "cuda" else "cpu",  # others share main memory
        "bfloat16" if section.dtype == "bfloat16" else "float32",
        device_memory_bytes(policy.device),
        max_memory_bytes=setup.max_memory_bytes,
    )
    pace = layer_pace(worker, counted_sizes(folder))
    welcome = StageWelcome(
        STAGE_MAJOR,
        STAGE_MINOR,
        policy.family,
        worker.layers_in_all,
        worker.hidden_size,
        machine.usable_device_bytes or machine.host_bytes,
        pace.flops,
        pace.bytes_a_second,
    )
    events = StageEvents(sys.stdout, worker)
    for each in connections(connection, path):
        StageSession(worker, SocketChannel(each), welcome, told=events).serve()


if __name__ == "__main__":
    end(main(LentSetup, serve))
