"""From a data directory and a configuration to a running node: directory, lock, key, cluster, then the supervisor.

``run_node`` names the two child processes: the learner (``node/learner/learner_process.py``), which trains, and the
swarm process (``swarm/swarm_process.py``), which holds the connections to peers.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import msgspec

from node.checkpoints.checkpoint_files import round_of
from node.checkpoints.resuming import Resumed, resume_from
from node.configuration import Config
from node.events import STOP_LINE, LearnerStart
from node.home import Home, Lock, LockHeld, lock_home
from node.printable import printable
from node.supervision.children import ChildSpec
from node.supervision.cluster_setup import credentials_of, ensure_joined
from node.supervision.outcome import RunOutcome
from node.supervision.reporting import Observer
from node.supervision.supervisor import Supervisor
from node.supervision.swarm_settings import name_for, swarm_settings
from node.trackers.sink import tracker_specs
from node.trackers.writers import check_installed
from protocol.errors import TransportError
from protocol.identity import NodeKey
from swarm.exit_codes import ExitCode, exit_code_of

PREDECESSOR_SECONDS = 60.0  # to wait until a killed supervisor's children have checkpointed and ended
LOCK_POLL_SECONDS = 0.2
INPUT_BYTES = 1 << 12
PATH_CHARACTERS = 300  # shown of a path
LEARNER_COMMAND = (sys.executable, "-P", "-m", "node.learner.learner_process")
SWARM_COMMAND = (sys.executable, "-P", "-m", "swarm.swarm_process")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_node(
    home: Home,
    config: Config,
    observer: Observer,
    *,
    until_input_ends: bool = False,
    invite: str | None = None,
    resumed: Path | None = None,
) -> RunOutcome:
    """Runs a node in ``home`` and returns when it has ended. ``STOP_SIGNALS`` ask it to end; with
    ``until_input_ends``, the end of standard input does too. With an ``invite`` it joins that private cluster first.
    It goes on from the newest checkpoint, or from the one in ``resumed``.

    Raises ``ConfigurationError``, ``StorageError`` or ``IdentityError`` before anything is started.
    """
    check_installed(config.trackers)
    home.prepare()
    lock = _take_lock(home, observer)
    if isinstance(lock, LockHeld):
        return RunOutcome(
            ExitCode.TRY_AGAIN,
            f"the data directory {home.path} is in use by another node ({lock.holder}); "
            "end that one with starling down, or start this one elsewhere with --home",
        )
    try:
        used_before = home.metrics.exists()
        if used_before and not home.key.exists():
            observer.on_note(
                f"There is no key at {home.key}, although this directory was used before: the node starts under a new "
                "identity. To keep the former identity, stop, restore its key file, and start again."
            )
        key = NodeKey.load_or_create(home.key)
        try:
            joined = ensure_joined(home, config, invite) if invite is not None else None
            credentials = credentials_of(home, key)
        except TransportError as error:
            return RunOutcome(exit_code_of(error), str(error))
        if joined is not None:
            observer.on_note(
                f"Joined the private cluster {printable(joined.cluster)}, admitted by {joined.welcomed_by}."
            )
        if not config.name:
            config = config.model_copy(update={"name": name_for(config.policy.model, key.peer_id)})
        if resumed is not None:
            observer.on_note(resumed_line(resume_from(home.checkpoints, resumed)))
        swarm = msgspec.json.encode(swarm_settings(home, config, credentials))
        learner = msgspec.json.encode(LearnerStart(str(home.path), config.model_dump(mode="json")))
        stop_line = STOP_LINE.encode()
        supervisor = Supervisor(
            home,
            config,
            peer=key.peer_id,
            swarm=ChildSpec("swarm", SWARM_COMMAND, swarm, lock.descriptor),
            learner=ChildSpec("learner", LEARNER_COMMAND, learner, lock.descriptor, stop_line),
            observer=observer,
            trackers=tracker_specs(home, config),
        )
        return asyncio.run(_supervise(supervisor, until_input_ends=until_input_ends))
    finally:
        lock.release()


def resumed_line(resumed: Resumed) -> str:
    """Describes from where the run goes on, and where later checkpoints are."""
    said = f"The run goes on from the checkpoint of round {resumed.round}."
    if not resumed.kept:
        return said
    kept = ", ".join(f"round {round_of(path)} as {printable(str(path), PATH_CHARACTERS)}" for path in resumed.kept)
    return f"{said} Later checkpoints are kept aside, and nothing deletes them: {kept}."


async def _supervise(supervisor: Supervisor, *, until_input_ends: bool) -> RunOutcome:
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue  # under nohup, which outlives its terminal
        name, typed = signal.Signals(number).name, number == signal.SIGINT
        loop.add_signal_handler(number, partial(supervisor.request_stop, name, typed=typed))

    def on_input() -> None:
        if not os.read(sys.stdin.fileno(), INPUT_BYTES):
            loop.remove_reader(sys.stdin.fileno())
            supervisor.request_stop("standard input ended", typed=False)

    if until_input_ends:
        loop.add_reader(sys.stdin.fileno(), on_input)
    gc.freeze()  # imported modules stay; scanning them would block the API for a tenth of a second each time
    return await supervisor.run()


def _take_lock(home: Home, observer: Observer) -> Lock | LockHeld:
    """Takes the lock. Waits for the children of a killed supervisor, which end by themselves."""
    deadline = time.monotonic() + PREDECESSOR_SECONDS
    reported = False
    while True:
        lock = lock_home(home)
        if isinstance(lock, Lock) or lock.supervisor is not None or time.monotonic() > deadline:
            return lock
        if not reported:
            observer.on_note("Waiting for the processes of the node that ran here before to checkpoint and end.")
            reported = True
        time.sleep(LOCK_POLL_SECONDS)
