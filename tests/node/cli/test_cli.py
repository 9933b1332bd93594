"""The verbs that need no running node: their output and their exit codes."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from node.cli import main as cli
from node.cli.options import assignments
from node.cli.verbs.up import flags_of
from node.cli.wording import outcome_line, refusal_lines
from node.configuration import Config
from node.doctor.findings import error
from node.events import Fault
from node.supervision.outcome import RunOutcome
from node.supervision.restarts import LOG_FOLLOWS
from node.version import VERSION
from protocol import limits
from protocol.errors import ConfigurationError
from protocol.identity import NodeKey
from swarm.exit_codes import ExitCode


@pytest.fixture
def starling(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Runs ``starling ARGUMENTS`` in this process: (exit code, standard output, standard error)."""
    for name in ("STARLING_SWARM__LAN_DISCOVERY", "STARLING_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("STARLING_HOME", str(tmp_path))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["starling", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def verbs(command: Any, *names: str) -> Iterator[tuple[str, ...]]:
    """The names of every verb, such as ("swarm", "create")."""
    if not hasattr(command, "commands"):
        yield names
        return
    for name, inner in command.commands.items():
        yield from verbs(inner, *names, name)


VERBS = sorted(verbs(typer.main.get_command(cli.app)))


def test_help_names_every_verb_and_every_exit_code(starling) -> None:
    code, shown, _ = starling("--help")
    assert code == 0
    words = set(re.findall(r"[\w-]+", shown))
    assert {names[0] for names in VERBS} <= words
    assert {str(int(code)) for code in ExitCode} <= words


def test_help_has_each_verb_under_one_heading(starling) -> None:
    _, shown, _ = starling("--help")
    parts = {part.partition(" ")[0]: part for part in shown.split("╭─ ")[1:]}
    found = {heading: set(re.findall(r"^│ ([\w-]+) ", part, re.MULTILINE)) for heading, part in parts.items()}
    assert list(found) == ["Options", "Run", "Look", "Share", "Models", "Trouble"]
    assert sorted(verb for heading, each in found.items() if heading != "Options" for verb in each) == sorted(
        {names[0] for names in VERBS}
    )


@pytest.mark.parametrize("names", VERBS, ids=" ".join)
def test_help_of_each_verb_has_an_example_of_it_with_options_that_it_has(starling, names: tuple[str, ...]) -> None:
    code, shown, _ = starling(*names, "--help")
    text = re.sub(r"[\s│]+", " ", shown)
    description, _, options = text.partition("─ Options ")
    assert code == 0 and re.search(rf"Examples?: starling {' '.join(names)}\b", description)
    example = description.rpartition("Example")[2]
    assert set(re.findall(r"--[a-z-]+", example)) <= set(re.findall(r"--[a-z-]+", options))


@pytest.mark.parametrize("verb", ["status", "peers", "down"])
def test_a_verb_for_a_running_node_ends_with_69_and_names_the_verb_that_starts_one(starling, verb: str) -> None:
    code, _, error = starling(verb)
    assert code == 69 and "starling up" in error


def test_an_unknown_verb_or_option_is_a_usage_error(starling) -> None:
    assert starling("stat")[0] == 2
    assert starling("status", "--jsn")[0] == 2


def test_config_show_prints_toml_that_gives_the_same_configuration(starling) -> None:
    code, shown, _ = starling("config", "show", "--set", "swarm.peers=a,b", "--set", 'name=a"b\\c')
    config = Config.model_validate(tomllib.loads(shown))
    assert code == 0 and config.swarm.peers == ("a", "b") and config.name == 'a"b\\c'


def test_config_show_as_json_is_the_same(starling) -> None:
    assert Config.model_validate_json(starling("config", "show", "--json")[1]) == Config()


def test_config_validate_ends_with_78_and_names_the_nearest_key(starling, tmp_path: Path) -> None:
    assert starling("config", "validate")[0] == 0
    (tmp_path / "node.toml").write_text("[learner]\nown_group = 3\n")
    code, _, error = starling("config", "validate")
    assert code == 78 and "learner.own_groups" in error


def test_up_refuses_a_typo_before_it_starts_anything(starling, tmp_path: Path) -> None:
    code, _, error = starling("up", "--set", "objective.clp=0.1")
    assert code == 78 and "objective.clip" in error and list(tmp_path.iterdir()) == []


def test_config_validate_names_the_broken_line_of_a_data_set(starling, tmp_path: Path) -> None:
    data = tmp_path / "own.jsonl"
    data.write_text('{"question": "1", "answer": "1"}\n{"question": \n')
    code, _, error = starling("config", "validate", "--set", f"tasks.jsonl={data}")
    assert code == 78 and "line 2" in error and "→" in error
    code, output, _ = starling("config", "validate", "--json", "--set", f"tasks.jsonl={data}", "--set", "name=a\tb")
    answer = json.loads(output)
    assert code == 78 and not answer["valid"]
    assert [finding["check"] for finding in answer["findings"]] == ["name", "tasks.jsonl"]


def test_up_with_another_model_than_the_directory_holds_is_refused_with_both_ways_out(starling, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "round-000003"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text(
        '{"policy": {"model": "builtin:robin"}, "tasks": {"names": ["spell_backward"]}}'
    )
    shown = Config.model_validate(tomllib.loads(starling("config", "show")[1]))
    assert (shown.policy.model, shown.tasks.names) == ("builtin:robin", ("spell_backward",))
    code, output, _ = starling("up", "--model", "builtin:wren", "--json")
    ended = json.loads(output)
    assert (code, ended["event"], ended["exit_code"]) == (78, "ended", 78)
    (finding,) = ended["findings"]
    assert "builtin:robin" in finding["said"] and "--model builtin:wren" in finding["remedy"]
    assert finding["said"] in ended["because"] and finding["remedy"] in ended["because"]


def test_a_refusal_fits_a_terminal_and_keeps_whole_what_is_to_be_copied() -> None:
    address = "/ip4/192.0.2.7/tcp/4001/p2p/" + "x" * 52
    finding = error("swarm.peers", f"{address} lacks something that takes many words to explain to anybody", "do this")
    lines = refusal_lines((finding, finding), 60)
    assert max(map(len, lines)) <= 2 + len(f"swarm.peers: {address}")
    assert sum(address in line for line in lines) == 2 and "2 things" in lines[0]
    assert all(len(line) <= 60 or address in line for line in lines[1:])


def test_a_refusal_names_the_option_that_was_written(starling) -> None:
    _, _, said = starling("up", "--model", "builtin:wern", "--set", "swarm.listen=1:2")
    assert "policy.model (--model): builtin:wern" in said and "swarm.listen: 1:2" in said


def test_an_outcome_repeats_no_fault_that_was_shown_and_tells_any_other_with_its_log() -> None:
    log = "\n    10:00 ERROR __main__: tasks.x: wrong"
    outcome = RunOutcome(ExitCode.BAD_CONFIGURATION, f"learner failed after 2 s{LOG_FOLLOWS}{log}")
    shown = Fault(time_seconds=1.0, kind="configuration", detail="tasks.x: wrong", round=0, fatal=True)
    assert outcome_line(outcome, shown) == "The node has stopped: learner failed after 2 s"
    other = Fault(time_seconds=1.0, kind="memory", detail="another", round=0, fatal=True)
    assert all("tasks.x: wrong" in outcome_line(outcome, each) for each in (None, other))


def test_a_setting_without_a_value_is_refused(starling) -> None:
    code, _, error = starling("up", "--set", "objective.clip")
    assert code == 78 and "--set objective.clip=VALUE" in error


def test_id_prints_the_peer_id_of_the_key_file(starling, tmp_path: Path) -> None:
    key = NodeKey.load_or_create(tmp_path / "identity.key")
    assert starling("id")[1].strip() == key.peer_id
    assert json.loads(starling("id", "--json")[1])["peer"] == key.peer_id


def test_id_of_a_directory_never_started_is_refused_and_makes_no_key(starling, tmp_path: Path) -> None:
    code, _, error = starling("id")
    assert code == 77 and str(tmp_path / "identity.key") in error and not (tmp_path / "identity.key").exists()


def test_up_with_a_foreign_key_file_is_refused_and_leaves_it_alone(starling, tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    path.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n")
    path.chmod(0o600)
    before = path.read_bytes()
    code, _, error = starling("up")
    assert code == 77 and str(path) in error and path.read_bytes() == before


def test_up_with_a_key_that_others_can_read_is_refused_with_the_remedy(starling, tmp_path: Path) -> None:
    NodeKey.load_or_create(tmp_path / "identity.key")
    (tmp_path / "identity.key").chmod(0o644)
    code, _, error = starling("up")
    assert code == 77 and "chmod 600" in error


def test_version_is_that_of_the_project(starling) -> None:
    versions = json.loads(starling("version", "--json")[1])
    assert versions["starling"] == VERSION and VERSION in starling("version")[1]
    assert versions["protocol"] == f"{limits.PROTOCOL_MAJOR}.{limits.PROTOCOL_MINOR}"


def test_options_that_were_given_are_flags() -> None:
    flags = flags_of({"policy.model": "builtin:finch", "name": None, "swarm.peers": ["/a", "/b"], "rounds": 0})
    assert flags == {"policy.model": "builtin:finch", "swarm.peers": "/a,/b", "rounds": "0"}
    assert flags_of({"name": "", "swarm.peers": []}) == {"name": ""}


def test_an_option_of_its_own_wins_over_set(starling) -> None:
    code, _, said = starling("up", "--model", "builtin:wern", "--set", "policy.model=builtin:wren")
    assert code == 78 and "builtin:wern" in said


def test_demo_refuses_one_model_alone_and_a_file_in_no_directory(starling, tmp_path: Path) -> None:
    assert starling("demo", "--models", "builtin:wren")[0] == 78
    assert starling("demo", "--json", str(tmp_path / "no" / "x.json"))[0] == 78


def test_a_set_text_is_split_at_its_first_equals_sign() -> None:
    assert assignments(["a=b=c"]) == {"a": "b=c"}
    with pytest.raises(ConfigurationError):
        assignments(["a"])


def test_version_option_prints_the_version_and_nothing_else(starling) -> None:
    assert starling("--version") == starling("-V") == (0, f"starling {VERSION}\n", "")


@pytest.mark.parametrize(
    ("words", "offered", "not_offered"),
    [
        ("starling sta", {"status"}, {"up"}),
        ("starling swarm ", {"create", "show", "rotate-key", "apply"}, {"status"}),
        ("starling up --fr", {"--from-peers"}, {"--peer"}),
        ("starling up --set learner.own_g", {"learner.own_groups="}, {"learner.rows="}),
    ],
)
def test_shell_is_offered_what_completes_a_line(
    starling, monkeypatch: pytest.MonkeyPatch, words: str, offered: set[str], not_offered: set[str]
) -> None:
    monkeypatch.setenv("_STARLING_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    code, shown, _ = starling()
    assert code == 0 and offered <= set(shown.split()) and not not_offered & set(shown.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_each_shell_asks_this_command(starling, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setenv("_STARLING_COMPLETE", f"source_{shell}")
    code, script, _ = starling()
    assert code == 0 and "_STARLING_COMPLETE=complete_" in script
