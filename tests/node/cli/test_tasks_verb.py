"""``starling tasks``: the list, a sample question, the score of an answer, and what is refused."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import node
from node.cli import main as cli
from node.environments.built_in.all import CONVERSATIONS
from node.tasks.default_swarm import DEFAULT_TASKS
from node.tasks.reasoning_sets import REASONING_TASKS, SAPO_TASKS

ROOT = Path(node.__file__).parents[1]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs ``starling tasks ARGUMENTS`` in this process: (exit code, standard output, standard error)."""
    monkeypatch.setenv("STARLING_HOME", str(tmp_path))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["starling", "tasks", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture
def gsm8k(tmp_path: Path) -> str:
    """A setting that names a data set of one question."""
    path = tmp_path / "gsm8k.jsonl"
    path.write_text(json.dumps({"question": "What is 6 times 7?\nSay it.", "answer": "6*7 = 42\n#### 42"}))
    return f"tasks.jsonl={path}"


def test_the_list_has_every_task_with_an_example_and_marks_what_is_configured(tasks: Run) -> None:
    code, shown, _ = tasks()
    lines = shown.splitlines()
    assert code == 0
    assert [line[:1] for line in lines].index("") == 1 + len(DEFAULT_TASKS) + len(REASONING_TASKS) + len(CONVERSATIONS)
    for task in DEFAULT_TASKS:
        assert any(line.startswith(f"* {task.name} ") for line in lines)
    for worded in REASONING_TASKS:
        assert any(line.startswith(f"  {worded.name} ") and f" {worded.max_new_tokens} " in line for line in lines)
    assert max(map(len, lines)) < 130


def test_a_conversation_is_shown_as_one_that_goes_well(tasks: Run) -> None:
    code, shown, _ = tasks("guess_number", "--seed", "5", "--json")
    sample = json.loads(shown)["sample"]
    assert code == 0
    assert (sample["conversation"][-1]["done"], sample["conversation"][-1]["reward"]) == (True, 1.0)
    assert "> " + sample["conversation"][0]["action"] in tasks("guess_number", "--seed", "5")[1].splitlines()


def test_a_person_plays_until_the_end_of_input(tasks: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("x\n1\n"))
    code, shown, _ = tasks("guess_number", "--play", "--json")
    played = json.loads(shown)
    assert code == 0
    assert ([each["action"] for each in played["conversation"]], played["reward"]) == (["x", "1"], 0.0)


@pytest.mark.parametrize("option", ["--play", "--audit"])
def test_a_question_with_one_answer_is_not_played_or_audited(tasks: Run, option: str) -> None:
    assert tasks(DEFAULT_TASKS[0].name, option)[0] != 0


def test_a_set_is_listed_alone_and_as_json(tasks: Run) -> None:
    code, shown, _ = tasks("sapo", "--json", "--set", "tasks.names=reasoning:bf")
    listed: list[dict[str, Any]] = json.loads(shown)
    assert code == 0
    assert [each["name"] for each in listed] == [task.name for task in SAPO_TASKS]
    assert [each["name"] for each in listed if each["configured"]] == ["reasoning:bf"]
    assert all(each["sets"] == ["sapo", "reasoning"] and each["example"] for each in listed)
    assert {each["scoring"] for each in listed} == {"same text", "same number", "reasoning-gym, audited"}


def test_a_data_set_is_listed_and_the_only_thing_trained_on(tasks: Run, gsm8k: str) -> None:
    listed = json.loads(tasks("--json", "--set", gsm8k)[1])
    assert [each["name"] for each in listed if each["configured"]] == ["gsm8k"]
    assert (listed[0]["scoring"], listed[0]["sets"]) == ("final", [])


def test_a_task_shows_its_question_and_the_right_answer(tasks: Run) -> None:
    code, shown, _ = tasks("reasoning:gcd", "--seed", "7")
    assert code == 0
    assert "seed 7: up to 512 tokens, same number" in shown
    assert "between <answer> and </answer>" in shown
    assert "right answer: 3\n" in shown
    assert json.loads(tasks("reasoning:gcd", "--seed", "7", "--json")[1])["sample"]["right_answer"] == "3"
    assert "any that the scoring accepts" in tasks("reasoning:propositional_logic")[1]


def test_with_a_model_the_prompt_is_shown_as_its_policy_gets_it(tasks: Run) -> None:
    code, shown, _ = tasks("reasoning:gcd", "--model", "builtin:wren")
    assert code == 0
    assert "for builtin:wren, written as it is:" in shown
    assert "a completion ends at <eos>" in shown
    prompt = json.loads(tasks("reasoning:gcd", "--model", "builtin:wren", "--json")[1])["prompt"]
    assert prompt["uses_chat"] is False
    assert prompt["tokens"] > 100
    code, _, error = tasks("reasoning:gcd", "--model", "builtin:wren", "--set", "policy.chat=on")
    assert code == 78
    assert "no chat template" in error


@pytest.mark.parametrize(
    ("answer", "reward", "extracted"),
    [("It is <answer>3</answer>", 1.0, "3"), ("<answer>4</answer>", 0.0, "4"), ("3", 0.0, None)],
)
def test_an_answer_is_scored_and_what_was_judged_is_named(
    tasks: Run, answer: str, reward: float, extracted: str | None
) -> None:
    judged = json.loads(tasks("reasoning:gcd", "--seed", "7", "--score", answer, "--json")[1])["judged"]
    assert (judged["reward"], judged["extracted"], judged["fault"]) == (reward, extracted, None)
    shown = tasks("reasoning:gcd", "--seed", "7", "--score", answer)[1]
    assert shown.startswith(f"reward {reward:g}\n")
    assert ("no answer was found by <answer>" in shown) == (extracted is None)


def test_an_answer_may_come_from_standard_input(tasks: Run, gsm8k: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("6 times 7 is 42.\n"))
    code, shown, _ = tasks("gsm8k", "--set", gsm8k, "--score", "-")
    assert code == 0
    assert shown == "reward 1\njudged, found by last number: 42\nright answer: 42\n"


def test_an_answer_of_several_lines_is_shown_in_several(tasks: Run) -> None:
    right = json.loads(tasks("rotate_matrix", "--json")[1])["sample"]["right_answer"]
    shown = tasks("rotate_matrix", "--score", right)[1]
    assert shown.startswith("reward 1\n")
    assert shown.count(right.replace("\n", "\n  ")) == 2


def test_unknown_names_and_options_without_a_task_are_refused(tasks: Run) -> None:
    code, _, error = tasks("reasoning:gdc")
    assert code == 78
    assert "'reasoning:gcd'" in error
    assert tasks("--score", "1")[0] == 2
    assert tasks("sapo", "--model", "builtin:wren")[0] == 2


def test_listing_and_scoring_need_neither_torch_nor_the_whole_library() -> None:
    code = (
        "import sys; from node.cli import main as cli; sys.argv = ['starling', 'tasks']\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'transformers', 'reasoning_gym', 'sympy', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True)
