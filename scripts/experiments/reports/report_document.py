"""The report of an experiment: Markdown with its command, machine, conditions, tables and plots, all from the results.

A person's additions are in ``NAME.notes.md`` beside the report and are copied word for word, so that writing the report
again loses nothing. Numbers in the generated part come only from runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from scripts.bench.common.reporting import machine


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table. Raises ``ValueError`` unless every row has as many cells as the header."""
    if any(len(row) != len(header) for row in rows):
        raise ValueError(f"rows of {sorted({len(row) for row in rows})} cells under {len(header)} columns")
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '∣') for cell in line)} |" for line in lines)


@dataclass
class Document:
    """A report under construction; ``write`` puts it and its plots into a folder."""

    name: str
    title: str
    intro: str
    command: str
    parts: list[str] = field(default_factory=list)
    plots: dict[str, str] = field(default_factory=dict)  # name of the file, its content

    def section(self, heading: str, *paragraphs: str) -> None:
        self.parts += [f"## {heading}", *(text for text in paragraphs if text)]

    def plot(self, suffix: str, alternative: str, svg: str) -> None:
        file = f"{self.name}{suffix}.svg"
        self.plots[file] = svg
        self.parts.append(f"![{alternative}]({file})")

    def text(self, notes: str) -> str:
        versions = ", ".join(f"{package} {metadata.version(package)}" for package in ("torch", "transformers"))
        head = [
            f"# {self.title}",
            self.intro,
            f"```sh\n{self.command}\n```",
            f"Machine: {machine()}; {versions}; one thread a run. This file is written by that command; the section "
            f"“Notes” is `{self.name}.notes.md`.",
        ]
        tail = ["## Notes", notes.strip()] if notes.strip() else []
        return "\n\n".join([*head, *self.parts, *tail]) + "\n"

    def write(self, folder: Path) -> Path:
        """Writes the report and its plots; returns the report's path."""
        folder.mkdir(parents=True, exist_ok=True)
        notes = folder / f"{self.name}.notes.md"
        path = folder / f"{self.name}.md"
        path.write_text(self.text(notes.read_text(encoding="utf-8") if notes.exists() else ""), encoding="utf-8")
        for name, svg in self.plots.items():
            (folder / name).write_text(svg, encoding="utf-8")
        return path


def conditions_table(conditions: Mapping[str, str], counts: Mapping[str, int]) -> str:
    """Returns a table of the conditions in words, with the number of seeds run."""
    rows = [[name, what, str(counts.get(name, 0))] for name, what in conditions.items()]
    return table(["condition", "what it is", "seeds"], rows)
