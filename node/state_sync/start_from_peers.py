"""``starling up --from-peers``, in the learner: starts from a peer's weights if they are better than this node's.

The weights come from the peer, and nothing else: no count that a peer claims becomes ours. The optimizer's moments and
averaging start afresh from these weights. Rounds, success and the evidence on tasks stay this node's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from node.configuration import DEFAULT_STORE_BYTES, Config, chosen
from node.events import Event
from node.home import Home
from node.learner.round.report import heartbeat
from node.learner.state.learner_state import LearnerState
from node.policy.policy import Policy
from node.policy.weight_layout import layout_of
from node.state_sync.adoption import StateAdoption
from node.state_sync.publishing import HeldState
from node.state_sync.state_choice import StateRequirements, claimed_success
from node.state_sync.state_verdict import MeasuredSuccess
from protocol.weights.dense_weights import dense_bytes
from swarm.client import SwarmClient

FETCH_SHARE = 0.9  # of the content store; the most that a fetched state may take


def start_from_peers(
    home: Home,
    config: Config,
    policy: Policy,
    tasks: tuple[str, ...],
    state: LearnerState,
    report: Callable[[Event], None],
    should_stop: Callable[[], str | None],
    measure: Callable[[], MeasuredSuccess],
) -> HeldState | None:
    """Returns the peer's state that ``policy`` holds now; None, with nothing changed, if not configured or not found.

    A node that has trained already (its checkpoint has rounds) adopts only a state announced as better than its own.
    """
    if not config.checkpoint.from_peers:
        return None
    layout = layout_of(policy.trainable())
    store_bytes = chosen(config.swarm.store_bytes, DEFAULT_STORE_BYTES)
    ours = StateRequirements(
        layout.digest,
        tasks,
        dense_bytes(layout),
        int(FETCH_SHARE * store_bytes),
        claimed_success(state.success.announced(), tasks) if state.round else None,
    )
    with (
        SwarmClient(home.swarm_socket, store_bytes=store_bytes) as swarm,
        SwarmClient(home.swarm_socket) as fetching,
    ):
        adoption = StateAdoption(
            swarm,
            fetching,
            layout,
            ours,
            heartbeat=lambda phase: heartbeat(config, policy, state, phase, 0.0),
            report=report,
            should_stop=should_stop,
            measure=measure,
        )
        return adoption.adopt_best(policy.trainable(), patience_seconds=config.checkpoint.from_peers_seconds)


def with_adopted_state(state: LearnerState) -> LearnerState:
    """Returns our state for weights that were adopted: a new version of the policy, which nothing was measured of."""
    state.averaging.passed()  # an outer step on trial is not to be taken back from weights of another origin
    return replace(state, policy_version=state.policy_version + 1, outer=None, outer_round=state.round, evaluation=None)
