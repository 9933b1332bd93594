"""``starling export``: a trained policy as a folder that transformers, vLLM and peft load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import CheckpointOption, HomeOption, JsonOption, home_of, print_answer, set_compute_defaults
from node.cli.shown_steps import shown_steps

MergeOption = Annotated[
    bool, typer.Option("--merge", help="Merge an adapter into its base model. Default: the adapter alone.")
]
FourBitOption = Annotated[
    bool, typer.Option("--four-bit", help="Store a whole model's linear layers in 4 bits (NF4), as bitsandbytes does.")
]
MeanOption = Annotated[
    bool,
    typer.Option(
        "--mean-of-family",
        help="Export the mean of this node's weights and those that peers with the same model announce now; the "
        "node must run.",
    ),
]
BaseModelOption = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Where the base model is now. Default: as it was when training.")
]


def export(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to make.")],
    home: HomeOption = None,
    checkpoint: CheckpointOption = None,
    merge: MergeOption = False,
    four_bit: FourBitOption = False,
    mean_of_family: MeanOption = False,
    model: BaseModelOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export in FOLDER.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Export trained weights with tokenizer, configuration and a model card. The node may run meanwhile.

    Whole models are written as transformers and vLLM load them, adapters as peft does.

    Examples:

    starling export ./out

    starling export ./out --checkpoint best --merge

    starling export ./small --four-bit
    """
    from node.cli.wording import export_lines
    from node.export.export_result import Request
    from node.export.new_folder import check_target
    from node.library_imports import importing_libraries

    set_compute_defaults()
    check_target(folder, force=force)  # before the libraries are imported, which takes seconds
    with shown_steps() as progress:
        progress.step("importing libraries")
        with importing_libraries():
            from node.export.export import export as exported

        wanted = Request(
            folder,
            checkpoint=checkpoint,
            model=model,
            merge=merge,
            four_bit=four_bit,
            mean_of_family=mean_of_family,
            force=force,
        )
        result = exported(home_of(home), wanted, progress)
    print_answer(result, as_json, lambda: export_lines(result, folder))
