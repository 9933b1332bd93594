"""The peers as sortable rows of a table, and one peer in detail as lines of text. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from node.api.reasons import words_for
from node.api.types import HeartbeatView, PeerView
from node.cli.wording import ends_of, exchanges_line, has_left
from node.quantities import duration
from node.top.text import Column, Line, Span, Style, fitted, number, wrapped

USED = frozenset({"used", "replayed"})
GAP_CELLS = 1  # between columns; small, so that 80 cells hold the table
TITLE_CELLS = 10
MAX_LINES = 2
MAX_REASONS = 3  # the most frequent ones
WIDE_CELLS = 120  # from this width on the table has a column with the reasons
BAD_REPUTATION, DOUBTFUL_REPUTATION = 0.3, 0.7  # below these

Rank = tuple[bool, float | str]  # True for an unknown value, which comes last


@dataclass(frozen=True, slots=True)
class PeerColumn:
    """One column: its title and width, a peer's cell in it, and the rank by which it sorts."""

    column: Column
    of: Callable[[PeerView], Span]
    rank: Callable[[PeerView], Rank]
    descending: bool = False


def columns(cells: int) -> tuple[PeerColumn, ...]:
    """Returns the columns for a table of this width."""
    return (*_COLUMNS[:-1], _WHY, _COLUMNS[-1]) if cells >= WIDE_CELLS else _COLUMNS


def name_of(peer: PeerView) -> str:
    if peer.heartbeat is not None and peer.heartbeat.name:
        return peer.heartbeat.name
    return ends_of(peer.peer)


def ordered(peers: Sequence[PeerView], by: PeerColumn | None, *, backwards: bool) -> list[PeerView]:
    """Returns the peers in the natural order of a column, or else in the node's own order, connected peers first;
    ``backwards`` reverses the order. Peers with an unknown value come last either way."""
    if by is None:
        return list(reversed(peers)) if backwards else list(peers)
    known = [peer for peer in peers if not by.rank(peer)[0]]
    unknown = [peer for peer in peers if by.rank(peer)[0]]
    return sorted(known, key=by.rank, reverse=by.descending != backwards) + unknown


def peer_detail_lines(peer: PeerView, cells: int) -> list[Line]:
    """Returns everything that is known about one peer."""
    beat = peer.heartbeat
    facts: list[tuple[str, str, Style]] = [
        (name_of(peer), peer.peer, ""),
        ("link", _link_words(peer), "" if peer.connected else "faint"),
        ("trains", "no heartbeat yet" if beat is None else _trains(beat), ""),
        ("groups", _groups(peer), ""),
        ("not used", _why_in_words(peer), ""),
        ("weights", exchanges_line(peer), ""),
    ]
    if peer.withdrawn is not None:
        facts.insert(1, ("caution", peer.withdrawn, ""))
    if peer.banned_because is not None:
        facts.insert(1, ("banned", peer.banned_because, "bad"))
    lines: list[Line] = []
    for index, (title, text, style) in enumerate(facts):
        for row, part in enumerate(wrapped(text, cells - TITLE_CELLS - 1, MAX_LINES)):
            head = Span(fitted(title if row == 0 else "", TITLE_CELLS) + " ", "title" if index == 0 else "faint")
            lines.append((head, Span(part, style)))
    return lines


def not_used(peer: PeerView) -> list[tuple[str, int]]:
    """Returns the reasons why groups of the peer were not used, with their counts, the most frequent first."""
    counted = [(reason, count) for reason, count in peer.outcomes.items() if reason not in USED and count]
    return sorted(counted, key=lambda item: (-item[1], item[0]))


def _link(peer: PeerView) -> Span:
    if peer.banned_because is not None:
        return Span("banned", "bad")
    if not peer.connected:
        return Span("left" if has_left(peer) else "away", "faint")
    round_trip_seconds = peer.round_trip_seconds
    return Span("linked" if round_trip_seconds is None else f"{1e3 * round_trip_seconds:,.0f} ms", "good")


def _link_words(peer: PeerView) -> str:
    age_seconds = peer.heartbeat_age_seconds
    none = "no heartbeat yet" if peer.heartbeat is None else "it has left"
    heartbeat = none if age_seconds is None else f"heartbeat {duration(age_seconds)} ago"
    round_trip = "" if peer.round_trip_seconds is None else f", round trip {1e3 * peer.round_trip_seconds:,.1f} ms"
    clock = "" if peer.clock_offset_seconds is None else f", clock {peer.clock_offset_seconds:+.1f} s"
    address = f", {peer.addresses[0]}" if peer.addresses else ""
    return f"{'connected' if peer.connected else 'away'}{round_trip}, {heartbeat}{clock}{address}"


def _trains(beat: HeartbeatView) -> str:
    if beat.is_relay:
        return f"nothing: it introduces and relays; {beat.software}"
    return (
        f"{beat.model}, family {beat.family[:8]}, round {beat.round:,}, phase {beat.phase or 'unknown'}, "
        f"{number(beat.tokens_per_second)} tokens/s; {beat.software}"
    )


def _groups(peer: PeerView) -> str:
    theirs = f"{peer.groups_announced:,} announced, {peer.groups_used:,} used, {peer.groups_rejected:,} rejected"
    return f"{theirs}; it fetched {peer.groups_fetched:,} of ours; reputation {peer.reputation:.2f}"


def _why(peer: PeerView) -> str:
    return ", ".join(f"{count:,} × {reason.replace('_', ' ')}" for reason, count in not_used(peer)[:MAX_REASONS])


def _why_in_words(peer: PeerView) -> str:
    """Describes the most frequent reason in a sentence, and names the next ones."""
    reasons = not_used(peer)
    if not reasons:
        return "no group of this peer was left unused"
    reason, count = reasons[0]
    others = "".join(f"; {count:,} × {reason.replace('_', ' ')}" for reason, count in reasons[1:MAX_REASONS])
    return f"{count:,} ×: {words_for(reason)}{others}"


def _reputation(peer: PeerView) -> Span:
    value = peer.reputation
    return Span(f"{value:.2f}", "bad" if value < BAD_REPUTATION else "warn" if value < DOUBTFUL_REPUTATION else "")


def _reported(of: Callable[[HeartbeatView], str]) -> Callable[[PeerView], Span]:
    return lambda peer: Span("–" if peer.heartbeat is None else of(peer.heartbeat))


def _text_rank(of: Callable[[PeerView], Span]) -> Callable[[PeerView], Rank]:
    return lambda peer: (of(peer).text == "–", of(peer).text.casefold())


def _short(model: str) -> str:
    """Returns a model's name without the organisation, so that its end, often its size, is not what a narrow column
    cuts; the lines below the table have it whole."""
    return model.rpartition("/")[2] or model


_model = _reported(lambda beat: _short(beat.model) or beat.phase)
_family = _reported(lambda beat: beat.family[:8] if beat.model else "–")
_WHY = PeerColumn(
    Column("why not used", 24, grows=3), lambda peer: Span(_why(peer)), lambda peer: (not _why(peer), _why(peer))
)
_COLUMNS = (
    PeerColumn(
        Column("name", 12, grows=2), lambda peer: Span(name_of(peer)), lambda peer: (False, name_of(peer).casefold())
    ),
    PeerColumn(Column("model", 13, grows=2), _model, _text_rank(_model)),
    PeerColumn(Column("family", 8), _family, _text_rank(_family)),
    PeerColumn(
        Column("link", 8, right=True),
        _link,
        lambda peer: (not peer.connected or peer.round_trip_seconds is None, peer.round_trip_seconds or 0.0),
    ),
    PeerColumn(
        Column("used of", 8, right=True),
        lambda peer: Span(f"{peer.groups_used}/{peer.groups_announced}"),
        lambda peer: (False, float(peer.groups_used)),
        descending=True,
    ),
    PeerColumn(
        Column("fetched", 7, right=True),
        lambda peer: Span(f"{peer.groups_fetched}"),
        lambda peer: (False, float(peer.groups_fetched)),
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
