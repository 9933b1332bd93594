"""The peers, as rows of a table and as lines on one of them; sorted by any column. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from node.api.reasons import words_for
from node.api.types import HeartbeatView, PeerView
from node.quantities import duration, size
from node.top.text import Column, Line, Span, Style, fitted, number, wrapped

USED = frozenset({"used", "replayed"})
GAP = 1  # the table's columns stand close, so that 80 cells hold them
TITLE = 10
MAX_LINES = 2
REASONS = 3  # most frequent ones
WIDE = 120  # cells from which the reasons are in the table too
BAD, DOUBTFUL = 0.3, 0.7  # reputations below

Rank = tuple[bool, float | str]  # what is not known comes last


@dataclass(frozen=True, slots=True)
class PeerColumn:
    """One column: its place, what a peer has there, and by what it sorts."""

    column: Column
    of: Callable[[PeerView], Span]
    rank: Callable[[PeerView], Rank]
    descending: bool = False


def columns(cells: int) -> tuple[PeerColumn, ...]:
    """Those that so many cells hold."""
    return (*_COLUMNS[:-1], _WHY, _COLUMNS[-1]) if cells >= WIDE else _COLUMNS


def name_of(peer: PeerView) -> str:
    if peer.heartbeat is not None and peer.heartbeat.name:
        return peer.heartbeat.name
    return f"{peer.peer[:6]}…{peer.peer[-6:]}"


def ordered(peers: Sequence[PeerView], by: PeerColumn | None, *, turned: bool) -> list[PeerView]:
    """By a column, its natural way round unless ``turned``; without one as the node lists them, connected first."""
    if by is None:
        return list(reversed(peers)) if turned else list(peers)
    known = [peer for peer in peers if not by.rank(peer)[0]]
    unknown = [peer for peer in peers if by.rank(peer)[0]]
    return sorted(known, key=by.rank, reverse=by.descending != turned) + unknown


def peer_lines(peer: PeerView, cells: int) -> list[Line]:
    """All that is known of one peer."""
    beat = peer.heartbeat
    facts: list[tuple[str, str, Style]] = [
        (name_of(peer), peer.peer, ""),
        ("link", _link_words(peer), "" if peer.connected else "faint"),
        ("trains", "not told yet" if beat is None else _trains(beat), ""),
        ("groups", _groups(peer), ""),
        ("not used", _why_in_words(peer), ""),
        ("weights", _weights(peer), ""),
    ]
    if peer.banned_because is not None:
        facts.insert(1, ("banned", peer.banned_because, "bad"))
    lines: list[Line] = []
    for index, (title, text, style) in enumerate(facts):
        for row, part in enumerate(wrapped(text, cells - TITLE - 1, MAX_LINES)):
            head = Span(fitted(title if row == 0 else "", TITLE) + " ", "title" if index == 0 else "faint")
            lines.append((head, Span(part, style)))
    return lines


def not_used(peer: PeerView) -> list[tuple[str, int]]:
    """Reasons and how often, the most frequent first."""
    counted = [(reason, count) for reason, count in peer.outcomes.items() if reason not in USED and count]
    return sorted(counted, key=lambda item: (-item[1], item[0]))


def _link(peer: PeerView) -> Span:
    if peer.banned_because is not None:
        return Span("banned", "bad")
    if not peer.connected:
        return Span("away", "faint")
    near = peer.round_trip_seconds
    return Span("linked" if near is None else f"{1e3 * near:,.0f} ms", "good")


def _link_words(peer: PeerView) -> str:
    heard = "never heard" if peer.heartbeat_age_seconds is None else f"heard {duration(peer.heartbeat_age_seconds)} ago"
    near = "" if peer.round_trip_seconds is None else f", {1e3 * peer.round_trip_seconds:,.1f} ms there and back"
    clock = "" if peer.clock_offset_seconds is None else f", clock {peer.clock_offset_seconds:+.1f} s"
    where = f", {peer.addresses[0]}" if peer.addresses else ""
    return f"{'connected' if peer.connected else 'away'}{near}, {heard}{clock}{where}"


def _trains(beat: HeartbeatView) -> str:
    return (
        f"{beat.model}, family {beat.family[:8]}, round {beat.round:,}, {beat.phase or 'doing nothing that it tells'}, "
        f"{number(beat.tokens_per_second)} tokens/s; {beat.software}"
    )


def _groups(peer: PeerView) -> str:
    given = f"{peer.groups_given:,} given to it, reputation {peer.reputation:.2f}"
    return f"{peer.groups_received:,} seen, {peer.groups_used:,} taken, {peer.groups_rejected:,} rejected, {given}"


def _why(peer: PeerView) -> str:
    return ", ".join(f"{count:,} × {reason.replace('_', ' ')}" for reason, count in not_used(peer)[:REASONS])


def _why_in_words(peer: PeerView) -> str:
    """The most frequent reason in full, the next ones by their short names."""
    reasons = not_used(peer)
    if not reasons:
        return "nothing of it was left unused"
    reason, count = reasons[0]
    others = "".join(f"; {count:,} × {reason.replace('_', ' ')}" for reason, count in reasons[1:REASONS])
    return f"{count:,} ×: {words_for(reason)}{others}"


def _weights(peer: PeerView) -> str:
    last = peer.last_exchange
    if last is None:
        return "never averaged with it"
    came = "averaged" if last.committed else f"abandoned: {last.because}"
    counts = f"averaged {peer.exchanges_committed} times, {peer.exchanges_abandoned} abandoned"
    return f"{counts}; last {came} ({size(last.sent_bytes)} sent, {size(last.received_bytes)} received)"


def _reputation(peer: PeerView) -> Span:
    value = peer.reputation
    return Span(f"{value:.2f}", "bad" if value < BAD else "warn" if value < DOUBTFUL else "")


def _told(of: Callable[[HeartbeatView], str]) -> Callable[[PeerView], Span]:
    return lambda peer: Span("–" if peer.heartbeat is None else of(peer.heartbeat))


def _text_rank(of: Callable[[PeerView], Span]) -> Callable[[PeerView], Rank]:
    return lambda peer: (of(peer).text == "–", of(peer).text.casefold())


_model, _family = _told(lambda beat: beat.model), _told(lambda beat: beat.family[:8])
_WHY = PeerColumn(
    Column("not used, why", 24, grows=3), lambda peer: Span(_why(peer)), lambda peer: (not _why(peer), _why(peer))
)
_COLUMNS = (
    PeerColumn(
        Column("name", 13, grows=2), lambda peer: Span(name_of(peer)), lambda peer: (False, name_of(peer).casefold())
    ),
    PeerColumn(Column("model", 13, grows=2), _model, _text_rank(_model)),
    PeerColumn(Column("family", 8), _family, _text_rank(_family)),
    PeerColumn(
        Column("link", 8, right=True),
        _link,
        lambda peer: (not peer.connected or peer.round_trip_seconds is None, peer.round_trip_seconds or 0.0),
    ),
    PeerColumn(
        Column("taken of", 8, right=True),
        lambda peer: Span(f"{peer.groups_used}/{peer.groups_received}"),
        lambda peer: (False, float(peer.groups_used)),
        descending=True,
    ),
    PeerColumn(
        Column("given", 5, right=True),
        lambda peer: Span(f"{peer.groups_given}"),
        lambda peer: (False, float(peer.groups_given)),
        descending=True,
    ),
    PeerColumn(
        Column("unused", 6, right=True),
        lambda peer: Span(f"{sum(count for _, count in not_used(peer))}"),
        lambda peer: (False, float(sum(count for _, count in not_used(peer)))),
        descending=True,
    ),
    PeerColumn(
        Column("reputation", 10, right=True), _reputation, lambda peer: (False, peer.reputation), descending=True
    ),
)
