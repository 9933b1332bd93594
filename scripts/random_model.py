"""Writes a model folder of a published model's shape, with random weights and a tokenizer of its whole vocabulary.

    python -m scripts.random_model Qwen2.5-0.5B ./qwen

Nothing is downloaded. The model knows nothing: it is for trying what a real one takes (`starling fit ./qwen`), and that
a node trains it, shares, and exports it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from scripts.bench.common.model_shapes import write_model
from scripts.bench.common.published_shapes import SHAPES


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.folder.exists():
        parser.error(f"{options.folder} exists: name a new folder")
    write_model(options.folder, options.shape, layers=options.layers, seed=options.seed)
    print(
        f"{options.folder}: {options.shape}'s shape, {sum(f.stat().st_size for f in options.folder.iterdir()):,} bytes"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
