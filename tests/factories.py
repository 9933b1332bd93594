"""Values with many fields that many tests need: made in one place, and each test names the fields that it is about."""

from __future__ import annotations

from typing import Any

import msgspec

from node.events import NamedPeer, PeersChanged, Phases, RoundDone


def round_done(number: int = 7, **changes: Any) -> RoundDone:
    """Returns the event of round ``number``, which was done at ``number`` seconds, with ``changes`` to its fields."""
    event = RoundDone(
        time_seconds=float(number),
        round=number,
        policy_version=number,
        seconds=0.5,
        phases=Phases(allocate=0.1, generate=0.2, collect=0.0, score=0.0, learn=0.2, publish=0.0),
        reward=0.25,
        reward_by_task={"add": 0.25},
        success_by_task={"add": 0.5},
        own_groups=1,
        own_groups_informative=1,
        foreign_groups_used=1,
        foreign_rejected={},
        groups_offered=1,
        groups_offered_total=9,
        foreign_groups_used_total=3,
        tokens_generated=100,
        tokens_generated_total=700,
        tokens_trained=60,
        tokens_per_second=200.0,
        bytes_fetched=1,
        scoring_failures=0,
        loss=None,
        gradient_norm=None,
        steps_skipped_total=0,
        effective_sample_share=0.9,
        clip_share=None,
        floor_share=None,
        filter_share=None,
        multi_token_span_share=None,
        entropy=None,
        divergence_by_peer={},
        alone_because=None,
    )
    return msgspec.structs.replace(event, **changes)


def came(*peers: tuple[str, str], time_seconds: float = 1.0) -> PeersChanged:
    """Returns the event that these peers came, each given by its id and the name that it calls itself."""
    named = tuple(NamedPeer(peer, name, "builtin:robin") for peer, name in peers)
    return PeersChanged(
        time_seconds=time_seconds, round=1, came=named, left=(), came_total=len(named), left_total=0, present=len(named)
    )
