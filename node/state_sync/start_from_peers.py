"""``starling up --from-peers``, in the learner: whether peers have better weights than ours, and what is taken over.

Taken over are the weights, the policy version and the count of outer steps. The optimizer's moments start anew, and so
does averaging, from these weights. Rounds, success and what is known of tasks stay our own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from node.averaging import noloco
from node.configuration import Config
from node.events import Event
from node.home import Home
from node.learner.persistence import LearnerState
from node.learner.round_report import heartbeat
from node.policy.policy import Policy
from node.state_sync.adoption import Joining
from node.state_sync.publishing import Held, StatePublisher
from node.state_sync.rebuild import layout_of
from node.state_sync.state_choice import Ours, claimed_success
from protocol.messages import StateAdvert
from protocol.weights.dense_weights import dense_bytes
from swarm.client import SwarmClient

FETCH_SHARE = 0.9  # of the content store, that a fetched state may take


def start_from_peers(
    home: Home,
    config: Config,
    policy: Policy,
    tasks: tuple[str, ...],
    state: LearnerState,
    report: Callable[[Event], None],
    should_stop: Callable[[], str | None],
) -> Held | None:
    """The state of a peer that ``policy`` holds now; None, and nothing changed, if none is asked for or to be had.

    With rounds behind it, which a checkpoint brought, a node takes only what is announced to be better than its own.
    """
    if not config.checkpoint.from_peers:
        return None
    layout = layout_of(policy.trainable())
    ours = Ours(
        layout.digest,
        tasks,
        dense_bytes(layout),
        int(FETCH_SHARE * config.swarm.store_bytes),
        claimed_success(state.success.announced(), tasks) if state.round else None,
    )
    with SwarmClient(home.swarm_socket) as swarm, SwarmClient(home.swarm_socket) as fetching:
        joining = Joining(
            swarm,
            fetching,
            layout,
            ours,
            heartbeat=lambda phase: heartbeat(config, policy, state, phase, 0.0),
            report=report,
            should_stop=should_stop,
        )
        return joining.join(policy.trainable(), patience_seconds=config.checkpoint.from_peers_seconds)


def taken_over(state: LearnerState, advert: StateAdvert, policy: Policy) -> LearnerState:
    """Our state, with what comes with the weights that ``policy`` now holds."""
    outer = noloco.begin(policy.trainable(), steps=advert.outer_step) if advert.outer_step else None
    version = max(state.policy_version, advert.policy_version)
    return replace(state, policy_version=version, outer=outer, outer_round=state.round)


def publisher_of(
    swarm: SwarmClient,
    config: Config,
    policy: Policy,
    held: Held | None,
    report: Callable[[Event], None],
    clock: Callable[[], float],
) -> StatePublisher:
    return StatePublisher(
        swarm,
        policy.trainable(),
        family=policy.family,
        every_rounds=config.checkpoint.publish_every_rounds,
        store_bytes=config.swarm.store_bytes,
        report=report,
        clock=clock,
        held=held,
    )
