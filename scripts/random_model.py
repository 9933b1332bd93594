"""Writes a model folder of a published model's shape, with random weights and a tokenizer of its whole vocabulary.

    python -m scripts.random_model Qwen2.5-0.5B ./qwen

Nothing is downloaded. The model knows nothing: it is for trying what a real one takes (`starling fit ./qwen`), and that
a node trains it, shares, and exports it.
"""

from __future__ import annotations

import argparse
from itertools import islice, product
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from scripts.bench.common.model_shapes import write_model
from scripts.bench.common.published_shapes import SHAPES, config_of

END = "<|endoftext|>"


def whole_vocabulary(size: int) -> PreTrainedTokenizerFast:
    """Returns a byte-level tokenizer of ``size`` ids. It writes text byte by byte; the other ids are strings of letters
    that only sampling gives."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = [character for character in alphabet if character.isascii() and character.isalpha()]
    longer = ("".join(each) for length in (2, 3, 4) for each in product(letters, repeat=length))
    words = [END, *alphabet, *islice(longer, size - len(alphabet) - 1)]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=END
    )
    return fast


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
    whole_vocabulary(int(config_of(options.shape)["vocab_size"])).save_pretrained(options.folder)
    print(
        f"{options.folder}: {options.shape}'s shape, {sum(f.stat().st_size for f in options.folder.iterdir()):,} bytes"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
