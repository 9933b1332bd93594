"""Draws the output of a demonstration: python -m scripts.demo_picture DEMO.json docs/demo.svg

``starling demo --json DEMO.json`` writes the input; the picture is the README's.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from node.demo.plan import DemoReport
from node.demo.show import conclusions, reward_table

COLUMNS = 76


def main(report_file: str, picture_file: str) -> None:
    """Writes the picture as SVG that loads no font from a server."""
    report = msgspec.json.decode(Path(report_file).read_bytes(), type=DemoReport)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False, force_terminal=True)
    console.print(Text(f"$ starling demo --minutes {report.minutes:g}", style="bold"))
    for result in report.models:
        console.print(reward_table(result))
    for line in conclusions(report):
        console.print(Text(line))
    picture = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="starling demo"), flags=re.DOTALL)
    Path(picture_file).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
