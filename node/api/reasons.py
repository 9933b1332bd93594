"""Why something was not used, in words: one sentence for every reason that the learner or the swarm process can give.

A reason is short and stable, for counters; what a person reads is here and nowhere else. ``words_for`` knows every
reason of this version (a test looks for them in the sources) and says so of one that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from node.api.types import WhyNot
from node.printable import printable

REASONS_SHOWN = 64  # of one list; counters hold reasons of this program, so more would be a fault of ours

# What may become of a foreign group, by the stage at which it is decided.
OUTCOMES: Mapping[str, str] = {
    "used": "it was learnt from",
    "replayed": "it was learnt from once more, as learner.foreign_uses allows",
}
CHOICE: Mapping[str, str] = {
    "stale": "it was announced longer ago than learner.max_age_seconds",
    "unknown_task": "its task, or this version or configuration of it, is not trained here, so that its prompt cannot "
    "be made again",
    "not_better": "its rewards promise nothing that this node does not achieve by itself as often",
    "all_equal": "all its rewards are equal, so that nothing sets a good completion apart from a bad one",
    "crowded_out": "too many candidates waited, and this one, the oldest of the peer with the most, made room",
}
FETCH: Mapping[str, str] = {
    "late": "it was still on its way when the round had to go on; a later round takes what has arrived",
    "not_fetched": "nobody who has it could be reached, or sent it in time",
    "evicted": "newer blobs pushed it out of the content store before it was read",
}
CHECK: Mapping[str, str] = {
    "false_reward": "a claimed reward differs from the one recomputed here; this costs its sender reputation",
    "not_scored": "this node's scorer could not score one of its completions, so that its claim stays unchecked",
    "without_gradient": "every claim held, yet no completion had an advantage left: this node's success has caught up "
    "with it, or a filter took it out",
}
# What a peer sent that must not be used: ``protocol.errors``, as groups, announcements and requests meet them.
MESSAGE: Mapping[str, str] = {
    "protocol": "it breaks the protocol",
    "oversized": "it is larger than the protocol allows",
    "malformed": "it does not decode, breaks its schema, or contradicts itself or its task",
    "signature": "it is not signed by whom it names",
    "wrong_swarm": "it belongs to another swarm",
    "version": "it speaks another major version of the protocol: one of the two nodes needs an update",
    "unknown_kind": "it is a kind of announcement that this version does not know",
    "clock": "its time differs from this machine's clock by more than five minutes: one of the two clocks is wrong",
    "replay": "it had come before",
    "integrity": "its bytes do not match their hash, or the group is not the one that was advertised",
    "bad_state": "the weights, rebuilt from what it announced, are not those that it named",
    "stale_base": "it is a difference to weights that are not here",
    "unusable_stream": "the peer was busy, or had something else under that id",
}
ANNOUNCEMENT: Mapping[str, str] = {
    "newcomers": "too many senders never heard of before came at once; the next ones are taken again soon",
    "rate": "its sender announces more often, or more bytes, than one node may",
    "banned": "its sender is banned",
}
# Who is not let in: ``protocol.cluster.refusal`` and ``protocol.errors.RefusedError``.
MEMBERSHIP: Mapping[str, str] = {
    "refused": "somebody answers there, and this node may not come in",
    "damaged": "its invite or certificate does not decode, or was cut short",
    "wrong_key": "its invite or certificate is not signed by the cluster's owner, or names another peer",
    "not_yet_valid": "its invite or certificate is not valid yet",
    "expired": "its invite or certificate has expired",
    "revoked": "the cluster's owner has revoked it",
    "needs_owner": "its invite needs the owner, who is not connected",
    "taken": "every seat of its invite is taken",
    "full": "the cluster has as many members as it may",
    "outdated": "it holds an older list of revocations, or an older key, than this node",
    "wrong_psk": "it holds another pre-shared key than this cluster's",
    "no_member": "it showed no certificate of this cluster",
}
# What a peer was seen to do: ``swarm.peers.reputation.Conduct``, where it is not among the above.
CONDUCT: Mapping[str, str] = {
    "unused": "its claims held, and it was not learnt from for a reason of this node's",
    "served": "it sent a blob that verified",
    "wrong_chunk": "it sent bytes that do not match their hash",
    "hostile_request": "it asked for what no honest peer asks for",
    "stalled": "it accepted a request and went silent",
    "missing": "it did not have what it had advertised",
    "averaged": "it gave weights that were averaged with this node's",
    "outlier": "it gave weights unusually far from this node's, which counted for less",
    "unfit_weights": "it gave weights not of their layout, not finite, or out of bounds",
    "unlike": "it offered weights of another family or layout than this node's",
}
STAGES: Mapping[str, Mapping[str, str]] = {
    "outcome": OUTCOMES,
    "choice": CHOICE,
    "fetch": FETCH,
    "check": CHECK,
    "message": MESSAGE,
    "announcement": ANNOUNCEMENT,
    "membership": MEMBERSHIP,
    "conduct": CONDUCT,
}
WORDS: Mapping[str, str] = {reason: words for table in STAGES.values() for reason, words in table.items()}
_STAGE_OF = {reason: stage for stage, table in STAGES.items() for reason in table}


def words_for(reason: str) -> str:
    return WORDS.get(reason) or f"for a reason that this version has no words for: {printable(reason, 64)}"


def stage_of(reason: str) -> str:
    return _STAGE_OF.get(reason, "unknown")


def why_not(counts: Mapping[str, int]) -> tuple[WhyNot, ...]:
    """Every reason that was given, the most frequent first."""
    given: Iterable[tuple[str, int]] = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    listed = [(reason, count) for reason, count in given if count][:REASONS_SHOWN]
    return tuple(WhyNot(printable(reason, 64), stage_of(reason), words_for(reason), count) for reason, count in listed)
