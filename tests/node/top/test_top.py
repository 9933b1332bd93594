"""starling top over the real API on a real Unix socket, driven by Textual's pilot; and its views as text."""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import DataTable

from node.api.event_feed import EventFeed
from node.api.gains_words import changed
from node.api.node_client import ask_status
from node.api.reasons import nothing_unused, words_for
from node.api.rollout_history import RolloutHistory
from node.api.server import served
from node.api.swarm_summary import swarm_answer
from node.api.types import PeersAnswer, PeerView
from node.cli import main as cli
from node.events import EngineChanged, Fault
from node.home import Home
from node.top import watch
from node.top.node_view import node_lines
from node.top.peers_view import columns, ordered, peer_detail_lines
from node.top.rewards_view import rewards_lines
from node.top.rollouts_view import rollouts_lines
from node.top.swarm_view import swarm_lines
from node.top.terminal_app import HELP, Top
from node.top.text import Column, Line, Span, bars, fitted, resampled, table, widths, wrapped
from node.top.watch import NO_NODE, Seen, View, Watch, polled
from scripts.bench.common.simulated_node import TASKS, SimulatedNode
from scripts.page_answers import donors_of
from scripts.page_answers import gains as page_gains
from swarm.api import ReachStatus
from tests.factories import round_done
from tests.hang_guard import HANG_SECONDS

NOW = 1_800_000_000.0
REWARDS_HEAD, PEERS_HEAD, GROUPS_HEAD = (
    "by what they taught",
    "reputation",
    "± ",
)  # which only the table of peers, only the table of groups have
WHY_HEAD = "why not used"
NO_PEER = "starling up"  # where others find the address to join by
HELP_END = HELP.strip().splitlines()[-1]
HOSTILE = "[red]\x1b[2J[/]\n[@click=app.quit]x[/]\u202e"


@pytest.fixture
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="st-") as directory:  # short: a Unix socket's path is bounded
        yield Home(Path(directory))


def text_of(lines: list[Line]) -> str:
    return "\n".join("".join(span.text for span in line) for line in lines)


def screen_of(pilot: Pilot[None]) -> list[str]:
    """The screen's lines, as a reader sees them."""
    return ["".join(segment.text for segment in strip) for strip in pilot.app.screen._compositor.render_strips()]


async def shown(pilot: Pilot[None], *texts: str) -> str:
    """The screen once it shows every text."""
    until_seconds = time.monotonic() + HANG_SECONDS
    while True:
        screen = "\n".join(screen_of(pilot))
        if all(text in screen for text in texts):
            return screen
        assert time.monotonic() < until_seconds, f"{texts} did not come; the screen:\n{screen}"
        await pilot.pause(0.02)


@asynccontextmanager
async def watched(home: Home, node: SimulatedNode) -> AsyncIterator[Pilot[None]]:
    """The interface over ``node``, on a terminal of 80 by 24."""
    async with served(node, EventFeed(), home.supervisor_socket):
        top = Top(Watch(home, Seen(node.status(), NOW), lambda: NOW))
        async with top.run_test(size=(80, 24)) as pilot:
            yield pilot


async def test_the_node_view_shows_at_80_by_24_all_that_is_known_of_a_node_without_scrolling(home: Home) -> None:
    async with watched(home, SimulatedNode(NOW)) as pilot:
        await pilot.press("2")
        facts = (
            "Reward by task",
            "training",
            "round 401",
            "tokens/s",
            "% of the batch",
            "versions",
            "2.9 GB",
            "262.0 MB",
            "164.8 MB",
            "round 393, 1 min 35 s ago",
            "23 times",
            "3 min 00 s ago",
            "0.31 %",
            "10 connected",
            *TASKS,
            "generated t/s",
            "trained t/s",
            "wren joined",
            "█",
        )
        screen = await shown(pilot, *facts)  # the status and the history come one after the other
        assert "…," in screen and screen.count("…") == 1  # of the partner's long id; nothing else is cut
        assert pilot.app.query_one("#node").max_scroll_y == 0


async def test_keys_lead_through_the_views_and_back(home: Home) -> None:
    async with watched(home, SimulatedNode(NOW)) as pilot:
        await shown(pilot, REWARDS_HEAD)
        await pilot.press("3")
        await shown(pilot, PEERS_HEAD, "wren", " ms")
        await pilot.press("tab")
        await shown(pilot, "12 nodes", "1 banned", *TASKS, "ours: Qwen/Qwen3-0.6B")
        await pilot.press("right")
        await shown(pilot, "own groups generated", words_for("stale")[:40])
        await pilot.press("pagedown")
        await shown(pilot, GROUPS_HEAD, "used: ")
        await pilot.press("tab")
        await shown(pilot, REWARDS_HEAD)
        await pilot.press("left")
        await shown(pilot, GROUPS_HEAD)  # scrolled as it was left
        await pilot.press("shift+tab", "4")
        await shown(pilot, "12 nodes")


async def test_help_covers_the_view_until_a_key_which_does_nothing_else(home: Home) -> None:
    async with watched(home, SimulatedNode(NOW)) as pilot:
        await pilot.press("question_mark")
        await shown(pilot, HELP_END)
        await pilot.press("3")
        screen = await shown(pilot, REWARDS_HEAD)
        assert HELP_END not in screen
        await pilot.press("question_mark")
        await shown(pilot, HELP_END)
        await pilot.press("q")
        await shown(pilot, REWARDS_HEAD)
        assert pilot.app.is_running


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_it_quits_also_over_the_help_and_while_the_node_never_answers(home: Home, key: str) -> None:
    """The node accepts connections and never answers: keys work all the same, and quitting does not wait."""
    node = SimulatedNode(NOW, rounds=2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(home.supervisor_socket))
        silent.listen()
        top = Top(Watch(home, Seen(node.status(), NOW), lambda: NOW))
        async with top.run_test(size=(80, 24)) as pilot:
            await pilot.press("5")
            await shown(pilot, "…")
            await pilot.press("question_mark")
            await shown(pilot, HELP_END)
            if key == "q":
                await pilot.press("x")  # which closes the help
            await pilot.press(key)
    assert top.return_code == 0 and not top.is_running


async def test_a_node_that_stops_is_shown_as_away_and_its_return_is_seen(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.1)  # the test waits for two polls
    node = SimulatedNode(NOW, rounds=30)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(AsyncExitStack())
        await server.enter_async_context(served(node, EventFeed(), home.supervisor_socket))
        top = Top(Watch(home, Seen(node.status(), NOW), lambda: NOW))
        pilot = await stack.enter_async_context(top.run_test(size=(80, 24)))
        await pilot.press("2")
        await shown(pilot, "Reward by task")
        await server.aclose()
        screen = await shown(pilot, NO_NODE)
        assert "Reward by task" in screen  # what was known stays
        node.change(waiting_for="round 32: taking an optimizer step")
        await server.enter_async_context(served(node, EventFeed(), home.supervisor_socket))
        screen = await shown(pilot, "round 32: taking an optimizer step")
        assert NO_NODE not in screen


async def test_what_a_stranger_calls_itself_is_shown_as_text_and_obeyed_nowhere(home: Home) -> None:
    node = SimulatedNode(NOW, rounds=30)
    first, *others = node.peers().peers
    assert first.heartbeat is not None
    beat = replace(first.heartbeat, name=HOSTILE, model=HOSTILE, success_by_task={HOSTILE: 0.5}, samples_by_task={})
    hostile = replace(first, heartbeat=beat, banned_because=HOSTILE, addresses=(HOSTILE,))
    node.change_peers(PeersAnswer((hostile, *others)))  # not escaped, as if the node's own API had been fooled
    node.change(waiting_for=HOSTILE, notes=(HOSTILE,), name=HOSTILE, model=HOSTILE)
    fault = Fault(time_seconds=NOW, kind=HOSTILE, detail=HOSTILE, round=1, fatal=False)
    node.change(fault=fault)
    async with watched(home, node) as pilot:
        escaped = "[red]\\x1b[2J[/]\\x0a[@click"
        for key, marks in (("2", (escaped,)), ("3", ("[red]\\x1b[2J", escaped)), ("4", ("[red]",)), ("5", ("own",))):
            await pilot.press(key)
            screen = await shown(pilot, *marks)
            assert not any(mark in screen for mark in ("\x1b", "\u202e")) and len(screen.splitlines()) == 24


async def test_two_hundred_peers_are_listed_and_sorted_and_the_cursor_stays_on_its_peer(home: Home) -> None:
    node = SimulatedNode(NOW, peers=200, rounds=60)
    async with watched(home, node) as pilot:
        await pilot.press("3")
        await shown(pilot, "wren")
        rows = pilot.app.query_one(DataTable)
        assert rows.row_count == 200
        await pilot.press("s")
        await shown(pilot, "name▲", "dunlin1 ")
        await pilot.press("r")
        await shown(pilot, "name▼", "wren9 ")
        await pilot.press("down", "down")
        under = rows.coordinate_to_cell_key(rows.cursor_coordinate).row_key.value
        assert under is not None
        kept = [peer for peer in node.peers().peers if peer.peer == under or peer.peer < under]
        assert 1 < len(kept) < 200
        node.change_peers(PeersAnswer(tuple(kept)))
        until_seconds = time.monotonic() + HANG_SECONDS
        while rows.row_count != len(kept):
            assert time.monotonic() < until_seconds
            await pilot.pause(0.02)
        assert rows.coordinate_to_cell_key(rows.cursor_coordinate).row_key.value == under
        await shown(pilot, under)


async def test_a_terminal_that_changes_its_size_is_filled_anew(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.1)  # a new width shows at the next poll
    async with watched(home, SimulatedNode(NOW)) as pilot:
        await pilot.press("3")
        assert WHY_HEAD not in await shown(pilot, "wren")
        await pilot.resize_terminal(140, 40)
        await shown(pilot, WHY_HEAD, "× crowded out")
        await pilot.resize_terminal(20, 6)
        await pilot.resize_terminal(80, 24)
        await shown(pilot, "reputation")


async def test_a_redraw_that_is_due_while_the_interface_ends_draws_nothing(home: Home) -> None:
    top = Top(Watch(home, Seen(SimulatedNode(NOW).status(), NOW), lambda: NOW))
    async with top.run_test():
        pass
    top._draw()  # Textual's timers of the app end after its last screen


async def test_a_node_that_answers_with_an_error_is_shown_with_its_code(home: Home) -> None:
    node = SimulatedNode(NOW, rounds=2)
    before = Seen(node.status(), NOW)
    assert polled(home, before, View.PEERS, NOW).away == NO_NODE

    class Broken(SimulatedNode):
        def peers(self) -> PeersAnswer:
            raise RuntimeError("a fault of ours")

    async with served(Broken.__new__(Broken), EventFeed(), home.supervisor_socket):
        seen = await asyncio.to_thread(polled, home, before, View.PEERS, NOW)
    assert "500" in (seen.away or "")


async def test_without_a_node_the_verb_ends_with_69_and_without_a_terminal_with_2(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["starling", "top", "--home", str(home.path)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), capsys.readouterr().err

    code, error = run()
    assert code == 69 and "starling up" in error

    async with served(SimulatedNode(NOW, rounds=2), EventFeed(), home.supervisor_socket):
        assert (await asyncio.to_thread(ask_status, home)).name == "ann"
        code, error = await asyncio.to_thread(run)
    assert code == 2 and "starling status" in error


async def test_a_node_before_its_first_round_has_views_too(home: Home) -> None:
    node = SimulatedNode(NOW, peers=0, rounds=0)
    node.change(swarm=None, ready=None, checkpoint=None, averaged=None, usage=None, notes=(), waiting_for="")
    text = text_of(node_lines(node.status(), node.record.history.answer(), NOW, 79, 21))
    assert "none yet" in text and "never" in text and "█" not in text
    answer = node.record.rollouts.answer(node.status(), node.peers())
    assert len(rollouts_lines(answer, NOW, 79)) == 1
    async with watched(home, node) as pilot:
        await pilot.press("3")
        await shown(pilot, NO_PEER)


def test_a_node_alone_is_not_told_that_groups_of_peers_were_used() -> None:
    node = SimulatedNode(NOW)
    history = RolloutHistory()
    history.add_round(round_done(1))
    alone = text_of(rollouts_lines(history.answer(node.status(), node.peers()), NOW, 79))
    assert nothing_unused(0) in alone
    history.add_round(round_done(2, foreign_fetched=3))
    assert nothing_unused(3) in text_of(rollouts_lines(history.answer(node.status(), node.peers()), NOW, 79))
    assert nothing_unused(0) != nothing_unused(3)


def test_a_node_that_one_peer_could_not_dial_is_shown_as_out_of_reach() -> None:
    node = SimulatedNode(NOW)
    swarm = node.status().swarm
    assert swarm is not None
    for reach, shown_words in (
        (ReachStatus("unknown", "one peer has tried to reach this node, and could not", is_out_of_reach=True), True),
        (ReachStatus("unknown", "not known yet whether peers can reach this node"), False),
    ):
        node.change(swarm=replace(swarm, reach=reach))
        assert (reach.in_words in text_of(node_lines(node.status(), None, NOW, 79, 21))) is shown_words


def test_why_a_node_is_alone_and_its_last_fault_are_shown() -> None:
    node = SimulatedNode(NOW)
    swarm = node.status().swarm
    assert swarm is not None
    node.change(swarm=replace(swarm, alone_because="nobody answers at the addresses given"))
    averaged = node.status().averaged
    assert averaged is not None
    node.change(averaged=None, offered=replace(averaged, partner=None, because="no peer of the family is connected"))
    history = node.record.history.answer(points=200)
    assert len(node_lines(node.status(), history, NOW, 79, 21)) - len(node.status().notes) <= 21
    node.change(fault=Fault(time_seconds=NOW - 30, kind="transport", detail="cut off", round=9, fatal=False))
    text = text_of(node_lines(node.status(), None, NOW, 79, 21))
    assert "never" in text and "no peer of the family is connected" in text
    assert "nobody answers at the addresses given" in text and "30 s ago, round 9: transport: cut off" in text


def test_what_each_donor_did_and_an_engine_that_is_not_the_one_asked_for_are_shown() -> None:
    node = SimulatedNode(NOW)
    asked = EngineChanged(time_seconds=NOW, backend="vllm", configured="vllm", running=True, because="it was asked for")
    node.change(donors=donors_of(NOW), engine=asked)
    text = " ".join(text_of(node_lines(node.status(), None, NOW, 79, 21)).split())
    assert "attic: 8 of 16 groups, 7 of them in time (48 % of tokens), 2,310 tokens/s" in text
    assert "12D3KooWCellar: lost: cut off" in text and "asked for" not in text
    node.change(engine=replace(asked, backend="torch", because="vLLM did not start"))
    assert "vLLM did not start" in text_of(node_lines(node.status(), None, NOW, 79, 21))


def test_rewards_are_those_of_the_page_and_a_change_by_chance_has_no_sign() -> None:
    gains = page_gains("running", NOW)
    gains = replace(gains, tasks=(*gains.tasks, replace(gains.tasks[0], task="by chance", change=None)))
    lines = rewards_lines(gains, 79)
    text = text_of(lines)
    rows = {line[0].text.strip(): line for line in lines if len(line) > 1}
    assert gains.peers and gains.others_since_round is not None
    for task in gains.tasks:
        assert [span.text.strip() for span in rows[task.task]][2:5:2] == [f"{task.before:.2f}", f"{task.now:.2f}"]
        assert (changed(None) in [span.text.strip() for span in rows[task.task]]) is (task.change is None)
    at = [text.index(f"{peer.name}  ") for peer in gains.peers[:3] if peer.name]
    assert at == sorted(at)  # the one that taught most first
    alone = SimulatedNode(NOW, peers=0, rounds=0).record.changes.gains()
    assert text_of(rewards_lines(alone, 79)) == alone.sentence


def test_every_line_of_every_view_fits_80_cells() -> None:
    node = SimulatedNode(NOW, peers=40)
    status, peers = node.status(), node.peers()
    answer = node.record.rollouts.answer(status, peers)
    lines = node_lines(status, node.record.history.answer(points=200), NOW, 79, 21)
    lines += rewards_lines(page_gains("running", NOW), 79)
    lines += swarm_lines(swarm_answer(status, peers), 79) + rollouts_lines(answer, NOW, 79)
    lines += [line for peer in peers.peers for line in peer_detail_lines(peer, 79)]
    assert max(cell_len("".join(span.text for span in line)) for line in lines) <= 79
    assert sum(widths([each.column for each in columns(80)], 79, 1)) + len(columns(80)) - 1 <= 79
    assert words_for("stale") in text_of(lines)  # in words, and whole


def test_unknown_round_trips_come_last_whichever_way_peers_are_sorted() -> None:
    peers = SimulatedNode(NOW, rounds=9).peers().peers
    by = next(each for each in columns(80) if each.column.title == "link")

    def near(order: list[PeerView]) -> list[float | None]:
        return [peer.round_trip_seconds for peer in order]

    up, down = near(ordered(peers, by, backwards=False)), near(ordered(peers, by, backwards=True))
    known = [each for each in up if each is not None]
    assert known == sorted(known) and up[-2:] == down[-2:] == [None, None] and down[:-2] == known[::-1]
    assert ordered(peers, None, backwards=False) == list(peers)


@given(st.text(max_size=60), st.integers(0, 40), st.booleans())
def test_any_text_takes_exactly_the_cells_that_it_is_given(text: str, cells: int, right: bool) -> None:
    assert cell_len(fitted(text, cells, right=right)) == cells


@given(st.text(max_size=200), st.integers(2, 60), st.integers(1, 4))
def test_wrapped_text_keeps_to_its_lines_and_cells(text: str, cells: int, most: int) -> None:
    lines = wrapped(text, cells, most)
    assert 1 <= len(lines) <= most and all(cell_len(line) <= cells for line in lines)


@given(st.lists(st.none() | st.floats(0, 1), max_size=300), st.integers(1, 80), st.integers(1, 4))
def test_bars_are_as_many_as_there_is_room_for_and_show_what_there_is(
    values: list[float | None], cells: int, height: int
) -> None:
    drawn = bars(values, cells, high=1.0, height=height)
    assert len(drawn) == height and {len(row) for row in drawn} == {min(cells, len(values))}
    for at, value in enumerate(resampled(values, cells)):
        assert (drawn[-1][at] == " ") == (value is None)
        assert (drawn[0][at] == "█") == (value is not None and round(8 * height * value) == 8 * height)


def test_a_table_spends_spare_cells_on_the_columns_that_grow() -> None:
    lines = table([Column("a", 3, grows=1), Column("b", 3, right=True)], [(Span("abcdefgh"), Span("1"))], 12)
    assert text_of(lines) == "a          b\nabcdef…    1"


def test_bars_of_a_series_that_is_zero_throughout_are_thin() -> None:
    assert bars([0.0, 0.0], 4, high=0.0) == ["▁▁"]
