"""The learner's state between rounds, written to checkpoints and restored from them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from node.averaging import rules
from node.averaging.guard import AveragingGuard
from node.checkpoints.best import EVALUATION, best_comparable_with
from node.checkpoints.checkpoint_files import room_fault
from node.checkpoints.checkpoints import (
    BackgroundCheckpoints,
    NewestCheckpoint,
    Snapshot,
    random_state,
    restore_random_state,
)
from node.configuration import Config
from node.evaluation.held_out import HeldOutReward
from node.events import CheckpointSaved, Event, NotSaved
from node.learner.allocation.success import SuccessTracker
from node.learner.answers.hints import Hints
from node.learner.answers.right_answers import Imitation, Rehearsal
from node.learner.generation.unfinished import restored_unfinished, snapshot_of_unfinished
from node.learner.influence.guard import InfluenceState
from node.learner.memory.phases import PhaseRunner
from node.learner.state.learner_state import LearnerState
from node.learner.state.unsaved import UnsavedRounds
from node.learner.steps.optimizer import MasterAdamW
from node.learner.steps.rate_control import RateState
from node.policy.base_weights import all_finite
from node.policy.policy import Policy
from node.policy.whole_tensors import bytes_of, joined, renamed
from node.state_sync.publishing import LearnerProgress, StatePublisher
from protocol.errors import ConfigurationError, StorageError

LAST_RETRY_SECONDS: Final = 2.0  # between two attempts to write the state at the end of a run
STATE_BYTES: Final = 1 << 20  # of a checkpoint's two JSON files, about
MOST_COUNTED: Final = 2**62  # the protocol's counters end at 2⁶³ − 1
COUNTERS: Final = (
    "policy_version", "tokens_generated", "groups_shared", "foreign_groups_used", "foreign_completions",
    "bytes_fetched", "outer_round",
)  # fmt: skip


PoolPosition = Callable[[], Mapping[str, Any]]  # of the replay pool, made where it is written
SnapshotInputs = tuple[LearnerState, PoolPosition]


class Persistence:
    """Writes a checkpoint every ``checkpoint.every_rounds`` rounds in the background, and reports it; publishes weights
    for peers.

    Whether the disk has room is looked at after the first round already. Where it has none, or writing fails, it is
    tried again every ``unsaved.RETRY_SECONDS`` until it succeeds, and ``NotSaved`` says what is in memory alone.
    """

    def __init__(
        self,
        checkpoints: BackgroundCheckpoints,
        config: Config,
        policy: Policy,
        optimizer: MasterAdamW,
        report: Callable[[Event], None],
        clock: Callable[[], float],
        publisher: StatePublisher | None = None,
        *,
        save_beside: bool = True,
        saved_round: int = 0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Without ``save_beside`` rounds wait until a checkpoint is written, and main memory holds no copy of it.

        ``saved_round``: of the checkpoint that the run began with. ``sleep`` waits between the last attempts.
        """
        self._checkpoints, self._config, self._policy, self._optimizer = checkpoints, config, policy, optimizer
        self._report, self._clock = report, clock
        self._publisher, self._save_beside = publisher, save_beside
        self._newest: tuple[int, str] | None = None  # round, path
        self._best: HeldOutReward | None = None  # None: as the checkpoints on disk have it
        self._best_to_save = False
        self._unsaved, self._sleep = UnsavedRounds(saved_round, report, clock), sleep
        self._room_checked = False

    def after_round(self, round_number: int, inputs: Callable[[], SnapshotInputs], phases: PhaseRunner) -> None:
        """Starts a checkpoint when it is due, unless one is still being written, and reports those that ended. The
        best weights so far are written in any case, after the one that is being written.

        A checkpoint for which memory runs out is left out, and so is an offer of the state to peers.
        """
        is_best, self._best_to_save = self._best_to_save, False
        if is_best:
            self._report_finished(wait=True, round_number=round_number)  # so that one copy of the state is in memory
        if is_best or (self._is_due(round_number) and not self._checkpoints.busy):
            phases.attempt("checkpoint", lambda: self._save(inputs()))
        elif not self._room_checked:
            phases.attempt("checkpoint", lambda: self._check_room(self._snapshot(inputs())))
        self._report_finished(wait=not self._save_beside, round_number=round_number)
        publisher = self._publisher
        if publisher is not None:
            phases.attempt("offer state", lambda: publisher.after_round(round_number, lambda: _progressed(inputs()[0])))

    def best_after(self, measured: HeldOutReward) -> HeldOutReward:
        """Returns the best of ``measured`` and the evaluations of the checkpoints that are kept, on the same prompts.

        If that is ``measured``, the next ``after_round``, which must be that of its round, writes the checkpoint.
        """
        if self._best is None or not self._best.comparable_with(measured):
            self._best = best_comparable_with(self._checkpoints.folder, measured)
        if self._best is None or measured.validation > self._best.validation:
            self._best, self._best_to_save = measured, True
        return self._best

    def save_last(self, inputs: SnapshotInputs, phases: PhaseRunner) -> str | None:
        """Writes the state unless the newest checkpoint has it, and waits. Where something would be lost, it tries
        for ``checkpoint.wait_for_room_seconds``. Returns the path, None if writing failed."""
        done = inputs[0].round
        self._report_finished(wait=True, round_number=done)
        last_tries = 1 + math.ceil(self._config.checkpoint.wait_for_room_seconds / LAST_RETRY_SECONDS)
        for tries_left in reversed(range(last_tries)):
            if self._newest is not None and self._newest[0] == done:
                break
            phases.attempt("checkpoint", lambda: self._save(inputs))
            self._report_finished(wait=True, round_number=done)
            if self._unsaved.failure is None or done <= self._unsaved.saved_round:
                break
            if tries_left == last_tries - 1:
                self._unsaved.ending(done, self._config.checkpoint.wait_for_room_seconds)
            self._sleep(LAST_RETRY_SECONDS if tries_left else 0.0)
        return self._newest[1] if self._newest is not None and self._newest[0] == done else None

    def lost(self, round_number: int) -> NotSaved | None:
        """Returns what is lost where a run ends now, after ``round_number`` rounds; None where nothing is."""
        return self._unsaved.lost(round_number)

    def _is_due(self, round_number: int) -> bool:
        return self._unsaved.retry_is_due or round_number % self._config.checkpoint.every_rounds == 0

    def _snapshot(self, inputs: SnapshotInputs) -> Snapshot:
        return snapshot_of(self._config, self._policy, self._optimizer, *inputs)

    def _save(self, inputs: SnapshotInputs) -> None:
        snapshot = self._snapshot(inputs)
        if self._check_room(snapshot):
            self._checkpoints.save(snapshot, copy=self._save_beside)

    def _check_room(self, snapshot: Snapshot) -> bool:
        """Returns whether the disk has room for ``snapshot``; nothing is copied or written where it has none."""
        self._room_checked = True
        fault = room_fault(self._checkpoints.folder, STATE_BYTES + bytes_of(snapshot.tensors))
        if fault is not None:
            self._best = None
            self._unsaved.failed(snapshot.round, f"{fault}: free some space there", done=snapshot.round)
        return fault is None

    def _report_finished(self, *, wait: bool, round_number: int) -> None:
        for written in self._checkpoints.finished(wait=wait):
            now_seconds = self._clock()
            if written.error is not None:
                self._best = None  # perhaps this was its checkpoint
                self._unsaved.failed(written.round, str(written.error), done=round_number)
                continue
            self._newest = (written.round, str(written.path))
            self._unsaved.saved(written.round)
            self._report(
                CheckpointSaved(
                    time_seconds=now_seconds,
                    round=written.round,
                    path=str(written.path),
                    size_bytes=written.size_bytes,
                    seconds=written.seconds,
                )
            )


def _progressed(state: LearnerState) -> LearnerProgress:
    steps = state.outer.steps if state.outer is not None else 0
    return LearnerProgress(state.round, state.policy_version, steps, state.success.announced())


def snapshot_of(
    config: Config, policy: Policy, optimizer: MasterAdamW, state: LearnerState, pool_position: PoolPosition
) -> Snapshot:
    """Returns all that a continued run needs. The tensors are live, or put together as they are asked for: the caller
    copies those that it keeps."""
    weights, moments = renamed(policy.weights(), "weights."), renamed(optimizer.state(), "optimizer.")
    unfinished_tensors, unfinished = snapshot_of_unfinished(state.unfinished)
    tensors = dict(unfinished_tensors)
    if state.outer is not None:
        tensors |= rules.averaging_snapshot(state.outer)
    tensors |= state.averaging.tensors()
    record = {name: getattr(state, name) for name in COUNTERS} | {
        "steps_skipped": optimizer.steps_skipped,
        "success": msgspec.to_builtins(state.success),
        "unfinished": unfinished,
        "averaging": state.averaging.snapshot(),
        "influence": msgspec.to_builtins(state.influence, str_keys=True),
        "rehearsal": state.rehearsal.snapshot(),
        "imitation": state.imitation.snapshot(),
        "hints": msgspec.to_builtins(state.hints, str_keys=True),
        "rate": msgspec.to_builtins(state.rate),
        EVALUATION: msgspec.to_builtins(state.evaluation),
        "pool": dict(pool_position()),
    }
    everything = joined(weights, moments, tensors | random_state())
    return Snapshot(state.round, policy.family, everything, record, config.model_dump(mode="json"))


def restore(
    newest: NewestCheckpoint, folder: Path, policy: Policy, optimizer: MasterAdamW
) -> tuple[LearnerState, Mapping[str, Any] | None]:
    """Puts the newest checkpoint's tensors in place; returns the learner's state and pool position, or a fresh start.

    Raises ``ConfigurationError`` for a checkpoint of another policy, and ``StorageError`` for one that no run can
    continue from: a tensor is missing, of another shape or not finite, or the state is not one of a learner. Nothing
    has changed then.
    """
    snapshot = newest.snapshot
    if snapshot is None:
        return LearnerState(), None
    if snapshot.family != policy.family:
        trained = snapshot.config.get("policy", {}).get("model", "another model")
        raise ConfigurationError(
            f"{folder} holds checkpoints of {trained} (family {snapshot.family.hex()[:8]}), and policy.model is now "
            f"{policy.label} (family {policy.family.hex()[:8]}): use another data directory, or move it away"
        )
    weights = _checked_weights(newest, snapshot, policy)
    put_moments = optimizer.restoring(_of_optimizer(snapshot.tensors))
    try:
        state, steps_skipped = _state_of(snapshot, policy), int(snapshot.state["steps_skipped"])
        pool_position = snapshot.state["pool"]
        restore_random_state(snapshot.tensors)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, msgspec.ValidationError) as error:
        raise StorageError(
            f"{newest.path} holds no state that a run can continue from ({type(error).__name__}: {error})"
        ) from error
    with torch.no_grad():
        for name, parameter in policy.trainable().items():
            parameter.copy_(weights[name])
    put_moments()
    optimizer.steps_skipped = steps_skipped
    return state, pool_position


def _checked_weights(newest: NewestCheckpoint, snapshot: Snapshot, policy: Policy) -> dict[str, torch.Tensor]:
    weights = {}
    for name, parameter in policy.trainable().items():
        saved = snapshot.tensors.get(f"weights.{name}")
        if saved is None or saved.shape != parameter.shape:
            raise StorageError(f"{newest.path} has no weights of the right shape for {name}")
        if not all_finite(saved):
            raise StorageError(f"{newest.path} has values that are not finite in {name}")
        weights[name] = saved
    return weights


def _state_of(snapshot: Snapshot, policy: Policy) -> LearnerState:
    saved = snapshot.state
    return LearnerState(
        round=_count(snapshot.round),
        **{name: _count(saved[name]) for name in COUNTERS},
        success=msgspec.convert(saved["success"], SuccessTracker),
        unfinished=restored_unfinished(snapshot.tensors, saved["unfinished"]),
        outer=rules.restore_averaging(snapshot.tensors, policy.trainable()),
        averaging=AveragingGuard.restored(saved["averaging"], snapshot.tensors, policy.trainable()),
        evaluation=msgspec.convert(saved[EVALUATION], HeldOutReward | None),
        influence=msgspec.convert(saved["influence"], InfluenceState, str_keys=True),
        rehearsal=Rehearsal.restored(saved["rehearsal"]),
        imitation=Imitation.restored(saved["imitation"]),
        hints=msgspec.convert(saved.get("hints", {}), Hints, str_keys=True),
        rate=msgspec.convert(saved.get("rate", {}), RateState),
    )


def _count(saved: object) -> int:
    """Returns a counter with room to count on. Raises ``ValueError`` for one that is negative or near the protocol's
    end, where the next announcement could not be encoded."""
    count: int = int(saved)  # type: ignore[call-overload]
    if not 0 <= count <= MOST_COUNTED:
        raise ValueError(f"a count of {count} is outside 0 to {MOST_COUNTED}")
    return count


def _of_optimizer(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the optimizer's tensors, by its names. Weights that were saved in float32 were the masters themselves: a
    node that continues in bfloat16 has them as such."""
    prefix, weights = "optimizer.", "weights."
    masters = {
        f"master.{name.removeprefix(weights)}": tensor
        for name, tensor in tensors.items()
        if name.startswith(weights) and tensor.dtype == torch.float32
    }
    return masters | {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
