"""Data sets: rows as their users have them, GSM8K's and MATH's among them, and what is refused."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import node
from node.configuration import Config, TasksSection
from node.tasks.default_swarm import DEFAULT_TASKS
from node.tasks.jsonl import JsonlTask
from node.tasks.matching import exact, final, fitting_reward, math, reward_function
from node.tasks.reasoning_sets import REASONING_TASKS, SAPO_TASKS
from node.tasks.registry import load_tasks
from node.tasks.worded import INSTRUCTION
from protocol.errors import ConfigurationError, MalformedError
from protocol.messages import PromptRef

ROOT = Path(node.__file__).parents[1]
# In the form of GSM8K's lines.
GSM8K = [
    {
        "question": "Ann has 3 boxes with 12 eggs each and sells 10 eggs. How many eggs are left?",
        "answer": "She has 3*12 = <<3*12=36>>36 eggs.\nShe keeps 36-10 = <<36-10=26>>26 eggs.\n#### 26",
    },
    {
        "question": "A car costs $9,000 and a truck twice as much. How much do both cost?",
        "answer": "The truck costs 9000*2 = $<<9000*2=18000>>18,000.\nBoth cost $27,000.\n#### 27,000",
    },
    {"question": "It is 3 degrees and falls by 8 degrees. What is it then?", "answer": "3-8 = -5\n#### -5"},
]
# In the form of MATH's.
MATH = [
    {
        "problem": "Compute $\\frac{1}{4} + \\frac{1}{4}$.",
        "level": "Level 1",
        "solution": "The sum is $\\frac{2}{4} = \\boxed{\\frac{1}{2}}$.",
    },
    {"problem": "Solve $2x = 6$.", "level": "Level 1", "solution": "We get $x = \\boxed{3}$."},
]


def write_rows(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path


def load_jsonl(path: Path, reward: str = "auto", instruction: str = "") -> JsonlTask:
    return JsonlTask.load(path, reward=reward, max_new_tokens=32, instruction=instruction)


def rewards(task: JsonlTask, row: int, *completions: str) -> list[float]:
    return task.rewards(task.prompt(task.ref(row)), completions)


def test_rows_are_referred_to_by_content_and_not_by_place(tmp_path: Path) -> None:
    rows = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2=", "answer": 4}]
    (tmp_path / "elsewhere").mkdir()
    here = load_jsonl(write_rows(tmp_path / "sums.jsonl", *rows))
    there = load_jsonl(write_rows(tmp_path / "elsewhere" / "sums.jsonl", *rows))
    other = load_jsonl(write_rows(tmp_path / "other.jsonl", *rows[:1]))
    assert here.ref(1) == there.ref(1) == here.ref(3)
    prompt = there.prompt(here.ref(1))
    assert (prompt.text, prompt.answer) == ("2+2=", "4")
    assert there.rewards(prompt, [" 4\n", "5", ""]) == [1.0, 0.0, 0.0]
    with pytest.raises(MalformedError):
        other.prompt(here.ref(0))
    with pytest.raises(MalformedError):
        here.prompt(PromptRef(here.name, here.version, here.config_hash, 2))


def test_data_sets_alone_are_trained_on_unless_other_tasks_are_named(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "sums.jsonl", {"prompt": "1+1=", "answer": "2"})
    assert set(load_tasks(TasksSection(jsonl=(path,)))) == {"sums"}
    both = load_tasks(TasksSection(names=("default",), jsonl=(path,)))
    assert set(both) == {"sums", *(task.name for task in DEFAULT_TASKS)}


def test_gsm8ks_lines_are_used_as_they_are(tmp_path: Path) -> None:
    task = load_jsonl(write_rows(tmp_path / "gsm8k.jsonl", *GSM8K))
    assert (task.question_field, task.answer_field, task.reward_name) == ("question", "answer", "final")
    assert task.prompt(task.ref(1)).text == GSM8K[1]["question"]
    assert [task.prompt(task.ref(row)).answer for row in range(3)] == ["26", "27,000", "-5"]
    assert rewards(task, 0, "3*12 = 36, less 10 is 26\n#### 26", "so 26 eggs.", "#### 36", "", "26 eggs of 36") == [
        1,
        1,
        0,
        0,
        0,
    ]
    assert rewards(task, 1, "#### 27,000", "#### $27000.00", "$27,000", "<answer>27000 dollars</answer>") == [1] * 4
    assert rewards(task, 1, "27", "#### 27.000", "27,00", "27 000", "2.7e4") == [0] * 5
    assert rewards(task, 2, "it is -5 degrees", "\\boxed{-5}", "\N{MINUS SIGN}5", "5", "3-5") == [1, 1, 1, 0, 0]


def test_maths_lines_are_judged_as_mathematics(tmp_path: Path) -> None:
    task = load_jsonl(write_rows(tmp_path / "math.jsonl", *MATH))
    assert (task.question_field, task.answer_field, task.reward_name) == ("problem", "solution", "math")
    assert task.prompt(task.ref(0)).answer == "\\frac{1}{2}"
    given = ["thus \\boxed{\\frac{2}{4}}", "$\\frac12$", "<answer>0.5</answer>", "<answer>\\frac{1}{2}</answer>"]
    assert rewards(task, 0, *given, "\\boxed{2}", "<answer>2</answer>", "") == [1, 1, 1, 1, 0, 0, 0]
    assert rewards(task, 1, "$x = 3$", "the answer is 3", "4") == [1, 1, 0]


def test_fields_are_named_behind_the_file(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "odd.jsonl", {"query": "1+1=", "answer": "wrong", "gold": "#### 2", "other": 1})
    task = load_jsonl(Path(f"{path}?question=query&answer=gold"))
    assert task.name == "odd"
    assert (task.prompt(task.ref(0)).text, task.prompt(task.ref(0)).answer) == ("1+1=", "2")
    assert rewards(task, 0, "2", "wrong") == [1.0, 0.0]
    assert load_tasks(TasksSection(jsonl=(Path(f"{path}?question=query&answer=gold"),))).keys() == {"odd"}


def test_the_configuration_on_the_page_about_tasks_is_valid_and_its_number_of_tasks_right() -> None:
    page = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    data_set, generators, _ = re.findall(r"^```toml\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert Config.model_validate(tomllib.loads(data_set)).tasks.jsonl == (Path("gsm8k.jsonl"),)
    tasks = load_tasks(Config.model_validate(tomllib.loads(generators)).tasks)
    assert list(tasks) == ["reasoning_gym:chain_sum", "reasoning_gym:gcd"]
    assert f"these nine and {len(REASONING_TASKS) - len(SAPO_TASKS)} more" in page
    assert INSTRUCTION.strip().replace("<", "\\<") in page


def test_a_file_whose_name_has_a_question_mark_is_that_file(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "why?answer=x", {"prompt": "a", "answer": "b"})
    assert load_jsonl(path).answer_field == "answer"


def test_an_instruction_is_written_after_every_question(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "gsm8k.jsonl", *GSM8K)
    section = TasksSection(jsonl=(path,), jsonl_instruction="\nEnd with ####.")
    task = load_tasks(section)["gsm8k"]
    assert task.prompt(task.ref(0)).text == GSM8K[0]["question"] + "\nEnd with ####."


def test_whatever_shapes_prompts_or_rewards_of_a_data_set_changes_the_hash(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", {"prompt": "a", "question": "b", "answer": "1", "solution": "2"})
    tasks = [
        load_jsonl(path),
        load_jsonl(path, reward="exact"),
        load_jsonl(path, instruction="\n"),
        load_jsonl(Path(f"{path}?question=question")),
        load_jsonl(Path(f"{path}?answer=solution")),
        JsonlTask.load(path, reward="auto", max_new_tokens=33),
    ]
    assert len({task.config_hash for task in tasks}) == len(tasks)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "rows.jsonl"),
        ('{"prompt": "a", "answer": "b"}\n{', "line 2"),
        ("[1]", "line 1.*list"),
        ("[" * 100_000, "line 1"),
        ('{"prompt": "a"}', r"no field 'answer' or .*for the answer, but 'prompt': .*\?answer=FIELD"),
        ('{"answer": "a"}', r"no field 'prompt' or .*for the question, but 'answer': .*\?question=FIELD"),
        ('{"prompt": "a", "answer": "b"}\n\n{"prompt": "a"}', "line 3 has no 'answer'"),
        ('{"prompt": "a", "answer": null}', "line 1 has no 'answer'"),
        ('{"prompt": 1, "answer": "a"}', "line 1 has no text in 'prompt'"),
        ('{"prompt": "a", "answer": "a", "completions": 1}', "completions"),
    ],
)
def test_an_unusable_data_set_is_refused_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message):
        load_jsonl(path)


@pytest.mark.parametrize("fields", ["question", "quest=a", "question=absent", "answer=absent", ""])
def test_fields_that_are_not_there_are_refused(tmp_path: Path, fields: str) -> None:
    path = write_rows(tmp_path / "rows.jsonl", {"prompt": "a", "answer": "b"})
    with pytest.raises(ConfigurationError, match=r"question=FIELD|answer=FIELD"):
        load_jsonl(Path(f"{path}?{fields}"))


def test_a_missing_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="absent"):
        load_jsonl(tmp_path / "absent.jsonl")


# The rewards


def test_exact_matching_ignores_white_space_around_either_and_the_reasoning_of_the_right_answer() -> None:
    assert exact(["", ""], [" 42\n", "4 2"], answer=["42", "42"]) == [1.0, 0.0]
    assert exact([""], ["42"], answer=["6*7 = 42\n#### 42"]) == [1.0]


def test_final_answers_that_are_no_numbers_are_compared_as_text() -> None:
    given = ["<answer>Paris</answer>", "\\boxed{paris}", "<answer>not Paris</answer>", "Paris"]
    assert final([""] * 4, given, answer=["Paris"] * 4) == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("answers", "reward"),
    [
        (["x #### 1", "y #### 2"], "final"),
        (["1", "-2,000", "$3.50", "4 km", "5%"], "final"),
        (["so \\boxed{x}", "\\boxed{2}"], "math"),
        (["1", "one"], "exact"),
        (["2x", "1"], "exact"),
        (["10:30"], "exact"),
    ],
)
def test_the_reward_that_fits_follows_from_the_answers(answers: list[str], reward: str) -> None:
    assert fitting_reward(answers) == reward


def test_mathematics_is_matched_by_value() -> None:
    completions = ["so it is $\\frac{2}{4}$", "0.5", "one third: 1/3", "no number", ""]
    assert math([""] * 5, completions, answer=["$\\frac{1}{2}$"] * 5) == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_without_the_optional_package_mathematics_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from node.tasks import matching

    monkeypatch.setitem(sys.modules, "math_verify", None)
    matching._math_verify.cache_clear()
    with pytest.raises(ConfigurationError, match=r"starling-swarm\[math\]"):
        reward_function("math")
    matching._math_verify.cache_clear()


def test_reward_plugins_get_the_answer_as_a_column_whatever_its_field_is(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def reward(prompts: Any, completions: Any, **columns: Any) -> list[float]:
        seen.append(columns)
        return [0.5] * len(completions)

    path = write_rows(tmp_path / "rows.jsonl", {"question": "a", "gold": "b", "level": 3})
    loaded = load_jsonl(Path(f"{path}?answer=gold"), reward="exact")
    task = JsonlTask(**{**vars(loaded), "reward": reward})
    assert rewards(task, 0, "x", "y") == [0.5, 0.5]
    assert seen == [{"gold": ["b", "b"], "level": [3, 3], "answer": ["b", "b"]}]
