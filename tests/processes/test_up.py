"""``starling up`` as a user has it: real processes, real sockets, the built-in model."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from node.configuration import Config
from tests.hang_guard import HANG_SECONDS
from tests.processes.conftest import ROOT, with_stand_ins

pytestmark = pytest.mark.processes

KEY_FILES = "cryptography.hazmat.primitives.serialization"
SLOW = {
    "torch", "transformers", "libp2p", "trio", "asyncio", "aiohttp", "numpy", "rich.live", "segno",
    "pydantic", "pydantic_settings", "node.configuration", KEY_FILES,
}  # fmt: skip
OF_SETTINGS = {"asyncio", "pydantic", "pydantic_settings", "node.configuration"}  # what reads them imports the others


def test_rounds_asked_for_then_exit_0_and_the_next_start_continues_until_its_input_ends(processes: Any) -> None:
    first = processes.up("--rounds", "3")
    assert first.end() == 0
    assert [event["round"] for event in first.of_kind("round")] == [1, 2, 3]
    assert first.events[-1]["event"] == "ended" and first.events[-1]["because"] == "rounds"
    assert (first.home / "checkpoints" / "round-000003" / "state.json").is_file()
    recorded = [json.loads(line) for line in (first.home / "metrics.jsonl").read_text().splitlines()]
    assert [e for e in recorded if e["event"] != "usage"] == [
        e for e in first.events if e["event"] not in {"note", "node", "ended"}
    ]
    assert any(e["event"] == "usage" and e["learner_bytes"] for e in recorded)
    second = processes.up()
    assert second.wait_for_event("ready")["round"] == 3
    second.wait_for_round(5)
    second.process.stdin.close()
    assert second.end() == 0
    assert [event["round"] for event in second.of_kind("round")][:2] == [4, 5]
    newest = second.of_kind("round")[-1]["round"]
    assert second.of_kind("checkpoint")[-1]["round"] == newest, "what was learnt until the end is saved"
    assert processes.none_alive()


def whole_checkpoint(home: Path, round_number: int) -> Path:
    folder = home / "checkpoints" / f"round-{round_number:06d}"
    folder.mkdir(parents=True)
    state = {"format": 1, "round": round_number, "tensors_sha256": hashlib.sha256(b"tensors").hexdigest()}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "config.json").write_text(json.dumps(Config().model_dump(mode="json")))
    (folder / "tensors.safetensors").write_bytes(b"tensors")
    return folder


def test_a_start_from_an_earlier_checkpoint_keeps_the_later_ones_and_says_where(processes: Any) -> None:
    home = processes.root / "home"
    for number in (10, 20):
        whole_checkpoint(home, number)
    assert processes.run("up", "--home", str(home), "--resume", "15").returncode == 78
    assert (home / "checkpoints" / "round-000020").is_dir()
    node = processes.up("--resume", "10", torch=False)
    said = node.wait_for_event("note")["text"]
    (kept,) = home.glob("checkpoints/later-round-000020-*")
    assert "round 10" in said and str(kept) in said
    assert [path.name for path in home.glob("checkpoints/round-*")] == ["round-000010"]
    node.wait_for_round(1)
    node.process.stdin.close()
    assert node.end() == 0
    assert processes.none_alive()


def test_a_running_node_is_seen_refuses_a_second_one_and_ends_when_asked(processes: Any) -> None:
    node = processes.up(torch=False)
    node.wait_for_round(2)
    node.wait_for_event("node")
    home = ("--home", str(node.home))

    status = processes.status(node)
    assert status["state"] == "training" and status["round"]["round"] >= 2 and status["pid"] == node.process.pid
    assert status["model"] == status["ready"]["name"] == "wren", "as its peers see it"
    assert status["swarm"]["alone_because"] and status["swarm"]["addresses"]
    said = processes.run("status", *home).stdout
    assert status["peer"] in said and "alone" in said
    assert json.loads(processes.run("peers", *home, "--json").stdout) == {"peers": []}
    assert processes.run("id", *home).stdout.strip() == status["peer"]
    assert slow_imports(processes, "status", *home) == slow_imports(processes, "peers", *home) == []
    assert slow_imports(processes, "id", *home) == [KEY_FILES]

    shown = processes.run("config", "show", *home, "--json")
    assert f"process {node.process.pid}" in shown.stderr
    assert json.loads(shown.stdout)["swarm"]["listen"] == "/ip4/127.0.0.1/tcp/0", "the flag of its start"
    text = processes.run("config", "show", *home).stdout
    assert text.startswith("# Settings of the node that runs") and "would differ in swarm.listen" in text
    of_start = processes.run("config", "show", *home, "--start", "--json")
    assert json.loads(of_start.stdout)["swarm"]["listen"] == "/ip4/0.0.0.0/tcp/0" and "start" in of_start.stderr
    processes.run("bugreport", *home, str(processes.root / "report.txt"))
    report = (processes.root / "report.txt").read_text()
    assert "# Settings of the node that runs" in report and 'listen = "/ip4/127.0.0.1/tcp/0"' in report

    second = processes.up(torch=False)
    assert second.end() == 75
    assert "in use" in second.events[-1]["because"] and str(node.process.pid) in second.events[-1]["because"]

    down = processes.run("down", *home)
    assert down.returncode == 0 and node.end() == 0
    assert list(node.home.glob("*.sock")) == []
    assert "no node is running" in processes.run("status", *home).stderr
    assert node.of_kind("stopped")[-1]["because"] == "asked"
    assert processes.none_alive()


def test_a_start_that_cannot_be_is_refused_before_torch_the_transport_or_a_process(processes: Any) -> None:
    program = (
        "import sys\n"
        "def seen(event, of):\n"
        "    if event == 'subprocess.Popen' and sys.executable in map(str, of[:1]): print('STARTED', of[1])\n"
        "sys.addaudithook(seen)\n"
        "sys.argv = ['starling', 'up', '--model', 'builtin:wrne', '--listen', '0.0.0.0:4001']\n"
        "from node.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: print('CODE', end.code)\n"
        f"print('SLOW', *sorted({SLOW - OF_SETTINGS} & set(sys.modules)))"
    )
    home = processes.root / "home"
    environment = processes.environment | {"STARLING_HOME": str(home)}
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["CODE 78", "SLOW"]
    assert "did you mean builtin:wren?" in said.stderr and "write /ip4/0.0.0.0/tcp/4001" in said.stderr
    assert not home.exists()


@pytest.mark.parametrize("verb", ["version", "--help"])
def test_a_verb_that_asks_no_node_imports_nothing_that_takes_long(processes: Any, verb: str) -> None:
    assert slow_imports(processes, verb) == []


def slow_imports(processes: Any, *arguments: str) -> list[str]:
    """What of ``SLOW`` a verb has imported once it has answered."""
    program = (
        "import sys\n"
        "from node.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        f"print('SLOW', *sorted({SLOW} & set(sys.modules)))"
    )
    said = processes.start(sys.executable, "-c", program, *arguments).ended()
    assert said.returncode == 0, said.stderr
    mark, *found = said.stdout.splitlines()[-1].split()
    assert mark == "SLOW"
    return found


def test_a_reader_that_stops_reading_stops_no_node(processes: Any) -> None:
    home = processes.root / "home"
    where = ("--home", str(home))
    command = [*with_stand_ins("learner"), "up", *where, "--json", "--until-input-ends"]
    node = subprocess.Popen(
        [*command, "--listen", "/ip4/127.0.0.1/tcp/0"],
        env=processes.environment,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pipesize=4096,  # two rounds fill it, and nobody reads
    )
    with node:
        try:
            rounds = 0
            while rounds < 40:
                said = processes.run("status", *where, "--json")
                assert node.poll() is None
                rounds = ((json.loads(said.stdout) if said.returncode == 0 else {}).get("round") or {}).get("round", 0)
                time.sleep(0.5)
            assert processes.run("down", *where).returncode == 0
            assert node.wait(HANG_SECONDS) == 0
        finally:
            node.kill()
    assert processes.none_alive()


def test_a_node_in_the_background_is_ready_when_the_command_returns_and_can_rest(processes: Any) -> None:
    home = processes.root / "home"
    where = ("--home", str(home))
    flags = ("--listen", "/ip4/127.0.0.1/tcp/0", "--detach")
    begun = processes.run("up", *where, *flags, stand_ins="learner")
    try:
        assert begun.returncode == 0 and f"starling down --home {home}" in begun.stdout, begun
        status = json.loads(processes.run("status", *where, "--json").stdout)
        assert status["state"] == "training" and f"process {status['pid']}" in begun.stdout
        second = processes.run("up", *where, *flags, stand_ins="learner")
        assert second.returncode == 75 and "in use" in second.stdout
        rests = processes.run("pause", *where, "--for", "2h")
        assert rests.returncode == 0 and "until" in rests.stdout
        while status["learner_process"]["pid"] is not None:
            status = json.loads(processes.run("status", *where, "--json").stdout)
        assert status["state"] == "paused" and status["swarm"]["addresses"]
        shown = processes.run("status", *where).stdout
        assert "paused: asked by its owner, until" in shown and "starling resume" in shown
        assert "trains" in processes.run("resume", *where).stdout
    finally:
        down = processes.run("down", *where)
    assert down.returncode == 0
    told = processes.run("logs", *where, "-n", "100").stdout
    assert "The node is paused" in told and "Training again" in told and "stopped" in told
    assert processes.none_alive()


def test_a_node_in_the_background_that_cannot_start_says_why(processes: Any) -> None:
    home = processes.root / "home"
    flags = ("--listen", "/ip4/127.0.0.1/tcp/0", "--detach")
    said = processes.run("up", "--home", str(home), *flags, "--model", str(home / "nothing here"))
    assert said.returncode == 78 and "nothing here" in said.stdout + said.stderr
    assert processes.none_alive()
