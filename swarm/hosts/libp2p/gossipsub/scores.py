"""Points of peers: first deliveries add, rejected messages and refused RPCs subtract, both decay.

Below ``MUTE_SCORE`` nothing of the peer is read and nothing is sent to it. Below ``EXPEL_SCORE`` it is disconnected,
again at once if it comes back. The library forgets a peer that disconnects, which a peer could do to be heard again;
here its points last until they have decayed. At most ``PEERS_REMEMBERED`` peers are known after a heartbeat; those with
the fewest points against them are pushed out.
"""

from __future__ import annotations

from libp2p.peer.id import ID
from libp2p.pubsub.score import PeerScorer, ScoreParams, TopicScoreParams

MUTE_SCORE = -10.0
EXPEL_SCORE = 2 * MUTE_SCORE
SCORE_DECAY = 0.99  # per heartbeat of one second: a peer is muted for about a minute
SCORE_CAP = 40.0
BEHAVIOUR_WEIGHT = 0.1
INVALID_POINTS = 1.0 / BEHAVIOUR_WEIGHT  # as much as an invalid message
MUTED_RPC_POINTS = 1.0 / BEHAVIOUR_WEIGHT  # a muted peer that goes on sending is expelled
EXPELLED_POINTS = 400.0  # of behaviour: 40 below zero
PEERS_REMEMBERED = 1024
FORGOTTEN_POINTS = 0.5


class ForwarderScores(PeerScorer):
    def __init__(self) -> None:
        super().__init__(
            ScoreParams(
                p2_first_message_deliveries=TopicScoreParams(weight=0.05, cap=SCORE_CAP, decay=SCORE_DECAY),
                p4_invalid_messages=TopicScoreParams(weight=1.0, cap=SCORE_CAP, decay=SCORE_DECAY),
                p5_behavior_penalty_weight=BEHAVIOUR_WEIGHT,
                p5_behavior_penalty_decay=SCORE_DECAY,
                publish_threshold=MUTE_SCORE,
                gossip_threshold=MUTE_SCORE,
                graylist_threshold=EXPEL_SCORE,
                accept_px_threshold=0.0,
            )
        )

    def points_against(self, peer: ID) -> float:
        return sum(self.invalid_messages[peer].values()) + self.behavior_penalty[peer] * BEHAVIOUR_WEIGHT

    def is_muted(self, peer: ID, topics: list[str]) -> bool:
        return self.score(peer, topics) < MUTE_SCORE

    def is_expelled(self, peer: ID, topics: list[str]) -> bool:
        return self.score(peer, topics) < EXPEL_SCORE

    def on_refused_rpc(self, peer: ID) -> None:
        """Counts an RPC that no honest peer sends: the peer is to be expelled."""
        self.behavior_penalty[peer] = max(self.behavior_penalty[peer], EXPELLED_POINTS)

    def remove_peer(self, peer: ID) -> None:
        if self.points_against(peer) < FORGOTTEN_POINTS:
            super().remove_peer(peer)

    def on_heartbeat(self, dt_seconds: float = 1.0) -> None:
        """Lets points decay, and forgets peers that have none left: the library keeps an entry for each it was asked
        about."""
        super().on_heartbeat(dt_seconds)
        known = sorted(self.behavior_penalty, key=self.points_against, reverse=True)
        for rank, peer in enumerate(known):
            delivered = sum(self.first_message_deliveries[peer].values())
            if rank >= PEERS_REMEMBERED or max(self.points_against(peer), delivered) < FORGOTTEN_POINTS:
                super().remove_peer(peer)
