"""What the command line says of a node, as pure functions of its status. Text from peers is made safe first."""

from __future__ import annotations

from collections.abc import Sequence

from node.api.status import NodeStatus, PeerView, State
from node.doctor.findings import Report, Severity
from node.evaluation_result import Evaluation
from node.events import CheckpointSaved, Fault, Loading, Ready, RoundDone
from node.exit_codes import ExitCode
from node.outcome import Outcome
from node.printable import printable
from node.quantities import duration, size
from swarm.api import SwarmStatus

ADDRESSES_SHOWN = 3
ENDINGS = {"rounds": "the rounds asked for are done", "tokens": "the tokens asked for are generated"}


def round_line(done: RoundDone) -> str:
    """One round in one line."""
    loss = "no step" if done.loss is None else f"loss {done.loss:.3f}"
    return (
        f"round {done.round}  reward {done.reward:.3f}  {loss}  {done.tokens_per_second:,.0f} tokens/s  "
        f"groups {done.own_groups} own, {done.foreign_groups_used} foreign  [{rewards_by_task(done.success_by_task)}]"
    )


def rewards_by_task(success: dict[str, float]) -> str:
    return ", ".join(f"{task} {value:.2f}" for task, value in sorted(success.items()))


def ready_line(ready: Ready) -> str:
    start = (
        f"continuing after round {ready.round} from {ready.checkpoint}" if ready.checkpoint else "from its first round"
    )
    return (
        f"training {printable(ready.model)} ({ready.trainable_parameters:,} of {ready.parameters:,} parameters, "
        f"{ready.dtype} on {ready.device}) on {len(ready.tasks)} tasks, {start}"
    )


def fault_line(fault: Fault) -> str:
    return f"round {fault.round}: {fault.kind}: {printable(fault.detail, 400)}"


def loading_line(loading: Loading) -> str:
    return f"loading {printable(loading.what)} ({loading.seconds:.1f} s since its start)"


def checkpoint_line(saved: CheckpointSaved) -> str:
    return f"checkpoint of round {saved.round}: {saved.path} ({size(saved.size_bytes)}, {saved.seconds:.1f} s)"


def outcome_line(outcome: Outcome) -> str:
    """The last line of ``starling up``."""
    said = ENDINGS.get(outcome.because, outcome.because)
    return f"The node has ended: {said}." if outcome.exit_code is ExitCode.DONE else f"The node has stopped: {said}"


def join_hint(addresses: Sequence[str]) -> str:
    """How another node finds this one; addresses that other machines can reach come first."""
    if not addresses:
        return "This node has no address yet."
    best = sorted(addresses, key=_is_loopback)[:ADDRESSES_SHOWN]
    return "Others join with: " + "\n              or: ".join(f"starling up --peer {printable(a)}" for a in best)


def alone_lines(swarm: SwarmStatus) -> str:
    """That the node trains alone, why, and what to do about it; empty while it has company."""
    if swarm.alone_because is None:
        return ""
    return f"Training alone: {printable(swarm.alone_because, 600)}\n{join_hint(swarm.addresses)}"


def waiting_for(status: NodeStatus) -> str:
    """What happens now, in a few words."""
    if status.state is State.STOPPING:
        return "stopping: finishing the step, checkpointing, saying goodbye"
    if status.state is State.RECOVERING:
        return "the learner ended and is being started again"
    if status.state is State.STARTING:
        return loading_line(status.loading) if status.loading else "the learner is starting"
    if status.round is None:
        return "first round under way"
    return f"round {status.round.round + 1} under way"


def no_swarm(status: NodeStatus) -> str:
    """Why there is nothing to tell of the swarm."""
    return "left" if status.state is State.STOPPING else "its process does not answer yet; the learner trains on"


def status_lines(status: NodeStatus) -> list[str]:
    """What ``starling status`` prints."""
    lines = [
        f"{status.name}  {status.state}  up {duration(status.uptime_seconds)}  (version {status.version})",
        f"home      {status.home}",
        f"peer      {status.peer}",
        f"model     {printable(status.model)}",
        f"now       {waiting_for(status)}",
    ]
    if status.round is not None:
        lines.append(f"last      {round_line(status.round)}")
        lines.append(
            f"in all    {status.round.tokens_generated_total:,} tokens generated, {status.round.groups_shared_total} "
            f"groups shared, {status.round.foreign_groups_used_total} foreign groups used"
        )
    if status.checkpoint is not None:
        lines.append(f"saved     {checkpoint_line(status.checkpoint)}")
    lines += _swarm_lines(status)
    if status.fault is not None:
        lines.append(f"fault     {fault_line(status.fault)}")
    for kept in (status.swarm_process, status.learner_process):
        if kept.last_end is not None:
            lines.append(f"restarts  {kept.restarts}: {kept.last_end}")
    return lines


def peer_lines(peers: Sequence[PeerView]) -> list[str]:
    """What ``starling peers`` prints: one line a peer."""
    lines = []
    for peer in peers:
        beat = peer.heartbeat
        name = printable(beat.name, 64) if beat else "?"
        does = f"{printable(beat.model, 64)}, round {beat.round}" if beat else "no heartbeat yet"
        near = f"{peer.round_trip_seconds * 1e3:.0f} ms" if peer.round_trip_seconds is not None else "-"
        link = "connected" if peer.connected else "away"
        ban = f"  banned: {printable(peer.banned_because)}" if peer.banned_because else ""
        lines.append(
            f"{printable(peer.peer)}  {link}  {near}  {name}  {does}  groups {peer.groups_received} seen, "
            f"{peer.groups_used} used, {peer.groups_rejected} rejected  reputation {peer.reputation:.2f}{ban}"
        )
    return lines


def evaluation_lines(result: Evaluation) -> list[str]:
    """What ``starling eval`` prints: one line a task."""
    width = max(len(task) for task in result.sampled)
    state = f"round {result.round}, {result.checkpoint}" if result.checkpoint else "before any training"
    return [
        f"{printable(result.model)}, {state}; {result.prompts} prompts a task",
        f"{'task':<{width}}  greedy  sampled",
        *(f"{task:<{width}}  {result.greedy[task]:6.3f}  {result.sampled[task]:7.3f}" for task in result.sampled),
    ]


def finding_lines(report: Report) -> list[str]:
    """What ``starling doctor`` prints: one line a check, the remedy below where there is one."""
    check = max(len(finding.check) for finding in report.findings)
    severity = max(map(len, Severity))
    lines = []
    for finding in report.findings:
        lines.append(f"{finding.severity:<{severity}}  {finding.check:<{check}}  {finding.said}")
        if finding.remedy is not None:
            lines.append(f"{'':<{severity}}  {'':<{check}}  → {finding.remedy}")
    return lines


def _swarm_lines(status: NodeStatus) -> list[str]:
    swarm = status.swarm
    if swarm is None:
        return [f"swarm     {no_swarm(status)}"]
    rejected = ", ".join(f"{count} {printable(reason)}" for reason, count in sorted(swarm.rejected.items()) if count)
    lines = [
        f"swarm     {printable(swarm.swarm)} ({swarm.swarm_id}), {swarm.connected_peers} peers connected, "
        f"{size(swarm.sent_bytes)} sent, {size(swarm.received_bytes)} received"
        + (f", announcements rejected: {rejected}" if rejected else "")
    ]
    if swarm.alone_because is not None:
        lines.append(f"alone     {printable(swarm.alone_because, 600)}")
    lines += [f"address   {printable(address)}" for address in swarm.addresses]
    return lines


def _is_loopback(address: str) -> bool:
    return address.startswith(("/ip4/127.", "/ip6/::1/"))
