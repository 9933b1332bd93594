"""The configuration tree: every key with its type, its bounds and its default.

A number's comment says its unit and what 0 means; ``node.toml.example`` gives each key's reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import Field, model_validator

from node.configuration.machine import MachineSection
from node.configuration.section import ConfigSection
from protocol import limits

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]
Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(max_length=limits.NAME_BYTES)]

ChatMode = Literal["auto", "on", "off"]
LossName = Literal["dapo", "grpo", "dr_grpo", "gspo", "cispo"]
AdvantageMethod = Literal["turn", "group", "mean", "median", "batch"]
CorrectionName = Literal[
    "byte_aligned",
    "none",
    "ppo",
    "token_tis",
    "sequence_tis",
    "sequence_mask",
    "f_tis",
    "hacpo",
]
BackendName = Literal["torch", "process", "vllm"]
HostName = Literal["py", "go", "auto"]
TrackerName = Literal["tensorboard", "wandb", "trackio"]
ForeignAdvantage = Literal["learner", "group", "capability"]
DtypeName = Literal["float32", "bfloat16"]
OptimizerName = Literal["adamw", "adamw8bit", "host"]
Auto = Literal["auto"]  # chosen from the model and this machine's memory: ``node.fit``

UNWEIGHTED_CORRECTIONS: Final[frozenset[CorrectionName]] = frozenset({"none", "ppo", "sequence_mask"})
GSPO_CORRECTIONS: Final[frozenset[CorrectionName]] = UNWEIGHTED_CORRECTIONS | {"sequence_tis", "hacpo"}

# What "auto" means where nothing was planned: it suits a model that certainly fits.
DEFAULT_ROWS: Final = 128
DEFAULT_BATCH_TOKENS: Final = 8192
DEFAULT_STORE_BYTES: Final = 2 << 30
DEFAULT_HOST: Final = "py"  # with every defence against strangers, and ways to meet behind routers: docs/reach.md


Value = TypeVar("Value")


def chosen(value: Value | Auto, default: Value) -> Value:
    """Returns ``value``, or ``default`` for "auto"."""
    return default if value == "auto" else value


class SwarmSection(ConfigSection):
    """Which swarm the node joins, how it reaches it, and what that may cost."""

    name: Name = "starling"
    listen: str = "/ip4/0.0.0.0/tcp/0"
    peers: tuple[str, ...] = ()  # multiaddrs ending in /p2p/<peer id>
    lan_discovery: bool = True
    port_mapping: Literal["auto", "off"] = "auto"  # never without lan_discovery
    relay: bool = True  # pass on bytes for peers that nobody can dial, while this node can be dialled
    store_bytes: Annotated[int, Field(ge=1 << 20)] | Auto = "auto"
    heartbeat_seconds: Positive = 5.0
    mesh_degree: AtLeastOne = 4
    host: HostName = "auto"  # "auto" is "py": docs/hosts.md


class PolicySection(ConfigSection):
    """Which model is trained, and which of its weights."""

    model: str = "builtin:wren"  # builtin:…, a local folder, or a hub id
    adapter_rank: Count | Auto = "auto"  # 0 trains every weight; above, a LoRA adapter of this rank
    four_bit: bool | Auto = "auto"  # holds the base weights under an adapter in 4 bits each
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    dtype: DtypeName | Auto = "auto"
    chat: ChatMode = "auto"  # whether prompts are written by the tokenizer's chat template
    stages: Annotated[int, Field(ge=0, le=63)] = 0  # other machines that hold layers of the model

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        if self.four_bit is True and self.adapter_rank == 0:
            raise ValueError(
                "four_bit = true and adapter_rank = 0: weights in 4 bits cannot be trained themselves; set "
                'adapter_rank to "auto" or, for example, to 16'
            )
        return self


class TasksSection(ConfigSection):
    """What the policy is trained on: built-in tasks, generators with parameters, JSONL files, plug-ins."""

    # Tasks and sets; empty: the data sets and generators below alone, or else the default swarm's tasks.
    names: tuple[str, ...] = ()
    jsonl: tuple[Path, ...] = ()  # FILE, or FILE?question=FIELD&answer=FIELD
    # "auto", "exact", "final", "math" (needs the extra `math`), a reward plug-in's name, or FILE.py:FUNCTION, which
    # runs on this machine and gets the answers of strangers too.
    jsonl_reward: str = "auto"
    jsonl_instruction: str = ""  # written after every question
    jsonl_max_new_tokens: AtLeastOne = 256
    scoring_workers: AtLeastOne = 1  # processes
    scoring_seconds: Positive = 5.0  # per completion
    reasoning_gym: Mapping[str, Mapping[str, Any]] = {}  # generator → its parameters; ``node.tasks`` checks them


class EngineSection(ConfigSection):
    """Generation."""

    backend: BackendName | Auto = "auto"  # what generates, and in which process: docs/engines.md
    memory_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.45  # of the card, for vLLM
    rows: AtLeastOne | Auto = "auto"  # sequences decoded side by side
    temperature: Positive = 1.0


class LearnerSection(ConfigSection):
    """The round."""

    own_groups: AtLeastOne = 32
    # Of peers, at most, per round; "auto": as many new ones as own groups, and remembered right answers beside them.
    foreign_groups: Count | Auto = "auto"
    completions: Annotated[int, Field(ge=2, le=64)] = 4  # per group
    share_groups: Count = 32  # at most, per round
    resample: Count = 0  # × own_groups: prompts drawn at most to replace own groups of equal rewards; 0 keeps those
    overprovision: Annotated[float, Field(ge=0.0, le=4.0)] = 0.0  # share of groups launched beyond own_groups
    max_staleness: Annotated[int, Field(ge=0, le=64)] = 0  # versions that generation may lag behind; 0: on-policy
    learning_rate: Positive | Literal["auto"] = "auto"  # auto: by the number of trained parameters, then by KL
    weight_decay: NotNegative = 0.0
    gradient_clip: Positive = 1.0  # global norm
    optimizer: OptimizerName | Auto = "auto"  # AdamW, its moments in float32, in 8 bits, or on the host
    batch_tokens: AtLeastOne | Auto = "auto"  # padded tokens of one micro-batch; gradients accumulate over them
    recompute: bool | Auto = "auto"  # activations are computed again in the backward pass instead of kept
    devices: Annotated[int, Field(ge=1, le=64)] = 1  # GPUs, or processes of a CPU, that hold the model in shards
    peer_share: Fraction = 0.25  # of a round's foreign groups, from any one peer while other peers have groups too
    trust_peers: bool = False  # peers have full influence from the start, as members of a private cluster always do
    max_age_seconds: Positive = 300.0  # of a foreign group
    foreign_uses: Annotated[int, Field(ge=1, le=64)] = 4  # of one foreign group, in as many rounds
    replay_seconds: NotNegative = 1.0  # of a round, for playing conversations of peers again; the others are not used

    @property
    def most_foreign_groups(self) -> int:
        """How many foreign groups a round fetches or takes again, at most."""
        return chosen(self.foreign_groups, self.own_groups)


class ResearchSection(ConfigSection):
    """What experiments vary and a node leaves alone. The defaults are what the experiments found best or equal."""

    loss: LossName = "dapo"
    advantage: AdvantageMethod = "turn"
    clip_high: NotNegative = 0.0  # ε_high; 0: as clip
    clip_negative: NotNegative = 0.0  # δ; 0: off
    filter_gamma: Positive = 50.0  # γ, nats a completion
    foreign_advantage: ForeignAdvantage = "learner"
    foreign_choice: Literal["gain", "uniform"] = "gain"
    unusable_logps: Literal["drop", "as_text"] = "drop"
    free_text: Literal["own_words", "copy"] = "own_words"  # how right answers of strangers are learnt
    weights_behind: Annotated[int, Field(ge=0, le=1024)] = 0  # versions that the engine's weights are held back


class ObjectiveSection(ConfigSection):
    """What one optimizer step minimises. A combination without a meaning is refused, with the reason."""

    correction: CorrectionName = "byte_aligned"
    steps: AtLeastOne = 1  # optimizer steps on each batch
    clip: Positive = 0.2  # ε
    ratio_cap: Positive = 2.0  # C
    ratio_floor: NotNegative = 1.0  # c_low, for positive advantages of foreign completions
    kl_weight: NotNegative = 0.0  # β; 0 keeps no reference
    research: ResearchSection = ResearchSection()

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        for is_contradiction, reason in self._contradictions():
            if is_contradiction:
                raise ValueError(reason)
        return self

    def _contradictions(self) -> Iterator[tuple[bool, str]]:
        """Yields for each combination without a meaning whether it is configured here, and the reason against it."""
        loss, correction, clip_negative = self.research.loss, self.correction, self.research.clip_negative
        clip_high = self.research.clip_high or self.clip
        yield (
            loss == "gspo" and correction not in GSPO_CORRECTIONS,
            f'loss "gspo" holds one ratio a completion, and correction "{correction}" weighs each span by its own: '
            'choose correction "none", "ppo", "sequence_tis", "sequence_mask" or "hacpo"',
        )
        yield (
            loss == "cispo" and self.research.clip_high < 1,
            f'loss "cispo" caps the ratio itself at clip_high, here {self.research.clip_high:g}: set it above 1, to '
            "about 5",
        )
        yield (
            loss == "cispo" and clip_negative > 0,
            'loss "cispo" caps the ratio for either sign of the advantage: clip_negative must be 0',
        )
        yield (
            0 < clip_negative <= 1 + clip_high,
            f"clip_negative = {clip_negative:g} would cut into the range up to 1 + clip_high = {1 + clip_high:g}: "
            "set it above, or to 0",
        )
        yield (
            clip_negative > 0 and self.steps == 1 and correction != "ppo",
            f'clip_negative never acts: with steps = 1 and correction "{correction}" the ratio is 1',
        )
        yield (
            correction not in UNWEIGHTED_CORRECTIONS and self.ratio_floor > self.ratio_cap,
            f"ratio_floor = {self.ratio_floor:g} lies above ratio_cap = {self.ratio_cap:g}",
        )


class EvaluationSection(ConfigSection):
    """Measuring the policy on held-out prompts while it trains."""

    every_rounds: Count = 50  # between two evaluations; 0: never
    prompts: Annotated[int, Field(ge=1, le=1000)] = 32  # of each task, in each of two sets


class AveragingSection(ConfigSection):
    """Averaging of weights with peers of the node's own family, by an outer step now and then."""

    every_rounds: Count = 50  # inner steps between two outer steps, H, on average; 0: never
    encoding: Literal["auto", "dense-bf16", "sparse-2bit"] = "auto"  # auto: by the number of trained weights
    partner_seconds: Positive = 30.0  # that one offer of weights stands


class ApiSection(ConfigSection):
    """The HTTP API, which is always on a Unix socket in the data directory."""

    port: Annotated[int, Field(ge=0, le=65535)] | Auto = "auto"  # of 127.0.0.1, besides; 0: none


class CheckpointSection(ConfigSection):
    """The node's own state: kept on disk, and offered to peers of its family that want to start from it."""

    every_rounds: AtLeastOne = 50
    keep: AtLeastOne = 2
    wait_for_room_seconds: NotNegative = 60.0  # at the end of a run, where the disk has no room for its last state
    publish_every_rounds: Count = 20  # while a peer of the family is connected; 0: never
    from_peers: bool = False  # start from the best state that peers announce, if it is better than our own
    recover_from_peers: bool = True  # likewise where checkpoints are here and all of them are damaged
    from_peers_seconds: Positive = 60.0  # to wait for one


class Config(ConfigSection):
    """Everything that a user may set."""

    name: Name = ""  # empty: made from the peer id
    rounds: Count = 0  # to train in one start; 0: until stopped
    tokens: Count = 0  # to generate in one start; 0: no limit
    seed: Count = 0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    trackers: tuple[TrackerName, ...] = ()  # programs that also get the run's numbers
    machine: MachineSection = MachineSection()
    swarm: SwarmSection = SwarmSection()
    policy: PolicySection = PolicySection()
    tasks: TasksSection = TasksSection()
    engine: EngineSection = EngineSection()
    learner: LearnerSection = LearnerSection()
    objective: ObjectiveSection = ObjectiveSection()
    evaluation: EvaluationSection = EvaluationSection()
    averaging: AveragingSection = AveragingSection()
    checkpoint: CheckpointSection = CheckpointSection()
    api: ApiSection = ApiSection()
