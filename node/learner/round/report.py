"""What is reported of a round: all of it to the supervisor, with what went wrong in it; a heartbeat to the swarm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from node.configuration import Config
from node.engines.agreement import agreement_bound, disagreement
from node.engines.engine import Engine
from node.events import Event, Fault, FoundRate, PhaseBegan, Phases, RoundDone
from node.learner.answers.samples import SampleChoice
from node.learner.foreign.candidates import VerifiedGroup
from node.learner.foreign.intake import RolloutIntake
from node.learner.generation.generation import Generated
from node.learner.round.record import RoundRecord, Stopwatch
from node.learner.round.scoring import ScoredRound
from node.learner.state.learner_state import LearnerState
from node.learner.steps.optimizer import MasterAdamW
from node.learner.steps.rate_control import RateState, in_use
from node.learner.steps.step import BatchReport
from node.policy.device import reserved_bytes
from node.policy.policy import Policy
from node.version import SOFTWARE
from protocol import limits
from protocol.messages import Heartbeat

SLOW_PHASE_SECONDS: Final = 1.0  # a phase that took longer is reported when it begins in the next round


class Reporting:
    """Reports the rounds of one learner. Only the learner's thread may call it."""

    def __init__(
        self,
        config: Config,
        policy: Policy,
        engine: Engine,
        state: LearnerState,
        intake: RolloutIntake,
        report: Callable[[Event], None],
        clock: Callable[[], float],
    ) -> None:
        self._config, self._policy, self._engine, self._state, self._intake = config, policy, engine, state, intake
        self._report, self.clock = report, clock
        self._samples = SampleChoice()
        self._slow_phases: set[str] = set()  # of the round before
        self._faults: set[str] = set()  # kinds that occurred in the round before

    def starting(self) -> None:
        """Tells the swarm that the run begins."""
        self._beat("starting", 0.0)

    def begin(self) -> RoundRecord:
        """Returns the record of the next round, whose first phase begins now."""
        return RoundRecord(Stopwatch(partial(self._on_phase, self._state.round + 1)))

    def learnt_from(self, scored: ScoredRound, taught: Sequence[VerifiedGroup]) -> None:
        """Shows a question with answers of this round, own ones and those of a peer that taught, now and then."""
        samples = self._samples.of_round(self.clock(), self._state.round + 1, scored.own, taught)
        if samples is not None:
            self._report(samples)

    def done(self, record: RoundRecord, learnt: BatchReport, generated: Generated, optimizer: MasterAdamW) -> RoundDone:
        """Reports the round, which the state counts already, to the supervisor and to the swarm."""
        self._slow_phases = {phase for phase, took in record.watch.seconds.items() if took > SLOW_PHASE_SECONDS}
        dtype = str(self._policy.dtype).removeprefix("torch.")
        bound = agreement_bound(self._engine.label, dtype=dtype, four_bit=self._policy.four_bit)
        rate = in_use(self._state.rate, self._config.learner.learning_rate)
        done = round_done(self.clock(), record, learnt, self._state, optimizer, engine_bound=bound, rate=rate)
        foreign_groups = record.foreign.event(self.clock(), self._state.round)
        if foreign_groups is not None:
            self._report(foreign_groups)
        self._report(done)
        self._beat("learning", done.tokens_per_second)
        differs = disagreement(self._engine.label, learnt.objective.mean_engine_kl(), bound)
        self._report_faults(learnt, generated.too_long, record, differs)
        return done

    def _beat(self, phase: str, tokens_per_second: float) -> None:
        self._intake.calls.beat(heartbeat(self._config, self._policy, self._state, phase, tokens_per_second))

    def _on_phase(self, round_number: int, phase: str) -> None:
        if phase in self._slow_phases:
            self._report(PhaseBegan(time_seconds=self.clock(), round=round_number, phase=phase))

    def _report_faults(self, learnt: BatchReport, too_long: int, record: RoundRecord, differs: str | None) -> None:
        """Reports each kind of fault once, and again only after a round without it."""
        faults = dict.fromkeys((error.reason, str(error)) for error in self._intake.faults())
        if learnt.step is not None and not learnt.step.taken:
            faults["gradient", f"the gradient's norm is {learnt.step.gradient_norm}: the step was skipped"] = None
        if too_long:
            left = f"{too_long} prompts of this round left no room for an answer in the model's context"
            faults["prompt_too_long", f"{left}, and were left out: choose shorter tasks"] = None
        if record.scoring_fault is not None:
            without = f"{record.scoring_failures} own answers of this round got no reward, since scoring them failed"
            faults["scoring", f"{without}; the first: {record.scoring_fault}"] = None
        for environment in record.environments_at_fault:
            because = f"conversations of most peers in {environment} go otherwise here, so that it is rather this node"
            remedy = f"it shares none of them; update starling, and see starling tasks {environment} --audit"
            faults["environment_differs", f"{because}: {remedy}"] = None
        if differs is not None:
            faults["engine_differs", differs] = None
        for kind, detail in faults:
            if kind not in self._faults:
                self._report(
                    Fault(time_seconds=self.clock(), kind=kind, detail=detail, round=self._state.round, fatal=False)
                )
        self._faults = {kind for kind, _ in faults}


def round_done(
    now_seconds: float,
    record: RoundRecord,
    learnt: BatchReport,
    state: LearnerState,
    optimizer: MasterAdamW,
    *,
    engine_bound: float,
    rate: RateState,
) -> RoundDone:
    """Returns the event of a round that is done; ``state`` counts it already."""
    objective, seconds = learnt.objective, record.watch.total()
    stepped = learnt.step is not None
    divergence = objective.divergence_by_peer()
    alike = {name: getattr(record, name) for name in record.__slots__ if name in RoundDone.__struct_fields__}
    return RoundDone(
        **alike,
        time_seconds=now_seconds,
        round=state.round,
        policy_version=state.policy_version,
        seconds=seconds,
        phases=Phases(**record.watch.seconds),
        success_by_task={name: each.measured for name, each in sorted(state.success.classes.items())},
        foreign_groups_used=record.foreign.used,
        foreign_groups_replayed=record.foreign.replayed,
        foreign_rejected=record.foreign.not_used(),
        groups_offered_total=state.groups_shared,
        foreign_groups_used_total=state.foreign_groups_used,
        tokens_generated_total=state.tokens_generated,
        tokens_trained=round(objective.tokens),
        tokens_per_second=record.tokens_generated / seconds if seconds > 0 else 0.0,
        bytes_fetched_total=state.bytes_fetched,
        foreign_completions_total=state.foreign_completions,
        bytes_per_foreign_completion=_ratio(state.bytes_fetched, state.foreign_completions),
        loss=_finite(objective.loss) if stepped else None,
        gradient_norm=_finite(learnt.step.gradient_norm) if learnt.step is not None else None,
        learning_rate=optimizer.rate * rate.factor,
        found_rate=_found_rate(rate, optimizer.rate),
        step_kl=_finite(objective.mean_moved()),
        steps_skipped_total=optimizer.steps_skipped,
        effective_sample_share=objective.effective_sample_share(),
        clip_share=objective.share_of_spans(objective.capped_spans),
        ratio_clip_share=objective.clipped_token_share(),
        floor_share=objective.share_of_spans(objective.floored_spans),
        filter_share=objective.filter_share(),
        text_share=objective.text_share(),
        foreign_unusable=learnt.foreign_unusable,
        kl=_finite(objective.mean_kl()),
        engine_gap=_finite(objective.mean_engine_gap()),
        engine_kl=_finite(objective.mean_engine_kl()),
        engine_bound=engine_bound,
        multi_token_span_share=learnt.multi_token_span_share(),
        entropy=objective.mean_entropy(),
        divergence_by_peer={peer: value for peer, value in divergence.items() if math.isfinite(value)},
        samples_by_task={name: each.samples for name, each in sorted(state.success.classes.items())},
        trained_tokens_per_second=objective.tokens / seconds if seconds > 0 else None,
        device_memory_bytes=reserved_bytes(),
    )


def _found_rate(state: RateState, own_rate: float) -> FoundRate | None:
    if not state.since_round:
        return None
    return FoundRate(
        since_round=state.since_round,
        before=own_rate * state.before,
        to=own_rate * state.goal,
        because=state.because,
    )


def heartbeat(config: Config, policy: Policy, state: LearnerState, phase: str, tokens_per_second: float) -> Heartbeat:
    """Returns what the node announces about itself."""
    return Heartbeat(
        name=config.name[: limits.NAME_BYTES],
        software=SOFTWARE,
        model=policy.label,
        family=policy.family,
        tokenizer=policy.tokens.fingerprint,
        round=state.round,
        policy_version=state.policy_version,
        phase=phase,
        tokens_per_second=tokens_per_second,
        groups_offered=state.groups_shared,
        groups_used=state.foreign_groups_used,
        tasks=state.success.announced(),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
