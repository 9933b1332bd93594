"""The vLLM process: ``python -m node.engines.vllm_backend.vllm_process``, run by the Python of vLLM's own environment.

It is started, fed and ended as ``engine_process``.
"""

from __future__ import annotations

import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from node.engines.process.engine_process import end, main
from node.engines.vllm_backend.vllm_setup import VllmSetup


def serve(connection: socket.socket, setup: VllmSetup) -> None:
    """Starts vLLM and serves the client to the end of its connection. Raises ``StarlingError``.

    vLLM starts on the thread that later computes: each thread that has computed keeps OpenMP threads of its own, and
    once there are more of these than cores they sleep between any two operations.
    """
    from node.engines.vllm_backend.vllm_start import started

    thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
    engine = thread.submit(started, setup).result()
    from node.engines.process.channel import SocketChannel  # after vLLM has started: see ``vllm_start``
    from node.engines.process.serving import EngineSession
    from node.engines.vllm_backend.hosted_vllm import HostedVllm

    logging.getLogger(__name__).info("vLLM has loaded %s", setup.model)
    session = EngineSession(
        HostedVllm(engine, setup), SocketChannel(connection), files=Path(setup.files), thread=thread
    )
    session.serve()


if __name__ == "__main__":
    end(main(VllmSetup, serve))
