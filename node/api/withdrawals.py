"""What is said where own success fell after learning from peers, so that they teach nothing, or little, for a while.

Such a fall proves nothing about anybody, so it is a precaution and no fault. Status, page, report, terminal and ``top``
show what is made here, from one event.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from node.api.gains_words import listed
from node.api.types import PeersAnswer, Withdrawal
from node.events import AveragingTakenBack, InfluenceWithdrawn
from node.printable import printable

MAX_REASON_CHARACTERS = 400


def withdrawal(event: InfluenceWithdrawn, names: Sequence[str]) -> Withdrawal:
    """``names``: of ``event.peers``, in their order, escaped."""
    what = _done(event.action, event.until_round)
    weights = (
        "The weights stay as they are, and nothing is lost."
        if event.weights_of_round is None
        else f"The weights are those of round {event.weights_of_round} again: what was learnt after it is undone, and "
        "training goes on. No checkpoint is lost."
    )
    return Withdrawal(
        time_seconds=event.time_seconds,
        round=event.round,
        since_round=event.since_round,
        lost_share=event.lost_share,
        peers=event.peers,
        names=tuple(names),
        action=event.action,
        until_round=event.until_round,
        weights_of_round=event.weights_of_round,
        done=what,
        sentence=f"Precaution in round {event.round}: own success is {event.lost_share:.0%} below the usual since "
        f"round {event.since_round}, which chance alone seldom does. {listed(names)}: {what}. An honest peer may be "
        f"the cause, or none. {weights}",
    )


def taken_back_sentence(event: AveragingTakenBack, name: str) -> str:
    """Describes an outer step after which own success fell. ``name``: of the partner, escaped."""
    return (
        f"Precaution in round {event.round}: {printable(event.because, MAX_REASON_CHARACTERS)}, after weights were "
        f"averaged with {name} in round {event.averaged_round}. The weights from before that are back, and training "
        f"goes on from there. {name} need not be the cause; this node averages with it again later."
    )


def with_withdrawals(peers: PeersAnswer, withdrawn: Sequence[Withdrawal]) -> PeersAnswer:
    """Returns the peers with what is done about each for now."""
    done = {peer: each.done for each in withdrawn for peer in each.peers}
    if not done:
        return peers
    return PeersAnswer(tuple(msgspec.structs.replace(p, withdrawn=done.get(p.peer)) for p in peers.peers))


def _done(action: str, until_round: int) -> str:
    if action == "set_aside":
        return f"this node learns nothing from it until round {until_round}, and then little at first"
    return "this node learns little from it until some calm rounds have passed"
