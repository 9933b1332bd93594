"""One typed configuration tree: flags over environment (``STARLING_…``) over ``node.toml`` over defaults.

Each part of the node takes its own section, never the whole tree. ``node.toml.example`` documents every key.
``load_config`` refuses a key that does not exist, wherever it was written, and names the nearest one that does.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from protocol import limits
from protocol.errors import ConfigurationError

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(max_length=limits.NAME_BYTES)]


class ConfigSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SwarmSection(ConfigSection):
    """Which swarm, how to reach it, what it may cost."""

    name: Name = "starling"
    listen: str = "/ip4/0.0.0.0/tcp/0"
    peers: tuple[str, ...] = ()  # multiaddrs ending in /p2p/<peer id>
    lan_discovery: bool = True
    store_bytes: Annotated[int, Field(ge=1 << 20)] = 2 << 30
    upload_bytes_per_second: Count = 0  # 0: no limit
    heartbeat_seconds: Positive = 5.0
    mesh_degree: AtLeastOne = 4


class PolicySection(ConfigSection):
    """Which model, and which of its weights are trained."""

    model: str = "builtin:wren"  # builtin:…, a local folder, or a hub id
    adapter_rank: Count = 0  # 0 trains every weight; above, a LoRA adapter of this rank
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"


class TasksSection(ConfigSection):
    """What is trained on: names of tasks of the default swarm, JSONL files, plug-ins."""

    names: tuple[str, ...] = ()  # empty: every task of the default swarm
    jsonl: tuple[Path, ...] = ()
    jsonl_reward: str = "exact"  # "exact", "math" (needs the extra `math`), or a reward plug-in's name
    jsonl_max_new_tokens: AtLeastOne = 256
    scoring_workers: AtLeastOne = 1
    scoring_seconds: Positive = 5.0  # per completion


class EngineSection(ConfigSection):
    backend: Literal["torch"] = "torch"
    rows: AtLeastOne = 128  # sequences decoded side by side
    temperature: Positive = 1.0
    weights_behind: Annotated[int, Field(ge=0, le=1024)] = 0  # versions that the weights are held back; 0: newest


class LearnerSection(ConfigSection):
    """The round."""

    own_groups: AtLeastOne = 32
    foreign_groups: Count = 32
    completions: Annotated[int, Field(ge=2, le=64)] = 4  # a group
    share_groups: Count = 32  # at most, a round
    resample: Count = 0  # × own_groups: prompts drawn at most to replace own groups of equal rewards; 0 keeps those
    overprovision: Annotated[float, Field(ge=0.0, le=4.0)] = 0.0  # share of groups launched beyond own_groups
    max_staleness: Annotated[int, Field(ge=0, le=64)] = 0  # versions that generation may lag behind; 0: on-policy
    learning_rate: Positive | Literal["auto"] = "auto"  # auto: by the number of trained parameters
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    gradient_clip: Positive = 1.0
    batch_tokens: AtLeastOne = 8192  # tokens a forward and backward pass may hold; gradients accumulate over passes
    peer_share: Fraction = 0.5  # of the foreign groups of one round, from any one peer while others have groups too
    max_age_seconds: Positive = 300.0  # of a foreign group
    foreign_uses: Annotated[int, Field(ge=1, le=64)] = 4  # of one foreign group, in as many rounds
    foreign_choice: Literal["gain", "uniform"] = "gain"


class AllocationSection(ConfigSection):
    """Which prompts, and how many completions of each, within own_groups × completions a round."""

    method: Literal["uniform", "posterior", "sgpo", "dps"] = "uniform"
    forgetting: Fraction = 0.9  # share of what was observed that is kept from one round to the next
    peer_prior: Annotated[float, Field(ge=0.0)] = 8.0  # completions that others' success weighs; 0: not used


class ObjectiveSection(ConfigSection):
    """What one step minimises. A combination that means nothing is refused, with the reason."""

    loss: Literal["dapo", "grpo", "bnpo", "dr_grpo", "gspo", "cispo"] = "dapo"
    advantage: Literal["group", "mean", "median", "batch", "min_variance"] = "group"
    correction: Literal[
        "byte_aligned",
        "none",
        "ppo",
        "token_tis",
        "sequence_tis",
        "icepop",
        "masked_is",
        "sequence_mask",
        "f_tis",
        "decoupled_ppo",
        "ppo_ewma",
    ] = "byte_aligned"
    divergence: Literal["k3", "log_ratio"] = "k3"  # the estimator that filter_gamma is compared with
    steps: AtLeastOne = 1  # optimizer steps on each batch
    clip: Positive = 0.2  # ε
    clip_high: Annotated[float, Field(ge=0.0)] = 0.0  # ε_high; 0: as clip
    clip_negative: Annotated[float, Field(ge=0.0)] = 0.0  # δ; 0: off
    ratio_cap: Positive = 2.0  # C
    ratio_floor: Annotated[float, Field(ge=0.0)] = 1.0  # c_low, for positive advantages of foreign completions
    floor_annealed: bool = False  # c_low · (1 − V_θ)
    filter_gamma: Positive = 50.0
    kl_weight: Annotated[float, Field(ge=0.0)] = 0.0  # β; 0 keeps no reference
    proximal_window: Positive = 8.0  # W of ppo_ewma, in steps
    ess_learning_rate: bool = False
    foreign_advantage: Literal["learner", "group"] = "learner"
    foreign_value: Literal["class", "prompt"] = "class"
    unusable_logps: Literal["drop", "as_text"] = "drop"

    @model_validator(mode="after")
    def _refuse_what_means_nothing(self) -> Self:
        for meaningless, reason in (*self._contradictions_of_loss(), *self._contradictions_of_correction()):
            if meaningless:
                raise ValueError(reason)
        return self

    def _contradictions_of_loss(self) -> Iterator[tuple[bool, str]]:
        """Each combination that means nothing, whether it is this one, and why."""
        loss, correction, high = self.loss, self.correction, self.clip_high or self.clip
        yield (
            loss == "gspo" and correction not in ("none", "ppo", "sequence_tis", "sequence_mask"),
            f'loss "gspo" holds one ratio a completion, and correction "{correction}" weighs each span by its own: '
            'choose correction "none", "ppo", "sequence_tis" or "sequence_mask"',
        )
        yield (
            loss == "cispo" and self.clip_high < 1,
            f'loss "cispo" caps the ratio itself at clip_high, here {self.clip_high:g}: set it above 1, to about 5',
        )
        yield (
            loss == "cispo" and self.clip_negative > 0,
            'loss "cispo" caps the ratio for either sign of the advantage: clip_negative must be 0',
        )
        yield (
            0 < self.clip_negative <= 1 + high,
            f"clip_negative = {self.clip_negative:g} would cut into the range up to 1 + clip_high = {1 + high:g}: "
            "set it above, or to 0",
        )
        yield (
            self.clip_negative > 0 and self.steps == 1 and correction not in ("ppo", "ppo_ewma"),
            f'clip_negative never acts: with steps = 1 and correction "{correction}" the ratio is 1',
        )

    def _contradictions_of_correction(self) -> Iterator[tuple[bool, str]]:
        correction = self.correction
        unweighted = correction in ("none", "ppo", "sequence_mask")
        yield (
            self.advantage == "min_variance" and unweighted,
            f'advantage "min_variance" weighs rewards by squared importance weights, which correction "{correction}" '
            'does not have: choose another correction, or advantage "mean"',
        )
        yield (
            self.ess_learning_rate and correction in ("none", "sequence_mask"),
            f'ess_learning_rate answers the variance of importance weights, and correction "{correction}" uses none',
        )
        yield (
            self.floor_annealed and (unweighted or self.ratio_floor == 0),
            f'floor_annealed has no floor to anneal: ratio_floor = {self.ratio_floor:g}, correction "{correction}"',
        )
        yield (
            not unweighted and self.ratio_floor > self.ratio_cap,
            f"ratio_floor = {self.ratio_floor:g} lies above ratio_cap = {self.ratio_cap:g}",
        )
        yield (
            correction == "ppo_ewma" and self.ratio_cap <= 1,
            f'correction "ppo_ewma" keeps ratios from 1/ratio_cap to ratio_cap: {self.ratio_cap:g} is not above 1',
        )
        yield (
            self.foreign_value == "prompt" and self.foreign_advantage == "group",
            'foreign_value "prompt" is the baseline of foreign_advantage "learner"; "group" has its own',
        )


class AveragingSection(ConfigSection):
    """Averaging weights with peers of our own family, by an outer step now and then."""

    every_rounds: Count = 50  # inner steps between two outer steps, H, on average; 0: never
    encoding: Literal["auto", "dense-bf16", "sparse-2bit"] = "auto"  # auto: by the number of trained weights
    partner_seconds: Positive = 30.0  # that one offer of weights stands


PORTS_TRIED = 10  # so that several nodes of one machine can be looked at


class ApiSection(ConfigSection):
    """The HTTP API, which is always on a Unix socket in the data directory."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8470  # of 127.0.0.1, besides, or a free one behind it; 0: none

    @property
    def ports(self) -> range:
        """Those to be tried, in order; empty for none."""
        return range(self.port, min(self.port + PORTS_TRIED, 65536)) if self.port else range(0)


class CheckpointSection(ConfigSection):
    """The node's own state: kept on disk, and handed to those of its family who want to start from it."""

    every_rounds: AtLeastOne = 50
    keep: AtLeastOne = 2
    publish_every_rounds: Count = 20  # while somebody of our family is there; 0: never
    from_peers: bool = False  # start from the best state that peers announce, if it is better than our own
    from_peers_seconds: Positive = 60.0  # to wait for one


class Config(ConfigSection):
    """Everything that a user may set."""

    name: Name = ""  # empty: made from the peer id
    rounds: Count = 0  # stop after this many; 0: until told to
    tokens: Count = 0  # stop after generating this many; 0: no limit
    seed: Count = 0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    swarm: SwarmSection = SwarmSection()
    policy: PolicySection = PolicySection()
    tasks: TasksSection = TasksSection()
    engine: EngineSection = EngineSection()
    learner: LearnerSection = LearnerSection()
    objective: ObjectiveSection = ObjectiveSection()
    allocation: AllocationSection = AllocationSection()
    averaging: AveragingSection = AveragingSection()
    checkpoint: CheckpointSection = CheckpointSection()
    api: ApiSection = ApiSection()


ENVIRONMENT_PREFIX = "STARLING_"
NOT_KEYS = frozenset({"STARLING_HOME", "STARLING_JOIN"})  # ours, and no keys of the tree: where it lies, and an invite


def load_config(home: Path, environment: Mapping[str, str], flags: Mapping[str, str]) -> Config:
    """The resolved configuration of the node whose data lie in ``home``.

    ``environment`` is a whole process environment; ``flags`` maps dotted keys to text, as ``--set`` gives them. In
    both, a list is written as JSON or as items separated by commas. Raises ``ConfigurationError``, which says where
    the value stands, what was found, and what is allowed there.
    """
    lowest_first = (file_source(home / "node.toml"), environment_source(environment), flag_source(flags))
    merged: dict[str, Any] = {}
    for source in lowest_first:
        merged = _merge(merged, source.values)
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigurationError(_explain(error, lowest_first)) from None


def known_keys(section: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Every key of the tree, dotted ("objective.clip"), in the order of declaration."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from known_keys(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


@dataclass(frozen=True, slots=True)
class SettingsSource:
    """What one place sets, and how the same place spells each dotted key."""

    values: Mapping[str, Any]  # a tree like the configuration's; every key is known
    spelling: Mapping[str, str]  # dotted key -> "node.toml: objective.clip", "environment: STARLING_OBJECTIVE__CLIP", …


def file_source(path: Path) -> SettingsSource:
    """What the TOML file ``path`` sets; nothing if there is no such file."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        values = {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from None
    empty_sections = {key for key in _leaves(values) if values.get(key) == {} and key in Config.model_fields}
    spelling = {key: f"{path}: {key}" for key in _leaves(values) if key not in empty_sections}
    _refuse_unknown(spelling, spell=str)
    return SettingsSource(values, spelling)


def environment_source(environment: Mapping[str, str]) -> SettingsSource:
    """What variables named STARLING_KEY or STARLING_SECTION__KEY set, in either case of letters."""
    variables = {name.upper(): text for name, text in environment.items()}
    ours = {name: variables[name] for name in variables.keys() - NOT_KEYS if name.startswith(ENVIRONMENT_PREFIX)}
    texts = {name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", "."): text for name, text in ours.items()}
    spelling = {key: f"environment: {_variable(key)}" for key in texts}
    _refuse_unknown(spelling, spell=_variable)
    return SettingsSource(_tree(texts), spelling)


def flag_source(flags: Mapping[str, str]) -> SettingsSource:
    """What ``--set KEY=VALUE`` and the flags of ``starling up`` set."""
    spelling = {key: f"--set {key}" for key in flags}
    _refuse_unknown(spelling, spell=str)
    return SettingsSource(_tree(flags), spelling)


class _Settings(BaseSettings, Config):
    """The tree as pydantic-settings reads it from text."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)


class _TextSource(EnvSettingsSource):
    """Reads variables from a mapping that is passed in instead of from this process's environment."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        super().__init__(_Settings, case_sensitive=False, env_nested_delimiter="__")
        self.env_vars = variables

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        text = str(value).strip()
        return json.loads(text) if text.startswith("[") else [item.strip() for item in text.split(",") if item.strip()]


def _tree(texts: Mapping[str, str]) -> dict[str, Any]:
    """Dotted keys with their text -> a tree of values, lists decoded, numbers left to validation."""
    try:
        return _TextSource({key.replace(".", "__"): text for key, text in texts.items()})()
    except ValueError:
        lists = ", ".join(f"{key} = {text!r}" for key, text in texts.items() if text.lstrip().startswith("["))
        raise ConfigurationError(f'not a list in JSON: {lists}; write ["a", "b"], or a,b without brackets') from None


def _variable(key: str) -> str:
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "__")


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def _refuse_unknown(spelling: Mapping[str, str], *, spell: Callable[[str], str]) -> None:
    """Raises for the first written key that is not in the tree, naming the nearest one as its place would spell it."""
    known = list(known_keys())
    for key, written in spelling.items():
        if key in known:
            continue
        inside = [candidate for candidate in known if candidate.startswith(f"{key}.")]
        same_name = [candidate for candidate in known if candidate.rpartition(".")[2] == key.rpartition(".")[2]]
        nearest = inside or same_name or difflib.get_close_matches(key, known, n=1, cutoff=0.0)
        raise ConfigurationError(f"{written} is not a key of the configuration; the nearest is {spell(nearest[0])}")


def _explain(error: ValidationError, lowest_first: tuple[SettingsSource, ...]) -> str:
    """One line for each value that cannot be: where it was written, what it is, what is wrong with it."""
    lines = []
    for fault in error.errors(include_url=False):
        key = ".".join(str(part) for part in fault["loc"] if not isinstance(part, int))
        if fault["type"] == "value_error":  # of a section as a whole: a combination of its keys
            inside = [written for source in lowest_first for k, written in source.spelling.items() if k.startswith(key)]
            lines.append(f"{fault['ctx']['error']} (from {', '.join(inside)})")
            continue
        written = next((source.spelling[key] for source in reversed(lowest_first) if key in source.spelling), key)
        lines.append(f"{written} = {fault['input']!r}: {fault['msg']}")
    return "\n".join(lines)


def _merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
