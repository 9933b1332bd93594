"""One sentence for every reason why the learner or the swarm process did not use something.

A reason is short and stable, for counters; what a person reads is here and nowhere else. ``words_for`` knows every
reason of this version (a test compares the tables with the enums and the error tree) and names one that it does not
know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from node.api.types import WhyNot
from node.printable import printable

MAX_REASONS_SHOWN = 64  # of one list; counters hold reasons of this program, so more would be a fault of ours

# ``node.learner.foreign.outcomes.ForeignOutcome``, by the stage at which it is decided.
OUTCOMES: Mapping[str, str] = {
    "used": "it was trained on",
    "replayed": "it was trained on once more, as learner.foreign_uses allows",
}
CHOICE: Mapping[str, str] = {
    "stale": "it was announced longer ago than learner.max_age_seconds",
    "unknown_task": "this node does not train on its task, or on this version or configuration of it, so that its "
    "prompt cannot be made again",
    "too_long": "its advert claims more tokens or bytes than a group of its task can have",
    "not_better": "its rewards promise nothing that this node does not achieve as often by itself",
    "all_equal": "all its rewards are equal, so that nothing tells a good completion from a bad one",
    "crowded_out": "too many candidates waited; this one, the oldest of the peer with the most, made room",
    "copy": "this node has learnt from the same completions before, under another announcement",
}
FETCH: Mapping[str, str] = {
    "late": "it had not arrived when the round had to continue; a later round takes what has arrived",
    "not_fetched": "no peer that has it could be reached, or none sent it in time",
    "evicted": "newer blobs displaced it from the content store before it was read",
}
CHECK: Mapping[str, str] = {
    "held_out": "its question is one of those on which nobody trains: one in eight, chosen by its text, only measures; "
    "this costs its sender reputation",
    "false_reward": "a claimed reward differs from the one recomputed here; this costs its sender reputation",
    "not_scored": "this node's scorer could not score one of its completions, so that its claim stays unchecked",
    "not_checked": "its conversations were not played again in time: learner.replay_seconds bounds it, a round",
    "differs": "one of its conversations goes otherwise here; this costs its sender reputation",
    "we_differ": "one of its conversations goes otherwise here, as those of most peers do: rather this node is wrong",
    "without_gradient": "every claim held, but no completion had an advantage left: this node's success has caught up "
    "with it, or a filter removed it",
    "not_canonical": "every claim held, but no right answer in it was worth copying: none was the task's own text, "
    "ended by itself and within the task's limit in this model's tokens, and none was a hint",
    "no_influence": "its sender has no influence on this node: it waits for a place among the newcomers, or success "
    "fell after learning from it",
}
# What a peer sent and must not be used: ``protocol.errors``, for groups, announcements and requests.
MESSAGE: Mapping[str, str] = {
    "protocol": "it breaks the protocol",
    "oversized": "it is larger than the protocol allows",
    "malformed": "it does not decode, breaks its schema, or contradicts itself or its task",
    "signature": "its signature is not that of the sender it names",
    "wrong_swarm": "it belongs to another swarm",
    "version": "it speaks another major version of the protocol: one of the two nodes needs an update",
    "unknown_kind": "it is a kind of announcement that this version does not know",
    "clock": "its time differs from this machine's clock by more than five minutes: one of the two clocks is wrong",
    "integrity": "its bytes do not match their hash, or the group is not the one that was advertised",
    "bad_state": "the weights rebuilt from what it announced are not those that it named",
    "stale_base": "it is a difference to weights that are not here",
    "unusable_stream": "the peer was busy, or had other content under that id",
}
ANNOUNCEMENT: Mapping[str, str] = {
    "replay": "it had arrived before",
    "newcomers": "too many unknown senders came at once; new ones are accepted again soon",
    "rate": "its sender announces more often, or more bytes, than one node may",
    "banned": "its sender is banned",
}
# Who is not admitted: ``protocol.cluster.refusal`` and ``protocol.errors.RefusedError``.
MEMBERSHIP: Mapping[str, str] = {
    "refused": "a node answers at that address, and it does not admit this node",
    "damaged": "its invite or certificate does not decode, or was cut short",
    "wrong_key": "its invite or certificate is not signed by the cluster's owner, or names another peer",
    "not_yet_valid": "its invite or certificate is not valid yet",
    "expired": "its invite or certificate has expired",
    "revoked": "the cluster's owner has revoked it",
    "needs_owner": "its invite needs the owner, who is not connected",
    "taken": "every seat of its invite is taken",
    "full": "the cluster has its maximum number of members",
    "outdated": "it holds an older list of revocations, or an older key, than this node",
    "wrong_psk": "its pre-shared key is not this cluster's",
    "no_member": "it showed no certificate of this cluster",
}
# What a peer did: ``swarm.peers.reputation.Conduct``, except for those values that are among the above.
CONDUCT: Mapping[str, str] = {
    "unused": "its claims held, and this node did not train on it for a reason of its own",
    "wrong_chunk": "it sent bytes that do not match their hash",
    "hostile_request": "it made a request that no honest peer makes",
    "stalled": "it accepted a request and then stayed silent",
    "broke_off": "it began to answer a request and ended the stream before the first chunk",
    "missing": "it did not have what it had advertised",
    "averaged": "it sent weights that were averaged with this node's",
    "outlier": "it sent weights unusually far from this node's, which counted for less",
    "unfit_weights": "it sent weights that do not fit their layout, are not finite, or are out of bounds",
    "false_success": "it claimed a success that its weights did not have when this node measured them",
    "harmful_weights": "this node's success fell after averaging with its weights, which were taken back",
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
    """Returns the reason's sentence, or one that names a reason of another version."""
    return WORDS.get(reason) or f"for a reason that this version has no words for: {printable(reason, 64)}"


def stage_of(reason: str) -> str:
    """Returns the table in which the reason stands, by its name in ``STAGES``, or "unknown"."""
    return _STAGE_OF.get(reason, "unknown")


def nothing_unused(fetched: int) -> str:
    """Returns what is said where no group of a peer was left unused, of those ``fetched``."""
    return "Every group fetched from peers was used." if fetched else "No group of a peer was fetched."


def why_not(counts: Mapping[str, int]) -> tuple[WhyNot, ...]:
    """Returns every reason that was given, the most frequent first."""
    given: Iterable[tuple[str, int]] = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    listed = [(reason, count) for reason, count in given if count][:MAX_REASONS_SHOWN]
    return tuple(WhyNot(printable(reason, 64), stage_of(reason), words_for(reason), count) for reason, count in listed)
