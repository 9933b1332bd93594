"""Judges ``policy.model`` and the run that a data directory holds: no torch, no network, a few small files read."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from node.configuration import Config, RememberedRun
from node.configuration.published import is_hub_id
from node.doctor.findings import Finding, error
from node.fit.model_sizes import known_sizes
from node.policy.model_config import check_layers, read_config
from node.policy.model_files import BUILTIN_MODELS, BUILTIN_PREFIX, tokenizer_file, weight_files
from node.policy.safetensors_header import read_header
from node.printable import printable
from protocol.errors import ConfigurationError

SIBLINGS_LOOKED_AT: Final = 200
NEAR: Final = 0.6  # difflib's ratio of a typo
CHECK: Final = "policy.model"
ANY_MODEL: Final = "write builtin:wren, a folder with config.json and safetensors, or a hub id"
FAMILY_FILES: Final = ("config.json", "tokenizer.json")  # equal in two folders of one model
_TRUE: Final = frozenset({"1", "on", "yes", "true"})


def judge_model(name: str, environment: Mapping[str, str]) -> Finding | None:
    """Returns what is wrong with the model's name or files, with the nearest one that exists. None if nothing is, or
    if only the hub could say."""
    shown = printable(name)
    if name.startswith(BUILTIN_PREFIX):
        built_in = builtin_names()
        if name in built_in:
            return None
        return _unknown(name, f"{shown} is not built in: those are {', '.join(built_in)}", built_in)
    folder = Path(name).expanduser()
    try:
        if folder.is_dir():
            return _judge_folder(folder)
    except OSError as failure:
        return error(CHECK, f"{shown} cannot be looked into ({failure.strerror})", "make it readable (chmod)")
    if is_hub_id(name) and not name.startswith((".", "~")):
        return _judge_hub(name, environment)
    known = [*builtin_names(), *(p.removeprefix(BUILTIN_PREFIX) for p in builtin_names()), *sibling_models(folder)]
    return _unknown(name, f"there is no folder {shown}, and it is no built-in model and no hub id", known)


def judge_same_run(
    config: Config, run: RememberedRun | None, spelling: Mapping[str, str], home: Path
) -> Iterator[Finding]:
    """Yields what keeps a start of ``config`` from going on with the checkpoints of ``home``."""
    if run is None or not run.continues:
        return
    before, now = str(run.value("policy.model")), config.policy.model
    if not is_same_model(before, now):
        written = spelling.get("policy.model", "the default")
        yield error(
            CHECK,
            f"{home} holds a run of {printable(before)} ({run.path.name}), and {printable(written)} asks for "
            f"{printable(now)}",
            f"to continue {printable(before)}, leave the model out: starling up --home {home}. "
            f"To begin with {printable(now)}, use another directory: "
            f"starling up --home {home}-{_short(now)} --model {printable(now)}",
        )
        return
    for key, meaning in (("adapter_rank", "the rank of its adapter, 0 for none"), ("four_bit", "its base in 4 bits")):
        trained, wanted = run.value(f"policy.{key}"), getattr(config.policy, key)
        if wanted != "auto" and trained not in (None, "auto") and trained != wanted:
            yield error(
                f"policy.{key}",
                f"{home} holds a run with policy.{key} = {_toml(trained)} ({meaning}), and "
                f"{printable(spelling.get(f'policy.{key}', 'the default'))} asks for {_toml(wanted)}",
                f"leave policy.{key} out to continue, or begin in another directory with --home",
            )


def is_same_model(before: str, now: str) -> bool:
    """Returns whether two names may mean one model. A folder that was moved has the same files; where the folder from
    before is gone, its family decides, which the learner knows."""
    if before == now:
        return True
    if now.startswith(BUILTIN_PREFIX) or before.startswith(BUILTIN_PREFIX):
        return False
    first, second = Path(before).expanduser(), Path(now).expanduser()
    try:
        if not second.is_dir():
            return False
        if not first.is_dir():
            return True
        return first.samefile(second) or all(_content(first, n) == _content(second, n) for n in FAMILY_FILES)
    except OSError:
        return True


def builtin_names() -> list[str]:
    return sorted(f"{BUILTIN_PREFIX}{path.parent.name}" for path in BUILTIN_MODELS.glob("*/config.json"))


def sibling_models(folder: Path) -> list[str]:
    """Returns the model folders beside ``folder``, written as it is."""
    try:
        with os.scandir(folder.parent) as entries:
            names = [entry.name for _, entry in zip(range(SIBLINGS_LOOKED_AT), entries, strict=False) if entry.is_dir()]
    except OSError:
        return []
    return [str(folder.parent / name) for name in sorted(names) if (folder.parent / name / "config.json").is_file()]


def cached_hub_ids(environment: Mapping[str, str]) -> list[str]:
    """Returns the models in the hub's cache, by their ids."""
    names = [path.name.removeprefix("models--") for path in _hub_cache(environment).glob("models--*--*")]
    return sorted(name.replace("--", "/", 1) for name in names)


def _judge_folder(folder: Path) -> Finding | None:
    if not (folder / "config.json").is_file():
        inside = [str(path.parent) for path in sorted(folder.glob("*/config.json"))[:3]]
        return error(
            CHECK,
            f"the folder {folder} has no config.json, so it is no model",
            f"name the model's own folder: {' or '.join(inside)}" if inside else "name a model's folder",
        )
    tokenizer_remedy = "copy the tokenizer.json that belongs to these weights into the folder"
    for check, remedy in ((_check_weights, "fetch the model again"), (_check_tokenizer, tokenizer_remedy)):
        try:
            check(folder)
        except ConfigurationError as failure:
            message = printable(str(failure).removesuffix(f": {remedy}"), 600)
            return error(CHECK, message, f"{remedy}, or name another model with --model")
    return None


def _check_weights(folder: Path) -> None:
    """Raises ``ConfigurationError`` if files of weights are missing, cut short, or fewer than the configuration says.
    Of each file only the header is read."""
    config = read_config(folder)
    check_layers(folder, config, [name for path in weight_files(folder) for name in read_header(path)])
    known_sizes(folder)


def _check_tokenizer(folder: Path) -> None:
    """Raises ``ConfigurationError`` if the tokenizer is missing or damaged."""
    from tokenizers import Tokenizer  # here, since most starts are of built-in models

    path = tokenizer_file(folder)
    try:
        Tokenizer.from_file(str(path))
    except Exception as failure:  # the library raises bare Exception for a file that it cannot read
        raise ConfigurationError(f"{path} is not readable as a tokenizer ({failure})") from failure


def _judge_hub(name: str, environment: Mapping[str, str]) -> Finding | None:
    if environment.get("HF_HUB_OFFLINE", "").lower() not in _TRUE:
        return None
    folder = _hub_cache(environment) / f"models--{name.replace('/', '--')}"
    if any(folder.glob("snapshots/*/config.json")):
        main = folder / "refs" / "main"  # names the snapshot that is loaded
        return _judge_folder(folder / "snapshots" / main.read_text().strip()) if main.is_file() else None
    return _unknown(
        name,
        f"{printable(name)} is no folder here, and not in the hub's cache, which alone is used: HF_HUB_OFFLINE is set",
        [*cached_hub_ids(environment), *sibling_models(Path(name).expanduser())],
        "name a local folder or builtin:wren, or unset HF_HUB_OFFLINE to fetch it",
    )


def _unknown(name: str, message: str, known: Sequence[str], otherwise: str = ANY_MODEL) -> Finding:
    """``otherwise``: the remedy where no known name is near."""
    folded = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=NEAR)
    if not near:
        return error(CHECK, message, otherwise)
    meant = folded[near[0]]
    meant = f"{BUILTIN_PREFIX}{meant}" if f"{BUILTIN_PREFIX}{meant}" in builtin_names() else meant
    return error(CHECK, message, f"did you mean {printable(meant)}?")


def _hub_cache(environment: Mapping[str, str]) -> Path:
    if environment.get("HF_HUB_CACHE"):
        return Path(environment["HF_HUB_CACHE"]).expanduser()
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(environment.get("HF_HOME") or cache).expanduser() / "hub"


def _content(folder: Path, name: str) -> bytes | None:
    path = folder / name
    return path.read_bytes() if path.is_file() else None


def _short(model: str) -> str:
    return "".join(c for c in model.rstrip("/").replace(":", "/").rpartition("/")[2] if c.isalnum() or c in "-_.")


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
