"""``starling demo`` as a benchmark: each model's mean reward on tasks that it was weak on, alone and together.

python -m scripts.bench.demo [--minutes 3] [--json]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from node.demo.plan import DemoReport
from scripts.bench.common.reporting import Figure, add_json_flag, report


def figures_of(demo: DemoReport) -> list[Figure]:
    """Returns the figures of the models that were weak on some task."""
    found = []
    for model, means in demo.weak_means.items():
        name = model.removeprefix("builtin:")
        for stage in ("alone", "together"):
            mean = means[stage]
            if mean is not None:
                bar = "better than alone" if stage == "together" else None
                found.append(Figure(f"{name}: mean reward on weak tasks, {stage}", mean, "", "higher", bar))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0, help="of training alone, and of training together")
    add_json_flag(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "demo.json"
        command = [sys.executable, "-m", "node.cli.main", "demo", "--minutes", f"{arguments.minutes:g}"]
        subprocess.run([*command, "--json", str(written)], check=True, stdout=sys.stderr)
        demo = msgspec.json.decode(written.read_bytes(), type=DemoReport)
    report("demo", figures_of(demo), as_json=arguments.json)


if __name__ == "__main__":
    main()
