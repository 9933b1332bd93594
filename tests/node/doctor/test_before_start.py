"""The check before a start: everything that is wrong is told at once, each with what to write instead."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from node.configuration import Config, PolicySection, TasksSection
from node.doctor import task_check
from node.doctor.addresses import judge_listen, judge_peer
from node.doctor.before_start import check_start
from node.doctor.configured_model import judge_model
from node.doctor.findings import Finding, Severity
from node.doctor.machine import judge_room
from node.doctor.machine_facts import DiskFacts, first_checkpoint_bytes
from node.doctor.task_check import check_generators, faults_of, find_faults
from node.home import Home
from node.policy.model_files import BUILTIN_MODELS
from protocol.errors import ConfigurationError
from protocol.identity import NodeKey
from swarm.exit_codes import ExitCode

PEER = NodeKey(bytes(32)).peer_id
LISTEN = {"swarm.listen": "/ip4/127.0.0.1/tcp/0", "api.port": "0"}


def remedy(finding: Finding | None) -> str:
    assert finding is not None and finding.severity is Severity.ERROR and finding.remedy
    return finding.remedy


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("0.0.0.0:4002", "/ip4/0.0.0.0/tcp/4002"),
        ("0.0.0.0:80", "/ip4/0.0.0.0/tcp/80"),
        ("0.0.0.0", "/ip4/0.0.0.0/tcp/4001"),
        ("0.0.0.0/4002", "/ip4/0.0.0.0/tcp/4002"),
        ("[::]:4002", "/ip6/::/tcp/4002"),
        ("[::1]", "/ip6/::1/tcp/4001"),
        (":4002", "/ip4/0.0.0.0/tcp/4002"),
        ("4002", "/ip4/0.0.0.0/tcp/4002"),
        ("*:4002", "/ip4/0.0.0.0/tcp/4002"),
        ("localhost:4002", "/ip4/127.0.0.1/tcp/4002"),
        ("localhost", "/ip4/127.0.0.1/tcp/4001"),
        ("tcp://10.0.0.7:4002", "/ip4/10.0.0.7/tcp/4002"),  # ours
        ("http://10.0.0.8:80/", "/ip4/0.0.0.0/tcp/80"),  # not ours
        ("/ip4/1.2.3.4", "/ip4/0.0.0.0/tcp/4001"),
        ("/ip6/2a00::1/udp/4002", "/ip6/::/tcp/4002"),
        ("1:2", "/ip4/0.0.0.0/tcp/4001"),
        ("node.example:4002", "/ip4/0.0.0.0/tcp/4002"),
        ("node.example:80", "/ip4/0.0.0.0/tcp/4001"),
        ("/dns4/a.b/tcp/1", "/ip4/0.0.0.0/tcp/4001"),
        ("ip4/0.0.0.0/tcp/4002", "/ip4/0.0.0.0/tcp/4002"),
        ("/ip4/0.0.0.0/udp/4002/quic-v1", "/ip4/0.0.0.0/tcp/4002"),
        ("/ip4/0.0.0.0/tcp/4002/ws", "/ip4/0.0.0.0/tcp/4002"),
        (" /ip4/0.0.0.0/tcp/4002", "/ip4/0.0.0.0/tcp/4002"),
        ("/ip4/0.0.0.0/tcp/65536", "/ip4/0.0.0.0/tcp/4001"),
        *((text, "/ip4/0.0.0.0/tcp/4001") for text in ("", "x", "70000", "a:b", "1.2.3.4:99999", "/ip4/1.2.3/tcp/x")),
    ],
)
def test_address_that_a_node_cannot_listen_on_is_refused_with_one_that_it_can(written: str, meant: str) -> None:
    ours = ["127.0.0.1", "10.0.0.7"]
    assert remedy(judge_listen(written, ours)) == f"write {meant}"
    assert judge_listen(meant, ours) is None


@pytest.mark.parametrize("address", ["/ip4/0.0.0.0/tcp/0", "/ip4/127.0.0.1/tcp/65535", "/ip6/::/tcp/4001"])
def test_address_that_a_node_can_listen_on_is_not_refused(address: str) -> None:
    assert judge_listen(address, ()) is None


@pytest.mark.parametrize("host", ["ip4/10.0.0.7", "ip6/::1", "dns4/node.example", "dns/node.example"])
def test_whole_address_of_a_peer_is_not_refused(host: str) -> None:
    assert judge_peer(f"/{host}/tcp/4001/p2p/{PEER}") is None


def test_name_with_text_records_is_a_peer_and_a_damaged_one_is_not() -> None:
    assert judge_peer("/dnsaddr/door.example") is None
    assert judge_peer(f"/dnsaddr/door.example/p2p/{PEER}") is None
    for wrong in ("/dnsaddr/", f"/dnsaddr/door.example/p2p/{PEER[:-1]}", "/dnsaddr/door.example/tcp/1"):
        assert judge_peer(wrong) is not None


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("/ip4/10.0.0.7/tcp/4001", "/ip4/10.0.0.7/tcp/4001/p2p/PEER"),
        (f"/ip4/10.0.0.7/tcp/4001/p2p/{PEER[:-1]}", "copy the whole address"),
        (f"/ip4/10.0.0.7/tcp/4001/p2p/{PEER[:-1]}!", "copy the whole address"),
        (f"/ip4/10.0.0.7/tcp/0/p2p/{PEER}", "starling status"),
        (f"/ip4/10.0.0.7/tcp/4001/p2p/{PEER} ", "starling status"),
        ("starling://1abc", "--join"),
        ("lark", "starling status"),
        ("10.0.0.7:4001", "write /ip4/10.0.0.7/tcp/4001/p2p/PEER, which"),
        ("[::1]:4001", "write /ip6/::1/tcp/4001/p2p/PEER, which"),
        ("http://10.0.0.7:80/", "write /ip4/10.0.0.7/tcp/80/p2p/PEER, which"),
        ("node.example:4001", "write /dns4/node.example/tcp/4001/p2p/PEER, which"),
        *((text, "write its address, which") for text in ("4001", ":4001", "0.0.0.0:4001", "[::]:4001", "1:2")),
    ],
)
def test_address_of_no_peer_is_refused_with_what_to_write(address: str, told: str) -> None:
    assert told in remedy(judge_peer(address))


def model(path: Path) -> Path:
    return Path(shutil.copytree(BUILTIN_MODELS / "wren", path))


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("builtin:wrne", "builtin:wren"),
        ("builtin:Robin", "builtin:robin"),
        ("wren", "builtin:wren"),
        ("finch", "builtin:finch"),
        ("{}/models/smal", "{}/models/small"),
        ("{}/models/Small", "{}/models/small"),
        ("qwen/qwen3-0.6b", "Qwen/Qwen3-0.6B"),
    ],
)
def test_misspelt_model_is_refused_with_the_nearest_that_there_is(tmp_path: Path, name: str, nearest: str) -> None:
    model(tmp_path / "models" / "small")
    (tmp_path / "hub" / "models--Qwen--Qwen3-0.6B" / "snapshots").mkdir(parents=True)
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    found = judge_model(name.format(tmp_path), environment)
    assert remedy(found) == f"did you mean {nearest.format(tmp_path)}?"


def test_model_that_is_there_or_that_only_the_hub_knows_is_not_refused(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--Qwen--Qwen3-0.6B" / "snapshots" / "abc"
    model(snapshot)
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    assert judge_model("Qwen/Qwen3-0.6B", offline) is None
    assert judge_model("owner/unheard-of", {}) is None
    assert "HF_HUB_OFFLINE" in remedy(judge_model("owner/unheard-of", offline))
    assert judge_model(str(model(tmp_path / "own")), {}) is None and judge_model("builtin:finch", {}) is None


def test_folder_without_a_whole_model_is_refused_with_the_one_inside(tmp_path: Path) -> None:
    inside = model(tmp_path / "models" / "small")
    assert str(inside) in remedy(judge_model(str(tmp_path / "models"), {}))
    (inside / "model.safetensors").unlink()
    found = judge_model(str(inside), {})
    assert found is not None and "safetensors" in found.message
    (inside / "config.json").write_text("{")
    found = judge_model(str(inside), {})
    assert found is not None and "config.json" in found.message


def hub_model(tmp_path: Path) -> Path:
    """The snapshot that a name of the hub means, in a cache below ``tmp_path``."""
    cached = tmp_path / "hub" / "models--owner--name"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("abc")
    return model(cached / "snapshots" / "abc")


def cut_weights(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1_000_000)


def rename_layers(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"num_hidden_layers": ', '"num_hidden_layers": 9'))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (cut_weights, "cut short"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "not a readable safetensors"),
        (rename_layers, "layers"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "not readable as a tokenizer"),
    ],
)
def test_model_whose_weights_or_tokenizer_are_damaged_is_refused_before_a_start(
    tmp_path: Path, damage: Callable[[Path], object], told: str
) -> None:
    own, cached = model(tmp_path / "own"), hub_model(tmp_path)
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    assert judge_model(str(own), {}) is None and judge_model("owner/name", offline) is None
    for folder, name in ((own, str(own)), (cached, "owner/name")):
        damage(folder)
        found = judge_model(name, offline)
        assert remedy(found) and found is not None and told in found.message
    assert judge_model("owner/name", {}) is None  # it is fetched before it is loaded


def test_every_data_set_and_name_that_is_wrong_is_named_with_its_lines(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    row = '{"question": "1+1", "answer": "2"}\n'
    good.write_text(row)
    bad.write_text(row + "\n" + "{\n" + row + "[1]\n" + "x\n" * 9)
    entries = (good, bad, tmp_path / "none.jsonl", Path(f"{good}?question=q"))
    faults = list(find_faults(TasksSection(names=("spel_backward",), jsonl=entries)))
    assert [fault.key for fault in faults] == ["tasks.names", "tasks.jsonl", "tasks.jsonl", "tasks.jsonl"]
    assert "spell_backward" in faults[0].message
    assert "line 3" in faults[1].message
    assert (faults[1].broken_lines, faults[1].broken) == ((3, 5, 6, 7, 8), 11)
    assert "none.jsonl" in faults[2].message and "'q'" in faults[3].message
    (twice,) = find_faults(TasksSection(jsonl=(good, good)))
    assert "2 tasks are called 'good'" in twice.message


def test_data_sets_are_read_in_a_process_of_their_own_with_the_same_faults(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{\n")
    section = TasksSection(jsonl=(bad,), jsonl_reward="unheard_of")
    assert faults_of(section) == tuple(find_faults(section)) != ()


def test_reward_that_is_not_installed_is_named_once(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"question": "1", "answer": "2"}\n')
    section = TasksSection(jsonl=(tmp_path / "a.jsonl", tmp_path / "b.jsonl"), jsonl_reward="unheard_of")
    (fault,) = find_faults(section)
    assert fault.key == "tasks.jsonl_reward" and "unheard_of" in fault.message


REWARD = "tasks.jsonl_reward"


@pytest.mark.parametrize(
    ("source", "function", "told"),
    [
        ("def close(:\n", "close", "line 1: invalid syntax"),
        ("def close(): ...\n", "clos", "no function 'clos'"),
        ("import no_such_module\nclose = print\n", "close", "line 1: ModuleNotFoundError"),
        (None, "close", "there is no file"),
    ],
)
def test_reward_file_that_cannot_be_used_is_refused_also_where_no_data_set_is_named(
    tmp_path: Path, source: str | None, function: str, told: str
) -> None:
    if source is not None:
        (tmp_path / "r.py").write_text(source)
    section = TasksSection(jsonl_reward=f"{tmp_path}/r.py:{function}")
    (fault,) = find_faults(section)
    assert fault.key == REWARD and told in fault.message and fault.in_file


def test_wrong_generator_tables_and_the_reward_file_are_refused_before_a_start_with_what_to_correct(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    tables = "[tasks.reasoning_gym.gdc]\n[tasks.reasoning_gym.chain_sum]\nmin_termz = 2\n"
    (home / "node.toml").write_text(f"{tables}[tasks.reasoning_gym.spell_backward]\nmax_new_tokens = 64\n")
    checked = check_start(Home(home), {}, {**LISTEN, REWARD: f"{tmp_path}/none.py:close"})
    assert {each.check for each in checked.errors} == {
        REWARD, "tasks.reasoning_gym.gdc", "tasks.reasoning_gym.chain_sum",
    }  # fmt: skip
    said = {each.check: each for each in checked.errors}
    assert said["tasks.reasoning_gym.chain_sum"].message.startswith("min_termz: ")
    assert "'min_terms'" in said["tasks.reasoning_gym.chain_sum"].message
    assert "FILE.py:FUNCTION" in remedy(said[REWARD]) and "table" in remedy(said["tasks.reasoning_gym.gdc"])
    assert checked.exit_code is ExitCode.BAD_CONFIGURATION


def test_everything_that_is_wrong_is_told_at_once_and_nothing_is_made(tmp_path: Path) -> None:
    home = tmp_path / "home"
    flags = {"swarm.listen": "0.0.0.0:1", "swarm.peers": "10.0.0.7:1,lark", "policy.model": "wren", "name": "x" * 65}
    flags |= {"tasks.names": "unheard_of", "swarm.lisen": "x", "rounds": "-1", "tokens": "many"}
    checked = check_start(Home(home), {}, flags)
    assert [each.check for each in checked.errors] == [
        *("configuration",) * 4, "swarm.listen", "swarm.peers", "swarm.peers", "policy.model", "tasks.names",
    ]  # fmt: skip
    assert all(each.remedy for each in checked.findings)
    assert checked.exit_code is ExitCode.BAD_CONFIGURATION
    assert not home.exists()


def test_generator_that_finds_no_question_is_ended_and_named_with_its_parameters_beside_what_else_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All vertices of a graph of ten are connected, or nearly: three colours are never enough.
    dense = {"num_colors": 3, "edge_probability": 0.99, "min_num_vertices": 10, "max_num_vertices": 10}
    section = TasksSection(reasoning_gym={"graph_color": dense, "gdc": {}})
    monkeypatch.setattr(task_check, "GENERATOR_SECONDS", 0.3)
    unknown, endless = faults_of(section)
    assert unknown.key == "tasks.reasoning_gym.gdc"
    assert endless.key == "tasks.reasoning_gym.graph_color"
    assert "num_colors = 3, edge_probability = 0.99, min_num_vertices = 10" in endless.message
    with pytest.raises(ConfigurationError, match="graph_color: the generator makes no question"):
        check_generators(TasksSection(reasoning_gym={"graph_color": dense}))


def test_start_with_the_defaults_has_no_finding(tmp_path: Path) -> None:
    checked = check_start(Home(tmp_path / "home"), {"HOME": "/"}, LISTEN)
    assert checked.findings == () and checked.exit_code is ExitCode.DONE
    assert checked.resolved.config.policy == PolicySection()


@pytest.mark.parametrize("name", ["é" * 33, "a\tb", "a\u202eb"])
def test_name_that_cannot_be_sent_or_does_not_show_is_refused(tmp_path: Path, name: str) -> None:
    found = check_start(Home(tmp_path / "home"), {}, {**LISTEN, "name": name, "swarm.name": name})
    assert [each.check for each in found.errors] == ["name", "swarm.name"]


def test_directory_that_is_a_file_or_too_deep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "x", tmp_path / ("d" * 120)):
        assert [each.check for each in check_start(Home(path), {}, LISTEN).errors] == ["home"]


def test_port_that_is_taken_is_told_as_out_of_reach_unless_more_is_wrong(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = {**LISTEN, "swarm.listen": f"/ip4/127.0.0.1/tcp/{port}"}
        checked = check_start(Home(tmp_path / "home"), {}, flags)
        worse = check_start(Home(tmp_path / "home"), {}, {**flags, "policy.model": "wren"})
    assert [each.check for each in checked.errors] == ["port"] and str(port) in checked.errors[0].message
    assert checked.exit_code is ExitCode.UNREACHABLE
    assert worse.exit_code is ExitCode.BAD_CONFIGURATION


def test_missing_room_for_the_next_checkpoint_is_a_warning_that_says_how_much_is_needed(tmp_path: Path) -> None:
    found = judge_room(DiskFacts(tmp_path, 3_000_000, None, 6_400_000, is_estimate=True))
    assert found.severity is Severity.WARNING
    assert "3.0 MB free" in found.message and "about 6.4 MB" in found.message
    assert judge_room(DiskFacts(tmp_path, 6_400_000, None, 6_400_000, is_estimate=False)).severity is Severity.OK
    assert judge_room(DiskFacts(tmp_path, 0, None, 0, is_estimate=True)).severity is Severity.OK


def test_first_checkpoint_is_estimated_for_a_folder_and_unknown_for_the_hub() -> None:
    whole = first_checkpoint_bytes(Config())
    adapter = first_checkpoint_bytes(Config(policy=PolicySection(adapter_rank=4)))
    assert whole is not None and adapter is not None and 0 < adapter < whole < 10_000_000
    assert first_checkpoint_bytes(Config(policy=PolicySection(model="owner/name"))) is None
