"""Pure functions that make the API's answers from what the supervisor and the swarm process know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from node.api.types import HealthAnswer, HeartbeatView, NodeState, NodeStatus, Paused, PeersAnswer, PeerView
from node.events import (
    CheckpointsDamaged,
    DonorShare,
    DonorsShared,
    EngineChanged,
    Event,
    Fault,
    FoundRate,
    Loading,
    NotSaved,
    OutOfMemory,
    PhaseBegan,
    RoundDone,
    StageHeld,
    StagesHeld,
)
from node.printable import one_line, printable
from node.quantities import counted, duration, layer_span, local_time, size
from protocol.limits import NAME_BYTES
from protocol.messages import Heartbeat
from swarm.api import PeerStatus, SwarmStatus

PHASES = {  # in words; ``node.events.PhaseBegan``
    "allocate": "choosing prompts",
    "generate": "generating completions",
    "collect": "waiting for groups from peers",
    "score": "scoring own and foreign completions",
    "learn": "taking an optimizer step",
    "publish": "sharing groups, giving the engine new weights",
    "evaluate": "answering held-out prompts",
}
DOING = {  # in words, of a node that does not train
    NodeState.STARTING: "the learner is starting",
    NodeState.PAUSED: "paused",
    NodeState.RECOVERING: "the learner ended and is being restarted",
    NodeState.STOPPING: "stopping: finishing the step, checkpointing, saying goodbye",
}
ASKED_BY_OWNER = "asked by its owner"  # ``Paused.because`` after ``starling pause``
MAX_ADDRESS_CHARACTERS = 200
MAX_REASON_CHARACTERS = 400
MAX_ASIDE_CHARACTERS = 300
MAX_ALONE_CHARACTERS = 600
MAX_DETAIL_CHARACTERS = 2000


def health_of(status: NodeStatus) -> HealthAnswer:
    """Returns whether the node is healthy: it has not reached its first round yet, or it rests, or trains and no phase
    hangs; and its swarm process answers."""
    because = None
    if status.state is NodeState.RECOVERING:
        because = f"the learner ended and is being restarted: {status.learner_process.last_end}"
    elif status.state is NodeState.STOPPING:
        because = "the node is stopping"
    elif status.state in (NodeState.TRAINING, NodeState.PAUSED) and status.swarm is None:
        because = "the swarm process does not answer"
    elif status.hangs is not None:
        because = status.hangs
    return HealthAnswer(because is None, status.state, because)


def waiting_for(
    state: NodeState,
    loading: Loading | None,
    done: RoundDone | None,
    began: PhaseBegan | None = None,
    *,
    now_seconds: float | None = None,
) -> str:
    """Describes in a few words what the node does now, at Unix time ``now_seconds``."""
    if state is NodeState.STARTING and loading is not None:
        return loading_line(loading, now_seconds)
    if state in DOING:
        return DOING[state]
    number = done.round + 1 if done is not None else None
    round_name = "first round" if number is None else f"round {number}"
    if began is None or began.phase not in PHASES or (number is not None and began.round != number):
        return f"{round_name} under way"
    return f"{round_name}: {PHASES[began.phase]}"


def paused_line(paused: Paused, now_seconds: float) -> str:
    """Describes in one line why the node does not train, and until when."""
    until = "" if paused.until is None else f", until {local_time(paused.until, now_seconds)}"
    return f"paused: {paused.because}{until}"


def paused_sentence(paused: Paused, now_seconds: float) -> str:
    """Says to a person why the node does not train, what it does meanwhile, and when and how it trains again."""
    until = "" if paused.until is None else local_time(paused.until, now_seconds)
    if paused.because == ASKED_BY_OWNER:
        again = f"until {until}, or until `starling resume`" if until else "until `starling resume`"
        return f"The node is paused, as its owner asked: it keeps its peers, and trains nothing {again}."
    return (
        f"The node does not train now ({paused.because}): it keeps its peers, and trains again "
        f"{f'at {until}' if until else 'when that is over'}. To train all the same: `starling resume --for 2h`."
    )


def loading_line(loading: Loading, now_seconds: float | None = None) -> str:
    """Describes what is being loaded, and for how long the learner has run: until Unix time ``now_seconds``, or until
    the event."""
    since_seconds = 0.0 if now_seconds is None else max(0.0, now_seconds - loading.time_seconds)
    seconds = loading.seconds + since_seconds
    since = f" ({seconds:.1f} s since the learner started)" if seconds >= 0.05 else ""
    return f"loading {printable(loading.what)}{since}"


def not_saved_line(event: NotSaved) -> str:
    """Describes in one line what no checkpoint holds, while it is tried again."""
    begin = f"NOT SAVED: {_unsaved(event)}. "
    if event.ends_in_seconds is not None:
        return f"{begin}The run ends without them in {event.ends_in_seconds:.0f} s, unless there is room by then."
    return f"{begin}It is tried again every {event.retry_seconds:.0f} s."


def lost_line(lost: NotSaved) -> str:
    """Describes what a run that has ended could not save, and what follows."""
    begins = "from its first round" if lost.saved_round == 0 else f"after round {lost.saved_round}"
    return f"LOST: {_unsaved(lost, 'were never saved')}. The next start goes on {begins}."


def damaged_line(event: CheckpointsDamaged) -> str:
    """Describes which checkpoints are damaged, where they are kept, and from what the run goes on."""
    names = ", ".join(printable(each.name, 64) for each in event.damaged)
    kept = ", ".join(printable(each.aside, MAX_ASIDE_CHARACTERS) for each in event.damaged)
    why = printable(event.damaged[0].because, MAX_REASON_CHARACTERS) if event.damaged else ""
    if event.continues_from is not None:
        follows = f"The run goes on from the checkpoint before, of round {event.continues_from}"
    elif event.asks_peers:
        follows = (
            "No checkpoint is left: the node asks its peers for weights; "
            "without any, the run starts again from its first round"
        )
    else:
        follows = "No checkpoint is left: the run starts again from its first round"
    return f"DAMAGED CHECKPOINT: {names} ({why}). Kept aside, not deleted: {kept}. {follows}."


def _unsaved(event: NotSaved, verb: str = "are in memory alone") -> str:
    count, because = event.round - event.saved_round, printable(event.because, MAX_REASON_CHARACTERS)
    which = f"round {event.round}" if count == 1 else f"rounds {event.saved_round + 1} to {event.round}"
    verb = verb.replace("were", "was", 1).replace("are ", "is ", 1) if count == 1 else verb
    last = f"the last checkpoint is of round {event.saved_round}" if event.saved_round else "there is no checkpoint"
    return f"{which} {verb} ({last}): {because}"


def rate_line(found: FoundRate) -> str:
    """Describes in one line how the learning rate changed last, and why."""
    because = printable(found.because, MAX_REASON_CHARACTERS)
    return f"{found.before:.2g} → {found.to:.2g} since round {found.since_round}: {because}"


def engine_line(event: EngineChanged) -> str:
    """Describes in one line which engine generates, what happened to it and what follows."""
    because = printable(event.because, MAX_REASON_CHARACTERS)
    if event.backend != event.configured:
        return (
            f"ENGINE: {because}. The engine in the learner's process generates instead, until the next start; "
            "HOME/logs/learner.log tells more."
        )
    if not event.running:
        return f"The engine is started again in {event.retry_seconds or 0:g} s: {because}. No round is lost."
    lost = f"; it was lost {counted(event.losses, 'time')}" if event.losses else ""
    return f"The engine ({event.backend}) runs: {because}{lost}."


def donor_lines(event: DonorsShared) -> Iterator[str]:
    """Yields what each donor did in the last generation, a line each."""
    for donor in event.donors:
        name = printable(donor.name, 64) or donor.peer
        match donor.state:
            case "generated":
                rate = f", {donor.tokens_per_second:,.0f} tokens/s" if donor.tokens_per_second else ""
                late = "" if donor.groups_done == donor.groups else f", {donor.groups_done} of them in time"
                share = f"{100 * donor.share:.0f} % of tokens"
                yield f"{name}: {donor.groups} of {event.groups} groups{late} ({share}){rate}"
            case "ready":
                yield f"{name}: ready, and given nothing in the last round"
            case "preparing":
                yield f"{name}: loading its model or the weights"
            case _:
                yield f"{name}: {printable(donor.state, 64)}: {printable(donor.because, MAX_REASON_CHARACTERS)}"


def dropped_donor_line(donor: DonorShare) -> str:
    """Tells the owner that a donor is used no more."""
    name, because = printable(donor.name, 64) or donor.peer, printable(donor.because, MAX_REASON_CHARACTERS)
    return f"DONOR {name} ({donor.peer}) is dropped for good: {because}. Its samples of that round were not used."


def stage_lines(event: StagesHeld) -> Iterator[str]:
    """Yields who holds which layers, a line each, this machine first."""
    if event.own_layers:
        yield f"this machine: {layer_span(0, event.own_layers)}"
    for stage in event.stages:
        held, name = layer_span(stage.first, stage.last), printable(stage.name, 64) or stage.peer
        if not stage.peer:
            yield f"nobody: {held}: {printable(stage.because, MAX_REASON_CHARACTERS) or 'none has come'}"
            continue
        seconds = stage.computed_seconds
        rate = f", {stage.computed_tokens / seconds:,.0f} tokens/s" if seconds else ""
        traffic = f"{size(stage.sent_bytes)} to it, {size(stage.received_bytes)} from it"
        yield f"{name}: {held}, {size(stage.expected_bytes)}{rate}; {traffic}; {_checked(stage, event.time_seconds)}"
    planned = "; layers are divided without it" if event.stages and all(each.peer for each in event.stages) else ""
    for away in event.away:
        name, since = printable(away.name, 64) or away.peer, local_time(away.since_seconds, event.time_seconds)
        yield f"{name}: away since {since}{planned}: {printable(away.because, MAX_REASON_CHARACTERS)}"
    if event.learning_seconds:
        generating, learning = duration(event.generating_seconds), duration(event.learning_seconds)
        yield f"expected of a round of the longest answers: {generating} to generate, {learning} to learn"
    if event.waits:
        yield one_line(event.waits, MAX_DETAIL_CHARACTERS)


def _checked(stage: StageHeld, now_seconds: float) -> str:
    if stage.checked_seconds is None:
        return "not checked"
    ago = duration(max(0.0, now_seconds - stage.checked_seconds))
    return f"checked {ago} earlier, {stage.off:.1%} of what may be rounding"


def lost_stage_line(stage: StageHeld) -> str:
    """Tells the owner that layers are missing, and what follows."""
    because = printable(stage.because, MAX_REASON_CHARACTERS)
    return (
        f"MACHINE LOST that held {layer_span(stage.first, stage.last)}: {because}. What was under way is dropped, "
        "and done again once it, or another one, is back, or layers are divided anew without it."
    )


def divided_anew_line(event: StagesHeld) -> str:
    """Tells the owner that other machines hold other layers from now on."""
    held = [f"{printable(each.name, 64) or each.peer} {layer_span(each.first, each.last)}" for each in event.stages]
    away = ", ".join(printable(each.name, 64) or each.peer for each in event.away)
    without = f", without {away}, which is away" if away else ""
    own = f"this machine {layer_span(0, event.own_layers)}"
    return f"LAYERS DIVIDED ANEW{without}: {', '.join((own, *held))}. It goes on from the last round that was done."


def out_of_memory_line(event: OutOfMemory) -> str:
    """Describes in one line where memory ran out and what follows."""
    follows = {
        "recompute": "layers are computed again in the backward pass from now on, and it is done again",
        "halve": f"{event.key} is {event.after} instead of {event.before} from now on, and it is done again",
        "again": "it is done again",
        "skip": "it is left out this time",
        "wait": f"it is tried again in {event.wait_seconds:.0f} s",
        "give up": "nothing is left to halve",
    }[event.then]
    others = ""
    if event.others_bytes is not None and event.total_bytes is not None:
        others = f" (other programs hold {size(event.others_bytes)} of the device's {size(event.total_bytes)})"
    return f"Memory ran out in round {event.round}, phase {printable(event.phase, 64)}{others}: {follows}."


def escaped_event(event: Event) -> Event:
    """Returns the event with every text that may quote a peer escaped and bounded."""
    match event:
        case EngineChanged(because=because):
            return msgspec.structs.replace(event, because=one_line(because, MAX_DETAIL_CHARACTERS))
        case DonorsShared(donors=donors):
            shown = [
                msgspec.structs.replace(
                    each, name=printable(each.name, 64), because=one_line(each.because, MAX_DETAIL_CHARACTERS)
                )
                for each in donors
            ]
            return msgspec.structs.replace(event, donors=tuple(shown))
        case StagesHeld(stages=stages):
            return msgspec.structs.replace(
                event,
                waits=one_line(event.waits, MAX_DETAIL_CHARACTERS),
                because=one_line(event.because, MAX_DETAIL_CHARACTERS),
                stages=tuple(
                    msgspec.structs.replace(
                        each, name=printable(each.name, 64), because=one_line(each.because, MAX_DETAIL_CHARACTERS)
                    )
                    for each in stages
                ),
                away=tuple(
                    msgspec.structs.replace(
                        each, name=printable(each.name, 64), because=one_line(each.because, MAX_DETAIL_CHARACTERS)
                    )
                    for each in event.away
                ),
            )
        case Fault(detail=detail) | OutOfMemory(detail=detail):
            return msgspec.structs.replace(event, detail=one_line(detail, MAX_DETAIL_CHARACTERS))
        case RoundDone(alone_because=str(because)):
            return msgspec.structs.replace(event, alone_because=one_line(because, MAX_ALONE_CHARACTERS))
        case _:
            return event


def escaped_swarm_status(status: SwarmStatus) -> SwarmStatus:
    """Returns the status with every text that may quote a peer escaped and bounded."""
    if status.alone_because is None and status.other_swarm is None:
        return status
    alone, other = (
        None if text is None else one_line(text, MAX_ALONE_CHARACTERS)
        for text in (status.alone_because, status.other_swarm)
    )
    return msgspec.structs.replace(status, alone_because=alone, other_swarm=other)


def peers_answer(peers: Sequence[PeerStatus], outcomes: Sequence[dict[str, int]]) -> PeersAnswer:
    """Returns every peer as the API shows it. ``outcomes``: of the groups of each peer, in the same order."""
    return PeersAnswer(tuple(map(peer_view, peers, outcomes)))


def peer_view(status: PeerStatus, outcomes: dict[str, int] | None = None) -> PeerView:
    """Returns the peer as the API shows it, with its own text escaped. ``outcomes``: of its groups, counted."""
    banned, exchange = status.banned_because, status.last_exchange
    if exchange is not None:
        exchange = msgspec.structs.replace(exchange, because=printable(exchange.because, MAX_REASON_CHARACTERS))
    return PeerView(
        peer=status.peer,
        connected=status.connected,
        addresses=tuple(printable(address, MAX_ADDRESS_CHARACTERS) for address in status.addresses),
        round_trip_seconds=status.round_trip_seconds,
        heartbeat=None if status.heartbeat is None else _heartbeat_view(status.heartbeat),
        heartbeat_age_seconds=status.heartbeat_age_seconds,
        groups_announced=status.groups_announced,
        groups_used=status.groups_used,
        groups_rejected=status.groups_rejected,
        reputation=status.reputation,
        banned_because=None if banned is None else printable(banned, MAX_REASON_CHARACTERS),
        clock_offset_seconds=status.clock_offset_seconds,
        exchanges_committed=status.exchanges_committed,
        exchanges_abandoned=status.exchanges_abandoned,
        last_exchange=exchange,
        groups_fetched=status.groups_fetched,
        conduct=status.conduct,
        outcomes=outcomes or {},
    )


def _heartbeat_view(beat: Heartbeat) -> HeartbeatView:
    tasks = [(printable(entry.task, NAME_BYTES), entry) for entry in beat.tasks]
    return HeartbeatView(
        name=printable(beat.name, NAME_BYTES),
        software=printable(beat.software, NAME_BYTES),
        model=printable(beat.model, NAME_BYTES),
        family=beat.family.hex(),
        tokenizer=beat.tokenizer.hex(),
        round=beat.round,
        policy_version=beat.policy_version,
        phase=printable(beat.phase, NAME_BYTES),
        tokens_per_second=beat.tokens_per_second,
        groups_offered=beat.groups_offered,
        groups_used=beat.groups_used,
        success_by_task={task: entry.success for task, entry in tasks},
        samples_by_task={task: entry.samples for task, entry in tasks},
        connected=beat.connected.hex(),
    )
