"""What a section came to, as it crosses from its process and as it stands in the JSON."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from scripts.bench.gpu.bench import Bench, Check, Figure, SkippedError
from scripts.bench.gpu.sections import Section

Status = Literal["passed", "failed", "skipped", "over budget"]
OURS: Final = ("node", "protocol", "scripts", "starling", "swarm")


@dataclass
class SectionResult:
    status: Status = "failed"
    because: str = ""  # why it was skipped or stopped; a traceback where it failed
    seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    def add(self, result: Check | Figure) -> None:
        if isinstance(result, Check):
            self.checks.append(result)
        else:
            self.figures.append(result)

    @property
    def bad(self) -> bool:
        return self.status not in ("passed", "skipped")

    def as_json(self, limits: Mapping[str, float]) -> dict[str, Any]:
        checks = [asdict(check) | {"passed": check.passed} for check in self.checks]
        figures = [{k: v for k, v in asdict(f).items() if v is not None} | shares(f, limits) for f in self.figures]
        return {
            "status": self.status,
            "because": self.because,
            "seconds": round(self.seconds, 1),
            "checks": checks,
            "figures": figures,
        }


def shares(figure: Figure, limits: Mapping[str, float]) -> dict[str, float]:
    """Returns what share of the card's measured limits a figure reaches; empty where that has no meaning."""
    found = {}
    if figure.seconds and figure.bytes_moved and "copy" in limits:
        found["share_of_copy"] = figure.bytes_moved / figure.seconds / limits["copy"]
    if figure.seconds and figure.flops and "bf16 product" in limits:
        found["share_of_bf16"] = figure.flops / figure.seconds / limits["bf16 product"]
    return found


def run_section(section: Section, bench: Bench) -> tuple[Status, str]:
    """Runs a section in this process. Whatever it raises becomes its status."""
    failed: list[str] = []
    tell = bench.tell

    def watched(result: Check | Figure) -> None:
        if isinstance(result, Check) and not result.passed:
            failed.append(f"{result.name}: {result.value:.4g} exceeds {result.bound:.4g}")
        tell(result)

    bench.tell = watched
    try:
        section.run(bench)
    except SkippedError as reason:
        return "skipped", str(reason)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in OURS:
            return "failed", traceback.format_exc()
        return "skipped", f"needs {error.name}, which is not installed here"
    except Exception:  # noqa: BLE001 whatever it was, it is recorded, and the other sections still run
        return "failed", traceback.format_exc()
    return ("failed", "; ".join(failed)) if failed else ("passed", "")


def line_of(result: Check | Figure) -> str:
    return json.dumps({"kind": type(result).__name__} | asdict(result)) + "\n"


def end_line(status: Status, because: str, device: Mapping[str, Any]) -> str:
    return json.dumps({"kind": "end", "status": status, "because": because, "device": device}) + "\n"


def read_lines(path: Path) -> tuple[SectionResult, dict[str, Any] | None]:
    """Returns what a section's process wrote, and its last line if it reached its end."""
    result, end = SectionResult(), None
    for line in path.read_text().splitlines():
        try:
            told = json.loads(line)
        except ValueError:  # the process was stopped in the middle of its last line
            break
        kind = told.pop("kind")
        if kind == "end":
            end = told
        else:
            result.add(Check(**told) if kind == "Check" else Figure(**told))
    return result, end
