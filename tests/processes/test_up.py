"""``starling up`` as a user has it: real processes, real sockets, the built-in model."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.processes


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


def test_a_running_node_is_seen_refuses_a_second_one_and_ends_when_asked(processes: Any) -> None:
    node = processes.up(torch=False)
    node.wait_for_round(2)
    node.wait_for_event("node")
    home = ("--home", str(node.home))

    status = processes.status(node)
    assert status["state"] == "training" and status["round"]["round"] >= 2 and status["pid"] == node.process.pid
    assert status["swarm"]["alone_because"] and status["swarm"]["addresses"]
    said = processes.run("status", *home).stdout
    assert status["peer"] in said and "alone" in said
    assert json.loads(processes.run("peers", *home, "--json").stdout) == {"peers": []}
    assert processes.run("id", *home).stdout.strip() == status["peer"]

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
    assert node.of_kind("stopped")[-1]["because"] == "asked"
    assert processes.none_alive()


def test_a_start_that_cannot_be_is_refused_before_torch_the_transport_or_a_process(processes: Any) -> None:
    import subprocess
    import sys

    program = (
        "import sys\n"
        "def seen(event, of):\n"
        "    if event == 'subprocess.Popen' and sys.executable in map(str, of[:1]): print('STARTED', of[1])\n"
        "sys.addaudithook(seen)\n"
        "sys.argv = ['starling', 'up', '--model', 'builtin:wrne', '--listen', '0.0.0.0:4001']\n"
        "from node.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: print('CODE', end.code)\n"
        "heavy = {'torch', 'transformers', 'libp2p', 'trio', 'aiohttp', 'numpy', 'rich.live'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))"
    )
    home = processes.root / "home"
    environment = processes.environment | {"STARLING_HOME": str(home)}
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["CODE 78", "HEAVY []"]
    assert "did you mean builtin:wren?" in said.stderr and "write /ip4/0.0.0.0/tcp/4001" in said.stderr
    assert not home.exists()


@pytest.mark.parametrize("verb", ["status", "peers", "id", "version", "--help"])
def test_a_reading_verb_imports_neither_torch_nor_the_transport(processes: Any, verb: str) -> None:
    import subprocess
    import sys

    program = (
        f"import sys; sys.argv = ['starling', '{verb}']\n"
        "from node.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'libp2p', 'trio', 'aiohttp', 'numpy'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))"
    )
    environment = processes.environment | {"STARLING_HOME": str(processes.root)}
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "HEAVY []"
