"""The file that a user attaches to a report of a fault: everything that helps, and no secret in any spelling."""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.api.access import load_or_create_token
from node.cli.bugreport_text import compose_bugreport, write_bugreport
from node.doctor import machine_facts
from node.doctor.findings import Report
from node.doctor.machine_facts import TorchFacts
from node.home import Home
from node.masking import HIDDEN, Mask, secrets_of
from node.version import SOFTWARE
from protocol import base58
from protocol.cluster.invite import decode_invite
from protocol.errors import ConfigurationError, StorageError
from protocol.identity import NodeKey
from swarm.cluster.cluster_files import cluster_files, current_psk, read_cluster, read_psk

Starling = Callable[..., tuple[int, str, str]]
HUB_TOKEN = "hf_" + "AbCdEfGh" * 4


@pytest.fixture
def starling(starling: Starling, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Starling:
    """Runs the command in a data directory that has founded a cluster. Returns exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    assert starling("swarm", "create", "--private", "--name", "lab")[0] == 0
    return starling


def spelled(secret: bytes) -> list[str]:
    """Ways to write a secret, by itself or in something longer; written independently of the code under test."""
    wrapped = [base64.b64encode(b"\0" * before + secret + b"\0" * 3).decode() for before in range(3)]
    urlsafe = [text.replace("+", "-").replace("/", "_") for text in wrapped]
    plain = [base64.b64encode(secret).decode(), base64.urlsafe_b64encode(secret).decode().rstrip("=")]
    return [secret.hex(), secret.hex().upper(), base58.to_text(secret), repr(secret)[2:-1], *plain, *wrapped, *urlsafe]


def recognisable(text: str) -> str:
    """The part of a spelled secret that must not be seen: base64's ends depend on what stands beside it."""
    return text[4:-8]


def test_report_has_every_part_and_holds_no_secret_of_the_directory_in_any_spelling(
    starling: Starling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_facts, "torch_facts", lambda *_: TorchFacts(None, "not examined", False))
    monkeypatch.setenv("STARLING_SWARM__LAN_DISCOVERY", "false")  # or doctor listens for other nodes
    home = Home(tmp_path / "home")
    files = cluster_files(home.path)
    before = read_psk(files)
    assert starling("swarm", "rotate-key")[0] == 0
    invite = starling("invite")[1].strip()
    token = load_or_create_token(home.api_token)
    monkeypatch.setenv("HF_TOKEN", HUB_TOKEN)
    monkeypatch.setenv("STARLING_JOIN", invite)
    after = current_psk(files, read_cluster(files))
    opened = decode_invite(invite)
    keys = [NodeKey.load(home.key).private_bytes, NodeKey.load(files.owner_key).private_bytes]
    secrets = [*keys, before, after, opened.secret, opened.psk]
    assert before != after and len({*secrets}) == 5  # the invite holds the newer pre-shared key
    texts = [text for secret in secrets for text in spelled(secret)]
    texts += [token, invite, invite.removeprefix("starling://1"), HUB_TOKEN, *home.key.read_text().splitlines()[1:-1]]
    # The invite's own secret lies nowhere but in the invite, so no log of this node could spell it otherwise.
    logged = [text for text in texts if text not in spelled(opened.secret)]
    log = home.log("swarm")
    log.parent.mkdir()
    lines = "".join(f"said {text} in line {number}\n" for number, text in enumerate(logged))
    log.write_text(f"{lines}the end\x1b[2J\n")
    home.metrics.write_text('{"event":"usage","a":1}\n{"event":"fault","detail":"Authorization: Bearer x.y-z"}\n')
    (home.path / "node.toml").write_text(f'name = "{token}"\n')

    code, output, _ = starling("bugreport")
    (path,) = tmp_path.glob("starling-bugreport-*.txt")
    report = path.read_text()
    assert code == 0 and str(path) in output
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for text in texts:
        assert recognisable(text) not in report and recognisable(text) not in output
    for part in (SOFTWARE, "== doctor ==", "[learner]", "starling up", "lab", "the end\\x1b", HIDDEN):
        assert part in report
    assert '"event":"fault"' in report and '"usage"' not in report and "Bearer x" not in report
    assert report.count("in line") == len(logged)


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "fault.txt"
    write_bugreport("first", path)
    with pytest.raises(StorageError, match=str(path)):
        write_bugreport("second", path)
    assert path.read_text() == "first"


def test_a_part_that_fails_gives_its_reason_and_the_other_parts_are_there(starling: Starling, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    (home.path / "node.toml").write_text("nmae = 1\n")
    psk = cluster_files(home.path).psk
    psk.chmod(0o644)

    def examine(*_: object) -> Report:
        raise ConfigurationError("no doctor here")

    report = compose_bugreport(home, os.environ, 0.0, examine=examine)
    for part in ("1970-01-01", "no doctor here", "nmae", "chmod 600", "== log of the learner ==", "torch"):
        assert part in report
    assert psk.read_text() not in report


@given(st.binary(min_size=16, max_size=40), st.binary(max_size=5), st.binary(max_size=5))
def test_secret_inside_of_something_longer_is_found_in_base64_and_hexadecimal(
    secret: bytes, before: bytes, behind: bytes
) -> None:
    mask = Mask([secret])
    whole = before + secret + behind
    encoded = base64.b64encode(whole).decode()
    shown = mask.masked(f"it is {encoded} and {whole.hex()}")
    assert HIDDEN in shown and secret.hex() not in shown
    inside = encoded[-(-8 * len(before) // 6) : 8 * (len(before) + len(secret)) // 6]
    assert inside not in shown and inside[: len(inside) // 2] not in shown


def test_text_without_a_secret_stays_as_it_is(tmp_path: Path) -> None:
    text = "12D3KooWGzh9qTnPXxhXKUKxYjqfQ1Y5xk9zVQhRZbX6Vn3jK2aB at /ip4/127.0.0.1/tcp/4001, 1,024 tokens"
    assert Mask([]).masked(text) == text
    assert Mask(secrets_of(Home(tmp_path), os.environ)).masked(text) == text
