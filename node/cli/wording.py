"""The command line's texts about a node: pure functions of its status. Text from peers is escaped first."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from node.api.answers import damaged_line, donor_lines, engine_line, not_saved_line, rate_line, stage_lines
from node.api.gains_words import turns_words
from node.api.join import join_of
from node.api.types import HeartbeatView, JoinLine, NodeState, NodeStatus, PeerView, SamplesAnswer
from node.doctor.findings import Finding, Report, Severity
from node.evaluation.evaluation_result import Evaluation
from node.events import (
    Averaged,
    BaselineMeasured,
    CheckpointSaved,
    Evaluated,
    Fault,
    LearnerReady,
    Planned,
    RoundDone,
    StateSyncing,
)
from node.export.export_result import Export
from node.printable import one_line, printable
from node.quantities import counted, duration, size, times, weekday_time
from node.supervision.outcome import RunOutcome
from node.supervision.restarts import LOG_FOLLOWS
from swarm.api import SwarmStatus
from swarm.exit_codes import ExitCode

MIN_WRAPPED_CHARACTERS = 30  # of a line that is broken between words
SAMPLE_CHARACTERS = 200  # of a question or an answer
RESUME_HINT = "`starling resume` ends an owner's pause, `starling resume --for 2h` trains whatever is against it"
ENDINGS = {"rounds": "it has done the rounds of --rounds", "tokens": "it has generated the tokens of --tokens"}


def round_line(done: RoundDone) -> str:
    """Describes one round in one line."""
    loss = "no step" if done.loss is None else f"loss {done.loss:.3f}"
    return (
        f"round {done.round}  reward {done.reward:.3f}  {loss}  {done.tokens_per_second:,.0f} tokens/s  "
        f"groups {done.own_groups} own, {done.foreign_groups_used} foreign  [{rewards_by_task(done.success_by_task)}]"
    )


def turns_lines(done: RoundDone) -> list[str]:
    """Describes the own conversations of one round, a line for each task."""
    return [f"{printable(task)}: {turns_words(used)}" for task, used in done.turns_by_task.items()]


def rewards_by_task(success: dict[str, float]) -> str:
    return ", ".join(f"{task} {value:.2f}" for task, value in sorted(success.items()))


def plan_line(planned: Planned) -> str:
    return f"plan: {one_line(planned.choice, 400)}"


def ready_line(ready: LearnerReady) -> str:
    start = (
        f"continuing after round {ready.round} from {ready.checkpoint}" if ready.checkpoint else "from its first round"
    )
    return (
        f"training {printable(ready.model_name)} ({ready.trainable_parameters:,} of {ready.parameters:,} parameters, "
        f"{ready.dtype} on {ready.device}) on {counted(len(ready.tasks), 'task')}, {start}"
    )


def fault_line(fault: Fault) -> str:
    return f"round {fault.round}: {fault.kind}: {one_line(fault.detail, 400)}"


def state_sync_line(event: StateSyncing) -> str:
    """Describes the progress of starting from the weights of peers."""
    because = one_line(event.because, 400)
    match event.stage:
        case "fetching" if event.here_bytes:
            share = event.here_bytes / max(1, event.total_bytes)
            return f"weights of peers: {size(event.here_bytes)} of {size(event.total_bytes)} ({share:.0%})"
        case "fetching":
            return f"weights of peers: fetching {size(event.total_bytes)}, {because}"
        case "done":
            return (
                f"weights of peers: starting from {(event.weights or '')[:16]}, policy version {event.policy_version}"
            )
        case "given_up":
            return f"weights of peers: none, starting from the local checkpoint or model: {because}"
        case _:
            return f"weights of peers: {event.stage}: {because}"


def checkpoint_line(saved: CheckpointSaved) -> str:
    return f"checkpoint of round {saved.round}: {saved.path} ({size(saved.size_bytes)}, {saved.seconds:.1f} s)"


def evaluated_line(measured: Evaluated) -> str:
    """Describes a measurement on held-out prompts."""
    if measured.round == 0:
        when, best = "before round 1", ""
    elif measured.best_round == measured.round:
        when, best = f"after round {measured.round}", ", the best so far on the validation set"
    else:
        when = f"after round {measured.round}"
        best = f"; on the validation set the best is round {measured.best_round}, here {measured.best_reward:.3f}"
    rewards = rewards_by_task(measured.reward_by_task)
    return f"evaluated {when}: {measured.reward:.3f} on held-out prompts, greedy [{rewards}]{best}"


def baseline_line(measured: BaselineMeasured) -> str:
    """Describes what the weights can before their first step."""
    rewards = measured.reward_by_task
    if not rewards:
        return "not measured before its first step: no task has held-out questions"
    mean = sum(rewards.values()) / len(rewards)
    return f"before its first step: {mean:.3f} on held-out prompts, sampled [{rewards_by_task(rewards)}]"


def averaged_line(offered: Averaged) -> str:
    """Describes the outcome of offering weights."""
    if offered.partner is None:
        return f"weights not averaged: {one_line(offered.because, 400)}"
    distance = "" if offered.distance is None else f", {offered.distance:.2%} apart"
    weight = "" if offered.weight in (None, 1.0) else f", weighted {offered.weight:.2f} because of the distance"
    encoding = f" as {printable(offered.encoding, 64)}" if offered.encoding else ""
    return (
        f"weights averaged with {printable(offered.partner)} after round {offered.round}{distance}{weight}; "
        f"{size(offered.sent_bytes)} sent, {size(offered.received_bytes)} received{encoding}, {offered.seconds:.1f} s"
    )


def outcome_line(outcome: RunOutcome, shown: Fault | None = None) -> str:
    """Returns the last line of ``starling up``. Lines of a log that only repeat ``shown``, the fatal fault that was
    shown before, are left out."""
    because = ENDINGS.get(outcome.because, outcome.because)
    headline, mark, log = because.partition(LOG_FOLLOWS)
    if mark and shown is not None and printable(shown.detail) in log:
        because = headline
    return f"The node has stopped: {because}{'.' if outcome.exit_code is ExitCode.DONE else ''}"


def join_line(join: JoinLine) -> str:
    """Describes how another node can connect to this one."""
    if not join.commands:
        return "This node has no address yet."
    line = f"Others join with: {join.commands[0]}"
    return f"{line}; starling invite prints an INVITE where the owner's key is" if join.private else line


def alone_line(swarm: SwarmStatus) -> str:
    """Describes that the node trains alone, and why; empty while a peer is connected."""
    return "" if swarm.alone_because is None else f"Training alone: {one_line(swarm.alone_because, 600)}"


def alone_lines(swarm: SwarmStatus) -> str:
    """The same, and the remedy."""
    return (line := alone_line(swarm)) and f"{line}\n{join_line(join_of(swarm))}"


def no_swarm(status: NodeStatus) -> str:
    """Describes why there is no status of the swarm."""
    if status.state is NodeState.STOPPING:
        return "left"
    return "its process does not answer yet; the learner keeps training"


def status_lines(status: NodeStatus) -> list[str]:
    """Returns what ``starling status`` prints."""
    done, averaged, offered, fault = status.round, status.averaged, status.offered, status.fault
    facts = {
        "home": status.home,
        "peer": status.peer,
        "model": printable(status.model),
        "page": status.page,
        "now": status.waiting_for,
        "paused": status.paused and f"since {weekday_time(status.paused.since)}; {RESUME_HINT}",
        "last": done and round_line(done),
        "total": done
        and f"{done.tokens_generated_total:,} tokens generated, {done.groups_offered_total} groups offered, "
        f"{done.foreign_groups_used_total} foreign groups used",
        "rate": done and done.found_rate and rate_line(done.found_rate),
        "saved": status.checkpoint and checkpoint_line(status.checkpoint),
        "engine": status.engine and engine_line(status.engine),
        "donor": status.donors and "\n".join(donor_lines(status.donors)),
        "layers": status.stages and "\n".join(stage_lines(status.stages)),
        "unsaved": status.not_saved and not_saved_line(status.not_saved),
        "damaged": status.damaged and damaged_line(status.damaged),
        "learning": status.nothing_learnt or status.reward_falls,
        "hangs": status.hangs,
        "clock": status.clock,
        "held-out": status.evaluated and evaluated_line(status.evaluated),
        "turns": done and "\n".join(turns_lines(done)),
        "averaged": averaged and f"{averaged_line(averaged)}; {times(averaged.outer_steps)} in total",
        "family": averaged_line(offered) if offered is not None and offered.partner is None else None,
        "gained": printable(status.gained, 600),
        "lost": "\n".join(loss.sentence for loss in status.losses),
        "caution": "\n".join(each.sentence for each in status.withdrawn),
        **_swarm_facts(status),
        "fault": fault and fault_line(fault),
    }
    lines = [f"{status.name}  {status.state}  up {duration(status.uptime_seconds)}  (version {status.version})"]
    lines += [f"{name:<10}{line}" for name, text in facts.items() if text for line in str(text).split("\n")]
    for kept in (status.swarm_process, status.learner_process):
        if kept.last_end is not None:
            lines.append(f"restarts  {kept.restarts}: {kept.last_end}")
    return lines


def sample_lines(sample: SamplesAnswer) -> list[str]:
    """Returns a question of a recent round with one answer of this node, a line each."""
    if sample.ours is None or not sample.ours.answers:
        return []
    answer = sample.ours.answers[0]
    return [
        f"question  {one_line(sample.ours.question, SAMPLE_CHARACTERS)}",
        f"answer    {one_line(answer.text, SAMPLE_CHARACTERS) or '(empty)'} (reward {answer.reward:.2f})",
    ]


def peer_lines(peers: Sequence[PeerView]) -> list[str]:
    """Returns what ``starling peers`` prints: one line a peer."""
    lines = []
    for peer in peers:
        beat = peer.heartbeat
        name = printable(beat.name, 64) if beat else "?"
        activity = _trains(beat) if beat else "no heartbeat yet"
        round_trip = f"{peer.round_trip_seconds * 1e3:.0f} ms" if peer.round_trip_seconds is not None else "-"
        link = "connected" if peer.connected else "left" if has_left(peer) else "away"
        exchanges = f"  weights {exchanges_line(peer)}" if peer.last_exchange else ""
        ban = f"  banned: {printable(peer.banned_because)}" if peer.banned_because else ""
        withdrawn = f"  {peer.withdrawn}" if peer.withdrawn else ""
        groups = f"groups {peer.groups_announced} announced, {peer.groups_used} used, {peer.groups_rejected} rejected"
        lines.append(
            f"{printable(peer.peer)}  {link}  {round_trip}  {name}  {activity}  {groups}  "
            f"reputation {peer.reputation:.2f}{exchanges}{withdrawn}{ban}"
        )
    return lines


def has_left(peer: PeerView) -> bool:
    """Whether the peer said goodbye. Its name and its figures are still known."""
    return peer.heartbeat is not None and peer.heartbeat_age_seconds is None


def ends_of(peer: str) -> str:
    """Returns a peer's id as it fits a column."""
    return f"{peer[:6]}…{peer[-6:]}"


def panel_peer_line(peer: PeerView) -> str:
    """Describes a connected peer for a narrow terminal: who it is comes first, the long id not at all."""
    beat = peer.heartbeat
    name = printable(beat.name, 64) if beat and beat.name else ends_of(peer.peer)
    activity = _trains(beat) if beat else "no heartbeat yet"
    round_trip = f"{peer.round_trip_seconds * 1e3:.0f} ms  " if peer.round_trip_seconds is not None else ""
    banned = "  banned" if peer.banned_because else ""
    return f"{name}  {activity}  {round_trip}{peer.groups_used} of {peer.groups_announced} groups used{banned}"


def _trains(beat: HeartbeatView) -> str:
    if not beat.model:
        return "relays, trains nothing" if beat.is_relay else "still loading"
    return f"{printable(beat.model, 64)}, round {beat.round}"


def evaluation_lines(result: Evaluation) -> list[str]:
    """Returns what ``starling eval`` prints: one line a task."""
    width = max(len(task) for task in result.sampled)
    state = f"round {result.round}, {result.checkpoint}" if result.checkpoint else "before any training"
    return [
        f"{printable(result.model)}, {state}; {result.prompts} prompts a task that nobody trains on",
        f"{'task':<{width}}  greedy  sampled",
        *(f"{task:<{width}}  {result.greedy[task]:6.3f}  {result.sampled[task]:7.3f}" for task in result.sampled),
    ]


def export_lines(result: Export, folder: Path) -> list[str]:
    """Returns what ``starling export`` prints; ``folder`` is as the user wrote it."""
    kind = "the adapter of " if result.form == "adapter" else ""
    shown = str(folder) if folder.is_absolute() else f"./{folder}"
    bits = " in 4 bits" if result.four_bit else ""
    return [
        *(f"warning: {one_line(warning, 600)}" for warning in result.warnings),
        f"exported round {result.round} of {kind}{printable(result.model)}{bits} to {shown} "
        f"({size(result.size_bytes)}): "
        f"{one_line(result.replicas_because, 600)}",
        f"Load it: {result.load_from(shown)}",
    ]


def finding_lines(report: Report, width: int | None = None) -> list[str]:
    """Returns what ``starling doctor`` prints: one line a check, with the remedy below it where there is one. With a
    ``width`` in characters, longer lines are broken between words."""
    check = max(len(finding.check) for finding in report.findings)
    severity = max(map(len, Severity))
    lines = []
    for finding in report.findings:
        lines += _wrapped(f"{finding.severity:<{severity}}  {finding.check:<{check}}  ", finding.message, width)
        if finding.remedy is not None:
            lines += _wrapped(" " * (severity + check + 4), f"→ {finding.remedy}", width)
    return lines


def refusal_lines(
    findings: Sequence[Finding], width: int | None = None, options: Mapping[str, str] | None = None
) -> list[str]:
    """Returns why nothing was started: everything that has to be corrected first, each with its remedy, and with the
    option that was written where ``options`` has one for its key."""
    wrong = "one thing has" if len(findings) == 1 else f"{len(findings)} things have"
    lines = [f"the node was not started: {wrong} to be corrected first"]
    for finding in findings:
        option = options.get(finding.check) if options else None
        written = f"{finding.check} ({option})" if option else finding.check
        lines += _wrapped("  ", f"{written}: {finding.message}", width)
        if finding.remedy is not None:
            lines += _wrapped("    ", f"→ {finding.remedy}", width)
    return lines


def _wrapped(begin: str, text: str, width: int | None) -> list[str]:
    """Breaks ``text`` between words, each line below the first; a word that is longer stays whole, so that it can be
    copied."""
    if width is None:
        return [begin + text]
    room = max(width - len(begin), MIN_WRAPPED_CHARACTERS)
    parts = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    return [begin + parts[0], *(" " * len(begin) + part for part in parts[1:])]


def _swarm_facts(status: NodeStatus) -> dict[str, str]:
    swarm = status.swarm
    if swarm is None:
        return {"swarm": no_swarm(status)}
    rejected = ", ".join(f"{count} {printable(reason)}" for reason, count in sorted(swarm.rejected.items()) if count)
    return {
        "swarm": f"{printable(swarm.swarm)} ({swarm.swarm_id}), {counted(swarm.connected_peers, 'peer')} connected, "
        f"{size(swarm.sent_bytes)} sent, {size(swarm.received_bytes)} received"
        + (f", announcements rejected: {rejected}" if rejected else ""),
        "groups": f"since the swarm process started {swarm.groups_announced} announced while a peer was connected, "
        f"{swarm.groups_fetched} fetched by peers",
        "alone": one_line(swarm.alone_because or "", 600),
        "not met": "" if swarm.alone_because else one_line(swarm.other_swarm or "", 600),
        "reach": "\n".join(reach_lines(swarm)),
        "address": "\n".join(map(printable, swarm.addresses)),
    }


def reach_lines(swarm: SwarmStatus) -> list[str]:
    """Describes who can dial this node, and what is relayed, a line for each that there is."""
    reach = swarm.reach
    lines = [one_line(reach.in_words, 600)] if reach.in_words else []
    if reach.relayed_peers:
        lines.append(f"{counted(len(reach.relayed_peers), 'peer')} connected through a relay only: small blobs alone")
    if reach.reservations:
        lines.append(f"relays for {counted(reach.reservations, 'peer')}, {size(reach.relayed_bytes)} passed on")
    return lines


def exchanges_line(peer: PeerView) -> str:
    """Describes the exchanges of weights with a peer."""
    counts = f"averaged {times(peer.exchanges_committed)}, {peer.exchanges_abandoned} abandoned"
    last = peer.last_exchange
    if last is None:
        return "never averaged with this peer"
    outcome = "averaged" if last.committed else f"abandoned: {printable(last.because, 200)}"
    encoding = f" as {printable(last.encoding, 64)}" if last.encoding else ""
    return f"{counts}, last {outcome} ({size(last.sent_bytes)} sent, {size(last.received_bytes)} received{encoding})"
