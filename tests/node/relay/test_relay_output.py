"""What a relay prints, and what is refused before it starts."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from node.api.join import DEFAULT_SWARM as JOINED_BY_DEFAULT
from node.cli.verbs.relay import OPTIONS
from node.configuration import Config
from node.doctor.before_start import RELAY_LISTEN, check_relay
from node.home import Home
from node.relay.asking import relay_lines
from node.relay.relay_output import DEFAULT_SWARM, EventLines, RelayLines, ready_lines
from swarm.api import ReachStatus, SwarmStatus
from swarm.settings import ServiceSettings

LOOPBACK, PUBLIC = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWx", "/ip4/192.0.2.7/tcp/4001/p2p/12D3KooWx"


def settings(name: str = DEFAULT_SWARM, *, private: bool = False) -> ServiceSettings:
    return ServiceSettings(home="/h", swarm_name=name, swarm_id="ab" * 16, private=private)


def test_it_prints_the_command_with_which_others_join_at_each_address_beyond_this_machine() -> None:
    said = "\n".join(ready_lines("12D3KooWx", [LOOPBACK, PUBLIC], settings()))
    assert f"  starling up --peer {PUBLIC}\n" in said
    assert LOOPBACK not in said
    lab = "\n".join(ready_lines("12D3KooWx", [PUBLIC], settings("the lab")))
    assert f"starling up --peer {PUBLIC} --set 'swarm.name=the lab'\n" in lab
    only_here = "\n".join(ready_lines("12D3KooWx", [LOOPBACK], settings()))
    assert f"starling up --peer {LOOPBACK}\n" in only_here and "--listen /ip4/0.0.0.0/tcp/4001" in only_here
    private = "\n".join(ready_lines("12D3KooWx", [PUBLIC], settings(private=True)))
    assert f"starling invite --address {PUBLIC}\n" in private and "starling up" not in private


def test_the_swarm_that_needs_no_setting_is_the_default_one() -> None:
    assert Config().swarm.name == DEFAULT_SWARM == JOINED_BY_DEFAULT


def test_events_are_lines_with_the_time_and_text_of_peers_is_escaped() -> None:
    out = io.StringIO()
    say = RelayLines(out, settings(), clock=lambda: 0.0)
    say("peers", {"connected": 3, "reservations": 2, "circuits": 1, "relayed_bytes": 2_000_000})
    say("banned", {"peer": "12D3", "reason": "\x1b[31mlied\n"})
    first, second = out.getvalue().splitlines()
    assert first.endswith(
        "3 peers connected; 2 peers reached through this relay, 1 connection relayed now, 2.0 MB passed on"
    )
    assert "\x1b" not in second and second.endswith("lied")


def test_with_json_every_event_is_a_line_and_a_reader_that_has_gone_ends_nothing() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    out = io.StringIO()
    EventLines(out)("left", {"reason": "x"})
    assert json.loads(out.getvalue()) == {"event": "left", "reason": "x"}
    EventLines(Gone())("left", {"reason": "x"})


def test_status_says_that_a_relay_runs_whom_it_relays_for_and_where_it_is() -> None:
    reach = ReachStatus(
        "internet", "peers can dial this node", serves_as_relay=True, reservations=7, relayed_bytes=3000
    )
    status = SwarmStatus("12D3KooWx", "lab", "ab" * 16, (PUBLIC,), 7200.0, 9, None, 1, 1, 0, {}, {}, reach=reach)
    lines = list(relay_lines(status))
    assert lines[0].startswith("relay     12D3KooWx, for 2 h")
    assert "relays    for 7 peers, 0 connections now, 3.0 kB passed on" in lines
    assert lines[-1] == f"address   {PUBLIC}"


def test_a_relay_listens_on_a_port_that_others_can_write_down_unless_another_is_chosen(tmp_path: Path) -> None:
    home, anywhere = Home(tmp_path), "/ip4/127.0.0.1/tcp/0"
    assert check_relay(home, {}, {}).resolved.config.swarm.listen == RELAY_LISTEN
    assert check_relay(home, {}, {"swarm.listen": anywhere}).resolved.config.swarm.listen == anywhere
    chosen = check_relay(home, {"STARLING_SWARM__LISTEN": anywhere}, {})
    assert chosen.resolved.config.swarm.listen == anywhere and not chosen.errors


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        ({"swarm.relay": "false"}, "swarm.relay"),
        ({"swarm.host": "go"}, "swarm.host"),
        ({"swarm.listen": "4001"}, "swarm.listen"),
        ({"swarm.peers": "192.0.2.7:4001"}, "swarm.peers"),
        ({"no.such": "1"}, "configuration"),
    ],
)
def test_settings_with_which_no_relay_can_run_are_refused_by_name(
    flags: dict[str, str], key: str, tmp_path: Path
) -> None:
    checked = check_relay(Home(tmp_path), {}, {"swarm.listen": "/ip4/127.0.0.1/tcp/0", **flags}, OPTIONS)
    assert [finding.check for finding in checked.errors] == [key]
