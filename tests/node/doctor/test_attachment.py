"""The page for a report of a fault: what it has, and that it names nobody."""

from __future__ import annotations

import socket
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from node.configuration import Config
from node.doctor.attachment import anonymous, attachment
from node.doctor.findings import error, ok, report_of
from node.home import Home

PEER = "12D3KooWRWzTTFcHo8ZGVpaByyeP3P26mmhjqqGnADKBdqS359tS"
OTHER = "12D3KooWFhySAayoph1u3L282CPwUb79QQKsfEFBeHnWmUSduy6W"


def test_it_has_findings_changed_settings_and_the_ends_of_logs_and_names_neither_machine_nor_peer(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path / "of-ann")
    home.prepare()
    home.log("learner").parent.mkdir(exist_ok=True)
    lines = [f"line {n}" for n in range(100)]
    lines += [
        f"{OTHER} came",
        f"{socket.gethostname()} lost {PEER} at /ip4/192.0.2.7/tcp/4001 and {OTHER}",
        f"{PEER} came at 12:30:45",
    ]
    home.log("learner").write_text("\n".join(lines))
    config = Config.model_validate(
        {"learner": {"learning_rate": 0.123}, "policy": {"model": str(tmp_path / "of-ann" / "my-model")}}
    )
    report = report_of(
        (ok("disk", f"free at {home.path}"), error("port", "0.0.0.0:4001 and [2001:db8::17]:4001 are taken", "x"))
    )
    page = attachment(home, config, report)
    assert "**error** port" in page and "learner.learning_rate = 0.123" in page and "policy.model = 'my-model'" in page
    assert "line 99" in page and "line 30\n" not in page
    assert "lost peer-2 at /ip4/ADDRESS/tcp/4001 and peer-1" in page and "peer-2 came at 12:30:45" in page
    for secret in (str(tmp_path), socket.gethostname(), PEER, OTHER, "192.0.2.7", "2001:db8", "0.0.0.0"):
        assert secret not in page, secret


@given(st.binary(min_size=30, max_size=40), st.text(max_size=30), st.text(max_size=30))
def test_no_token_is_left_in_whatever_text(token: bytes, before: str, after: str) -> None:
    secret = token.hex()
    assert secret not in anonymous(f"{before} {secret} {after}", {})
