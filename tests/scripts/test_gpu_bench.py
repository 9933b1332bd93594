"""The command for the day that a GPU is there: all of it at tiny sizes, and what becomes of a section that fails.

Triton's kernels run in its interpreter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.bench.gpu import __main__ as command
from scripts.bench.gpu.bench import Bench, Check, Figure, SkippedError
from scripts.bench.gpu.processes import run_apart
from scripts.bench.gpu.results import SectionResult, line_of, read_lines, run_section, shares
from scripts.bench.gpu.sections import FIRST_BUDGET, FIRST_SECONDS, SECTIONS, TOTAL_SECONDS, Section
from swarm.exit_codes import ExitCode
from tests.lighter_interpreter import lighten_interpreter

CPU = torch.device("cpu")


def interpreted(names: list[str], path: Path) -> dict[str, Any]:
    lighten_interpreter()
    only = [flag for name in names for flag in ("--only", name)]
    code = command.main(["--interpret", "--json", str(path), *only])
    found: dict[str, Any] = json.loads(path.read_text())
    assert code == ExitCode.DONE, found
    return found


# Tiny, both learners with an adapter do the same, but for the base of one in 4 bits: the dearest section is tried once.
@pytest.mark.parametrize("name", [name for name in SECTIONS if name != "learner-1.5b-adapter-8gb"])
def test_every_section_passes_in_the_interpreter(name: str, tmp_path: Path) -> None:
    found = interpreted([name], tmp_path / "gpu.json")
    section = found["sections"][name]
    assert section["status"] == "passed" and section["checks"] and section["figures"]
    assert found["passed"] and found["scale"] == "interpreted"


def test_a_machine_without_a_gpu_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main([]) == ExitCode.UNREACHABLE
    assert "no GPU" in capsys.readouterr().err


def test_no_budget_exceeds_the_nine_minutes_or_the_two_of_the_first_part() -> None:
    assert TOTAL_SECONDS < 540 and FIRST_SECONDS <= 120
    assert FIRST_BUDGET <= FIRST_SECONDS and max(s.seconds for s in SECTIONS.values()) <= TOTAL_SECONDS - FIRST_SECONDS


def test_on_a_gpu_every_section_runs_at_tiny_sizes_before_any_is_timed_and_the_file_is_written_after_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran, path = list[tuple[str, str]](), tmp_path / "gpu.json"

    def apart(name: str, scale: str, seconds: float) -> tuple[SectionResult, dict[str, Any]]:
        if ran:
            assert json.loads(path.read_text())["device"] == {"name": "a card"}
        ran.append((name, scale))
        assert 0 < seconds <= (FIRST_BUDGET if scale == "tiny" else SECTIONS[name].seconds)
        return SectionResult("failed" if (name, scale) == ("head", "tiny") else "passed"), {"name": "a card"}

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(command, "run_apart", apart)
    monkeypatch.setattr(command, "_side_by_side", lambda: 1)
    assert command.main(["--json", str(path), "--only", "limits", "--only", "head"]) == ExitCode.FAULT
    assert ran == [("limits", "tiny"), ("head", "tiny"), ("limits", "full"), ("head", "full")]
    found = json.loads(path.read_text())
    assert found["first"]["head"]["status"] == "failed" and found["sections"]["head"]["status"] == "passed"
    ran.clear()
    assert command.main(["--first", "--json", str(path), "--only", "limits"]) == ExitCode.DONE
    assert ran == [("limits", "tiny")]
    ran.clear()
    assert command.main(["--timed", "--json", str(path), "--only", "limits"]) == ExitCode.DONE
    assert ran == [("limits", "full")]


def test_a_failing_section_is_recorded_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(bench: Bench) -> None:
        bench.check("before it breaks", 0.0, 1.0)
        raise RuntimeError("an illegal access")

    sections = {"broken": Section(broken, 1), "limits": SECTIONS["limits"]}
    monkeypatch.setattr(command, "SECTIONS", sections)
    path = tmp_path / "gpu.json"
    assert command.main(["--interpret", "--json", str(path)]) == ExitCode.FAULT
    found = json.loads(path.read_text())
    assert not found["passed"]
    assert found["sections"]["broken"]["status"] == "failed"
    assert "RuntimeError: an illegal access" in found["sections"]["broken"]["because"]
    assert found["sections"]["broken"]["checks"][0]["passed"]
    assert found["sections"]["limits"]["status"] == "passed"


def skipped(bench: Bench) -> None:
    raise SkippedError("there is no such path")


def lacking(bench: Bench) -> None:
    raise ModuleNotFoundError("No module named 'transformers'", name="transformers.models")


def mistaken(bench: Bench) -> None:
    raise ModuleNotFoundError("No module named 'node.kernel'", name="node.kernel")


def unequal(bench: Bench) -> None:
    bench.check("a value", 2.0, 1.0)
    bench.check("no number", float("nan"), 1.0)
    bench.same("two things", [1], [1])


@pytest.mark.parametrize(
    ("run", "status", "because"),
    [
        (skipped, "skipped", "there is no such path"),
        (lacking, "skipped", "needs transformers.models, which is not installed here"),
        (mistaken, "failed", "No module named 'node.kernel'"),
        (unequal, "failed", "a value: 2 exceeds 1; no number: nan exceeds 1"),
    ],
)
def test_the_end_of_a_section_says_why(run: Any, status: str, because: str) -> None:
    found, reason = run_section(Section(run, 1), Bench(CPU, "tiny", lambda result: None))
    assert found == status
    assert because in reason


def test_what_a_stopped_process_had_told_is_kept(tmp_path: Path) -> None:
    told = tmp_path / "told"
    check, figure = Check("one", 0.5, 1.0), Figure("two", 3.0, "ms", 0.003, 1e6)
    told.write_text(line_of(check) + line_of(figure) + line_of(Check("three", 0.0, 1.0))[:20])
    result, end = read_lines(told)
    assert (result.checks, result.figures, end) == ([check], [figure], None)


@pytest.mark.processes
def test_a_section_over_its_budget_is_stopped_and_said_to_be() -> None:
    result, _ = run_apart("limits", "full", 0.0)
    assert result.status == "over budget" and result.bad
    assert "stopped after 0 s" in result.because


def test_shares_of_the_card_s_limits_follow_from_bytes_operations_and_seconds() -> None:
    limits = {"copy": 100.0, "bf16 product": 1000.0}
    assert shares(Figure("a", 1.0, "ms", 2.0, bytes_moved=50.0), limits) == {"share_of_copy": 0.25}
    assert shares(Figure("a", 1.0, "ms", 2.0, flops=500.0), limits) == {"share_of_bf16": 0.25}
    assert shares(Figure("a", 1.0, "ms", 2.0, flops=500.0), {}) == {}
    assert SectionResult("skipped").bad is False
