"""Where a model's files lie, without torch: the built-in models, a local folder, or the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from protocol.errors import ConfigurationError

BUILTIN_PREFIX: Final = "builtin:"
BUILTIN_MODELS: Final = Path(__file__).parents[1] / "models"
HUB_FILES: Final = ("*.json", "*.jinja", "model*.safetensors")


def model_folder(name: str) -> Path:
    """Returns the folder of model ``name``: built-in, local, or from the hub (its cache if ``HF_HUB_OFFLINE``).

    Raises ``ConfigurationError`` where there is none.
    """
    if name.startswith(BUILTIN_PREFIX):
        folder = BUILTIN_MODELS / name.removeprefix(BUILTIN_PREFIX)
        if not (folder / "config.json").is_file():
            known = sorted(path.parent.name for path in BUILTIN_MODELS.glob("*/config.json"))
            raise ConfigurationError(
                f"policy.model is {name!r}, which is not built in: choose one of {', '.join(known)}"
            )
        return folder
    local = Path(name).expanduser()
    try:
        if local.is_dir():
            if not (local / "config.json").is_file():
                raise ConfigurationError(
                    f"policy.model is the folder {name!r}, which has no config.json: name a model's folder"
                )
            return local
    except OSError as error:
        raise ConfigurationError(
            f"policy.model is the folder {name!r}, which cannot be looked into ({error}): make it readable"
        ) from error
    if local.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1:
        raise ConfigurationError(
            f"policy.model is {name!r}, and there is no such folder: use builtin:NAME, a folder, or a hub id OWNER/NAME"
        )
    return _hub_folder(name)


def weight_files(folder: Path) -> list[Path]:
    """Returns the safetensors of the model in ``folder``, sorted. Raises ``ConfigurationError`` if one is missing."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ConfigurationError(
            f"{folder} holds no model.safetensors: only safetensors weights are loaded; convert them first"
        )
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        if strange := [name for name in names if Path(name).name != name]:
            raise ValueError(f"{strange[0]!r} is not a file of this folder")
        files = [folder / name for name in names]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{index} is not readable ({error}): fetch the model again") from error
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise ConfigurationError(
            f"{folder} lacks {len(missing)} of the {len(files)} files that its index names, such as {missing[0]}: "
            "fetch the model again"
        )
    return files


def tokenizer_file(folder: Path) -> Path:
    """Returns the fast tokenizer of the model in ``folder``. Raises ``ConfigurationError`` if it is missing."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigurationError(
            f"{folder} has no tokenizer.json: save the model's tokenizer in the fast format beside it"
        )
    return path


def _hub_folder(name: str) -> Path:
    from huggingface_hub import (  # here, since a quarter of a second is too long for a folder
        constants,
        snapshot_download,
    )
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        offline = bool(constants.HF_HUB_OFFLINE)
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES), local_files_only=offline))
    except LocalEntryNotFoundError as error:
        raise ConfigurationError(
            f"policy.model is {name!r}, which is neither a folder nor in the local hub cache, and the hub is offline "
            "or out of reach: unset HF_HUB_OFFLINE, check the network, or name a local folder"
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ConfigurationError(
            f"policy.model is {name!r}, which the hub refused ({error}): check the name, and for a private one log in"
        ) from error
