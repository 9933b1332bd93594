"""The panel on a terminal that takes nothing for a while."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
from rich.console import Console
from rich.live import Live

from node.api.types import ChildStatus, JoinLine, NodeState, NodeStatus, PeersAnswer
from node.cli.progress import SCROLLED_LINES, PanelObserver, PlainObserver

NO_TOKEN = Path("/no/token")
STATUS = NodeStatus(
    version="0", pid=1, home="/h", name="ann", peer="12D3KooWx", model="m", state=NodeState.TRAINING,
    uptime_seconds=5.0, swarm_process=ChildStatus(2, 0, None), learner_process=ChildStatus(3, 0, None), swarm=None,
    loading=None, ready=None, round=None, checkpoint=None, fault=None, notes=(), waiting_for="round 7 under way",
)  # fmt: skip


def test_the_command_to_join_is_one_line_without_a_border_and_shown_once() -> None:
    out = io.StringIO()
    command = "starling up" + " --peer /ip4/192.0.2.7/tcp/1/p2p/12D3KooWx" * 3
    join = JoinLine(private=False, commands=(command,), hint=None, qr=True)
    with Live(console=Console(file=out, force_terminal=True, width=80), auto_refresh=False) as live:
        observer = PanelObserver(live, lambda: True, NO_TOKEN)
        for _ in range(3):
            observer.on_tick(msgspec.structs.replace(STATUS, join=join), PeersAnswer(()))
    (line,) = [line for line in out.getvalue().splitlines() if command in line]
    assert line.endswith(command)


def test_the_panel_leaves_room_for_what_a_terminal_echoes_of_ctrl_c() -> None:
    out = io.StringIO()
    with Live(console=Console(file=out, force_terminal=True, width=80), auto_refresh=False) as live:
        PanelObserver(live, lambda: True, NO_TOKEN).on_tick(STATUS, PeersAnswer(()))
    tops = [line[line.index("╭") : line.index("╮") + 1] for line in out.getvalue().splitlines() if "╭" in line]
    assert tops and all(len(top) == 80 - len("^C") for top in tops)


def test_a_terminal_gets_a_link_with_the_token_on_one_line_and_a_pipe_gets_the_address_alone(tmp_path: Path) -> None:
    token, piped, out = tmp_path / "api.token", io.StringIO(), io.StringIO()
    token.write_text("s" * 43 + "\n")
    status = msgspec.structs.replace(STATUS, page="http://127.0.0.1:8470/")
    with Live(console=Console(file=out, force_terminal=True, width=40), auto_refresh=False) as live:
        observer = PanelObserver(live, lambda: True, token)
        for _ in range(2):
            observer.on_tick(status, PeersAnswer(()))
    assert out.getvalue().count(f"http://127.0.0.1:8470/#token={'s' * 43}") == 1
    plain = PlainObserver(piped)
    for _ in range(2):
        plain.on_tick(status, PeersAnswer(()))
    assert piped.getvalue().count("http://127.0.0.1:8470/") == 1 and "sss" not in piped.getvalue()


def test_no_frame_is_drawn_meanwhile_and_messages_wait_for_it() -> None:
    out = io.StringIO()
    reads = True
    live = Live(console=Console(file=out, force_terminal=True, width=80), auto_refresh=False)
    with live:
        observer = PanelObserver(live, lambda: reads, NO_TOKEN)
        observer.on_tick(STATUS, PeersAnswer(()))
        assert "round 7 under way" in out.getvalue()
        reads = False
        drawn = len(out.getvalue())
        for number in range(SCROLLED_LINES + 5):
            observer.on_note(f"note {number}.")
            observer.on_tick(STATUS, PeersAnswer(()))
        assert len(out.getvalue()) == drawn
        reads = True
        observer.on_tick(STATUS, PeersAnswer(()))
    shown = out.getvalue()[drawn:]
    assert "5 lines were dropped" in shown and "note 5." in shown and f"note {SCROLLED_LINES + 4}." in shown
    assert "note 4." not in shown
