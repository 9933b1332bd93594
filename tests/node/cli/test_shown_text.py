"""What is shown and logged: text from strangers is harmless, files stay within their bounds."""

from __future__ import annotations

import errno
import io
import json
import os
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from node.api.answers import escaped_event, peer_view
from node.api.types import (
    ChildStatus,
    Loss,
    NodeState,
    NodeStatus,
    PeersAnswer,
    PeerView,
    SampleAnswer,
    SampleGroup,
    SamplesAnswer,
)
from node.cli import wording
from node.cli.progress import JsonObserver, PlainObserver, panel
from node.events import Fault, Planned, RoundDone, Stopped, TurnsUsed, encode_event
from node.printable import one_line, printable
from node.quantities import counted, size, times
from node.supervision.rolling_log import RollingLog
from node.version import VERSION
from protocol.messages import Heartbeat
from swarm.api import PeerStatus, SwarmStatus
from tests.factories import round_done

HOSTILE = "\x1b[31m[bold red]evil[/]\r\nnew line\u202edlrow\x9b5m"


def heartbeat(name: str) -> Heartbeat:
    return Heartbeat(name, "starling 0", name, bytes(16), bytes(16), 3, 3, "learn", 10.0, 0, 0, ())


def peer(name: str = HOSTILE) -> PeerView:
    return peer_view(PeerStatus("12D3KooWx", True, (), 0.012, heartbeat(name), 1.0, 4, 3, 1, 0.9, name))


def swarm_status(alone_because: str | None) -> SwarmStatus:
    addresses = ("/ip4/127.0.0.1/tcp/1/p2p/12D3KooWx", "/ip4/192.0.2.7/tcp/1/p2p/12D3KooWx")
    return SwarmStatus(
        "12D3KooWx", "starling", "00" * 16, addresses, 9.0, 0, alone_because, 5, 6_000, 7, {}, {"clock": 2}
    )


def node_status(swarm: SwarmStatus | None, done: RoundDone | None = None) -> NodeStatus:
    child = ChildStatus(12, 0, None)
    return NodeStatus(
        VERSION, 1, "/h", "wren-x", "12D3KooWx", "builtin:wren", NodeState.TRAINING, 61.0, child, child, swarm,
        None, None, done, None, None, (),
    )  # fmt: skip


def sorting_round(number: int) -> RoundDone:
    return round_done(number, success_by_task={"sort": 0.5}, foreign_groups_used=3)


def test_controls_and_direction_marks_become_codes_and_the_rest_stays() -> None:
    assert printable("héllo → 世界") == "héllo → 世界"
    assert printable("a\x1b[0m\n\u202e\x9b") == "a\\x1b[0m\\x0a\\u202e\\x9b"
    assert printable("x" * 300, 10) == "x" * 9 + "…"
    assert printable("\0" * 10, 10) == "\\x00\\x00\\…"  # a code is cut like anything else


def test_a_hostile_peer_name_fakes_no_line_and_moves_no_cursor() -> None:
    (line,) = wording.peer_lines([peer()])
    assert not any(character in line for character in "\x1b\n\r\x9b\u202e")


def test_a_hostile_peer_name_is_no_markup_in_the_panel() -> None:
    console = Console(file=io.StringIO(), width=300, color_system=None)
    console.print(panel(node_status(swarm_status(None)), PeersAnswer((peer(),))))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[bold red]evil[/]" in shown and "\x1b" not in shown


def test_a_node_alone_shows_why_and_how_to_add_a_peer_reachable_address_first() -> None:
    first, second = wording.alone_lines(swarm_status("nobody answered; next try in 4 s")).splitlines()
    assert "nobody answered; next try in 4 s" in first
    assert second.endswith("starling up --peer /ip4/192.0.2.7/tcp/1/p2p/12D3KooWx")
    assert wording.alone_lines(swarm_status(None)) == ""


def test_a_member_of_a_private_cluster_that_is_alone_names_the_invite_and_not_its_address() -> None:
    text = wording.alone_lines(msgspec.structs.replace(swarm_status("nobody answered"), private=True))
    assert "starling invite" in text and "--peer" not in text


def test_status_and_panel_show_what_was_lost_as_plainly_as_what_was_gained() -> None:
    loss = Loss("sort", "practice", 0.76, 90, 90.0, 0.11, 0.65, 100, 100.0, (), "sort has fallen from 0.76 to 0.11.")
    status = msgspec.structs.replace(
        node_status(swarm_status(None), sorting_round(7)), gained="This node gained.", losses=(loss,)
    )
    lines = wording.status_lines(status)
    assert "gained    This node gained." in lines and "lost      sort has fallen from 0.76 to 0.11." in lines
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(panel(status, PeersAnswer(())))
    assert "sort has fallen from 0.76 to 0.11." in console.file.getvalue()  # type: ignore[attr-defined]


def test_status_shows_round_rewards_traffic_and_rejections() -> None:
    text = "\n".join(wording.status_lines(node_status(swarm_status("why"), sorting_round(7))))
    for fact in ("round 7", "sort 0.50", "6.0 kB", "2 clock", "why", "1 min 01 s"):
        assert fact in text
    conversed = msgspec.structs.replace(sorting_round(7), turns_by_task={"grid": (TurnsUsed(4, 8, 6),)})
    (line,) = [each for each in wording.status_lines(node_status(swarm_status(None), conversed)) if "grid" in each]
    assert line.startswith("turns ") and "4.0" in line and "0.75" in line


def test_rounds_come_as_a_line_once_in_a_while_and_the_last_one_always() -> None:
    out = io.StringIO()
    observer = PlainObserver(out)
    for number in range(1, 101):
        observer.on_event(b"", sorting_round(number))
    observer.on_event(
        b"", Stopped(time_seconds=1.0, round=100, because="rounds", tokens_generated_total=1, checkpoint=None)
    )
    lines = out.getvalue().splitlines()
    assert "round 1 " in lines[0] and "round 100 " in lines[-1] and len(lines) < 10


def test_what_was_planned_is_one_line() -> None:
    out = io.StringIO()
    planned = Planned(
        time_seconds=1.0, model="m", choice="every weight\nand a forged", adapter_rank=0, four_bit=False,
        dtype="float32", rows=128, batch_tokens=8192, recompute=False, optimizer="adamw", averages=True, store_bytes=1,
        host_bytes=1, host_limit_bytes=2, device_bytes=None, device_limit_bytes=None,
    )  # fmt: skip
    PlainObserver(out).on_event(encode_event(planned), planned)
    [line] = out.getvalue().splitlines()
    assert "plan: every weight" in line


def test_the_reason_for_training_alone_is_shown_once() -> None:
    out = io.StringIO()
    observer = PlainObserver(out)
    for _ in range(3):
        observer.on_tick(node_status(swarm_status("nobody there")), PeersAnswer(()))
    assert out.getvalue().count("nobody there") == 1


def test_events_pass_unchanged_and_addresses_are_written_once() -> None:
    out = io.StringIO()
    observer = JsonObserver(out)
    fault = Fault(time_seconds=1.0, kind="k", detail="d", round=1, fatal=False)
    observer.on_event(encode_event(fault), fault)
    for _ in range(2):
        observer.on_tick(node_status(swarm_status(None)), PeersAnswer(()))
    lines = out.getvalue().splitlines()
    assert lines[0].encode() == encode_event(fault) and len(lines) == 2
    assert json.loads(lines[1])["event"] == "node"


def test_a_reader_that_goes_away_is_no_error() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    for observer in (PlainObserver(Closed()), JsonObserver(Closed())):
        observer.on_note("one")
        observer.on_note("two")


def test_a_log_stays_within_its_bound_and_keeps_the_newest(tmp_path: Path) -> None:
    log = RollingLog(tmp_path / "logs" / "x.log", max_bytes=1000)
    for number in range(500):
        log.append(f"{number:9}\n".encode())
    older, newer = (tmp_path / "logs" / "x.log.1").read_bytes(), (tmp_path / "logs" / "x.log").read_bytes()
    assert len(older) + len(newer) <= 1000 and newer.endswith(b"499\n") and log.failure is None
    numbers = [int(line) for line in (older + newer).split()]
    assert numbers == list(range(numbers[0], 500))


def test_a_full_disk_is_recorded_and_does_not_end_the_process_that_logs() -> None:
    log = RollingLog(Path("/dev/full"), max_bytes=1000)
    log.append(b"x\n")
    assert log.failure is not None and os.strerror(errno.ENOSPC) in log.failure


@pytest.mark.parametrize(("amount", "text"), [(0, "0 B"), (999, "999 B"), (1234, "1.2 kB"), (5e9, "5.0 GB")])
def test_sizes_have_a_fitting_unit(amount: float, text: str) -> None:
    assert size(amount) == text


def test_counts_of_one_have_no_plural() -> None:
    assert [times(n) for n in (0, 1, 2, 1000)] == ["0 times", "once", "2 times", "1,000 times"]
    assert [counted(n, "peer") for n in (0, 1, 2)] == ["0 peers", "1 peer", "2 peers"]


def test_panel_of_a_terminal_of_80_columns_names_its_peers() -> None:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    long_id = peer_view(PeerStatus("12D3KooW" + "x" * 44, True, (), 0.012, heartbeat("robin"), 1.0, 4, 3, 1, 0.9, None))
    console.print(panel(node_status(swarm_status(None), sorting_round(7)), PeersAnswer((long_id,))))
    (line,) = (line for line in console.file.getvalue().splitlines() if "robin" in line)  # type: ignore[attr-defined]
    assert "round 3" in line and "12 ms" in line and "3 of 4 groups used" in line


def test_a_peer_that_left_keeps_its_name_in_the_list() -> None:
    gone = PeerStatus("12D3KooWx", False, (), None, heartbeat("robin"), None, 4, 3, 1, 0.9, None)
    (line,) = wording.peer_lines([peer_view(gone)])
    assert "  left  " in line and "robin" in line
    loading = PeerStatus(
        "12D3KooWx", True, (), None, msgspec.structs.replace(heartbeat("robin"), model=""), 1.0, 0, 0, 0, 1, None
    )
    assert "robin  still loading" in wording.peer_lines([peer_view(loading)])[0]
    never_heard = msgspec.structs.replace(gone, heartbeat=None)
    assert "  away  " in wording.peer_lines([peer_view(never_heard)])[0]


def test_text_of_several_lines_becomes_one_without_codes() -> None:
    assert one_line("CUDA error:\n    out of\r\n\tmemory\n") == "CUDA error: out of memory"
    assert one_line("a\x1b[2J\nb") == "a\\x1b[2J b"
    fault = Fault(time_seconds=1.0, kind="k", detail="first\nsecond", round=1, fatal=False)
    assert wording.fault_line(fault) == "round 1: k: first second"
    escaped = escaped_event(fault)
    assert isinstance(escaped, Fault) and escaped.detail == "first second"


def test_one_peer_is_no_plural() -> None:
    one = msgspec.structs.replace(swarm_status(None), connected_peers=1)
    assert "1 peer connected" in "\n".join(wording.status_lines(node_status(one)))


def test_sample_for_a_status_is_one_answer_cut_escaped_and_on_one_line() -> None:
    answers = (SampleAnswer("4\nor\x1b[2J" + "5" * 300, False, 0.0, False), SampleAnswer("6", False, 0.0, False))
    group = SampleGroup("ours", None, None, "wren", "add", "2+2?\nAnswer:", None, answers, 4, 0.0)
    question, answer = wording.sample_lines(SamplesAnswer(3, 1.0, group, None, None, None))
    assert question == "question  2+2? Answer:"
    assert answer.startswith("answer    4 or\\x1b[2J555") and answer.endswith("5… (reward 0.00)")
    assert len(answer) < 240
    assert wording.sample_lines(SamplesAnswer(None, None, None, None, None, None)) == []
