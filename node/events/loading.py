"""Events until the first round begins: the plan, what is loaded, weights that are taken over from peers."""

from __future__ import annotations

from typing import Literal

from node.events.timed import TimedEvent
from node.policy.model_name import model_name


class Loading(TimedEvent, frozen=True, kw_only=True, tag="loading"):
    """What the learner is loading before its first round."""

    what: str  # "policy", "tasks", "engine", "checkpoint", "devices"
    seconds: float  # since the process started


class Planned(TimedEvent, frozen=True, kw_only=True, tag="planned"):
    """What the learner runs with, so that it fits this machine's memory. Reported before anything is loaded."""

    model: str
    choice: str  # in one line, with the peak and why
    adapter_rank: int  # 0: every weight is trained
    four_bit: bool
    dtype: str
    rows: int  # at the start; fewer after memory ran out
    batch_tokens: int  # likewise
    recompute: bool
    optimizer: str
    averages: bool  # there is room to average weights with peers and to publish them
    store_bytes: int
    host_bytes: int  # of main memory, at the peak, by estimate
    host_limit_bytes: int
    device_bytes: int | None  # of a GPU; None without
    device_limit_bytes: int | None


class LearnerReady(TimedEvent, frozen=True, kw_only=True, tag="ready"):
    """Everything is loaded; the first round begins."""

    model: str  # as configured
    family: str  # hex
    tokenizer: str  # hex
    parameters: int
    trainable_parameters: int
    device: str
    dtype: str
    tasks: tuple[str, ...]
    round: int  # rounds already done
    checkpoint: str | None  # path from which it continues
    seconds: float  # since the process started
    rows: int | None = None  # sequences decoded side by side, to begin with
    batch_tokens: int | None = None  # padded tokens of one pass, to begin with
    memory_bytes: int | None = None  # in all, of the device, or of the machine where that is a CPU
    name: str | None = None  # of the model, as its heartbeats say it; None in records of earlier versions

    @property
    def model_name(self) -> str:
        """What the model is called wherever people read it."""
        return self.name or model_name(self.model)


Stage = Literal["looking", "fetching", "verifying", "measuring", "failed", "done", "given_up"]


class StateSyncing(TimedEvent, frozen=True, kw_only=True, tag="catching_up"):
    """The progress of a start from the weights of peers. After "done" or "given_up" the learner continues to load."""

    stage: Stage
    because: str  # in words; names peers only by their ids
    seconds: float  # since the search began
    here_bytes: int = 0  # of the state's blobs, verified and on disk
    total_bytes: int = 0
    holders: int = 0  # peers that announce the state
    weights: str | None = None  # hash of the state, hex
    policy_version: int | None = None
