"""The models that learn in comparisons: built in, or made by ``scripts/build_models.py`` when they are first needed."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from scripts.build_models import CARD_FILE, RECIPES, recipe_of

MODELS: Final = tuple(recipe.name for recipe in RECIPES if recipe.is_shipped)
LARGER: Final = tuple(recipe.name for recipe in RECIPES if not recipe.is_shipped)


def setting_of(model: str) -> str:
    """Returns what ``policy.model`` is for one of ``MODELS`` or ``LARGER``."""
    recipe = recipe_of(model)
    return f"builtin:{model}" if recipe.is_shipped else str(recipe.folder / model)


def prepare_model(model: str) -> None:
    """Makes one of ``LARGER`` where it is missing, which takes half an hour. Raises ``CalledProcessError`` where the
    script that makes it fails."""
    recipe = recipe_of(model)
    if recipe.is_shipped or (recipe.folder / model / CARD_FILE).exists():  # the card is written last
        return
    subprocess.run([sys.executable, "-m", "scripts.build_models", "--only", model], check=True, stdout=sys.stderr)
