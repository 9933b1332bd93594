"""A peer that teaches less for a while is named by its name, is no fault, and is the same everywhere."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from node.api.record import RunRecord, recorded_run
from node.api.run_changes import RunChanges
from node.api.types import NodeStatus, PeersAnswer
from node.api.withdrawals import with_withdrawals
from node.cli import wording
from node.events import AveragingTakenBack, Event, InfluenceWithdrawn, NamedPeer, PeersChanged, encode_event
from node.home import Home
from node.report.facts import run_facts
from node.report.html import report_page
from node.report.lines import report_lines
from node.supervision.reporting import Reporting
from tests.factories import round_done
from tests.node.cli.test_shown_text import node_status, peer, swarm_status

ROBIN, FINCH, OTHER_FINCH = "12D3KooWrobin", "12D3KooWfinch1", "12D3KooWfinch2"
CAME = PeersChanged(
    time_seconds=1.0,
    round=1,
    came=(NamedPeer(ROBIN, "robin", "r"), NamedPeer(FINCH, "finch", "f"), NamedPeer(OTHER_FINCH, "finch", "f")),
    left=(),
    came_total=3,
    left_total=0,
    present=3,
)


def withdrawn(number: int, *peers: str, weights_of_round: int | None = None) -> InfluenceWithdrawn:
    return InfluenceWithdrawn(
        time_seconds=float(number),
        round=number,
        since_round=number - 3,
        lost_share=0.27,
        peers=peers,
        action="set_aside",
        until_round=number + 20,
        weights_of_round=weights_of_round,
    )


def changes_after(*events: InfluenceWithdrawn | PeersChanged) -> RunChanges:
    changes = RunChanges()
    for event in events:
        changes.add(event)
    return changes


class Told:
    """Keeps the notes that a user gets."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_event(self, line: bytes, event: Event) -> None:
        pass

    def on_note(self, text: str) -> None:
        self.notes.append(text)

    def on_tick(self, status: NodeStatus, peers: PeersAnswer) -> None:
        pass


def test_status_terminal_page_and_report_show_the_same_fact_and_no_fault(tmp_path: Path) -> None:
    home, record, told = Home(tmp_path), RunRecord(), Told()
    reporting = Reporting(home, record, told, ())
    reporting.own_event(CAME)
    for event in (withdrawn(7, ROBIN), round_done(8)):
        reporting.learner_event(encode_event(event), event)

    (now,) = record.changes.withdrawn
    assert (now.round, now.names, now.action, now.until_round) == (7, ("robin",), "set_aside", 27)
    assert told.notes == [now.sentence] and "robin" in now.sentence and ROBIN not in now.sentence
    _, after_a_restart = recorded_run(home.metrics, before_seconds=9.0)
    facts = run_facts(home.metrics)
    assert facts.withdrawals == after_a_restart.withdrawn == (now,)
    assert facts.faults_total == 0 and facts.withdrawals_total == 1
    (mark,) = [mark for mark in facts.history.marks if mark.kind == "withdrawn"]
    assert "robin" in mark.text

    status = msgspec.structs.replace(node_status(swarm_status(None)), withdrawn=(now,))
    for shown in (wording.status_lines(status), report_lines(facts)):
        assert [line.split(maxsplit=1)[1] for line in shown if line.startswith("caution")] == [now.sentence]
    assert now.sentence in report_page(facts, name="wren")


def test_two_peers_of_one_name_are_told_apart_by_the_ends_of_their_ids() -> None:
    (made,) = changes_after(CAME, withdrawn(7, ROBIN, FINCH, "12D3KooWnobody")).withdrawals
    assert made.names == ("robin", "finch (…inch1)", "…obody")


@pytest.mark.parametrize("weights_of_round", [None, 4])
def test_what_becomes_of_the_weights_is_said(weights_of_round: int | None) -> None:
    (made,) = changes_after(withdrawn(7, ROBIN, weights_of_round=weights_of_round)).withdrawals
    assert made.weights_of_round == weights_of_round
    assert ("nothing is lost" in made.sentence) == (weights_of_round is None)
    assert ("round 4 again" in made.sentence) == (weights_of_round is not None)


def test_a_peer_shows_what_is_done_about_it_until_the_round_in_which_it_returns() -> None:
    seen = PeersAnswer((peer("robin"),))
    changes = changes_after(withdrawn(7, seen.peers[0].peer))
    (shown,) = with_withdrawals(seen, changes.withdrawn).peers
    assert shown.withdrawn == changes.withdrawals[0].done
    (line,) = wording.peer_lines([shown])
    assert shown.withdrawn in line
    changes.add(round_done(27))
    assert with_withdrawals(seen, changes.withdrawn) == seen


def test_an_averaging_that_is_taken_back_is_told_by_name() -> None:
    changes = changes_after(CAME)
    (sentence,) = changes.add(
        AveragingTakenBack(
            time_seconds=1.0, round=9, partner=ROBIN, because="own success fell", averaged_round=5,
            success_before=0.5, success_change=-0.3, groups=9,
        )
    )  # fmt: skip
    assert "robin" in sentence and ROBIN not in sentence
