"""What one model in stages over several machines should cost, by arithmetic: nothing here is measured.

    python -m scripts.bench.stages.expected [--machines 3] [--groups 32] [--completions 4] [--prompt 128] [--own 256]

A round generates completions, then trains on them once; its flops are those of ``node/fit/stages/work.py``.

    training   micro-batches around the ring of ``node/fit/stages/schedule.py``
    decoding   rows in G groups, one after the other around the ring of S machines, t of one group at one of them:
               step = max(G t, S (t + sent + delay), G · sent), the best G of 1 to 4 S
    streamed   one machine that computes every layer as its weights come from where they are kept, for each
               micro-batch twice (forward, backward), whole weights' gradients go back once: max(computed, moved)

Memory is the plan's (``node/fit``), of a stage the same formulas with its own layers, and with what further
micro-batches in flight keep. Flops and bytes a second are nine and seven tenths of what makers publish, as in
``scripts/bench/gpu/expected.py``; those of a processor are assumed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec

from node.fit.footprint import Place, footprint_of
from node.fit.model_sizes import ModelSizes, sizes_from
from node.fit.settings import DeviceKind, MemorySettings
from node.fit.stages.schedule import Sent, StageSeconds, Timeline, best_timeline, ring
from node.fit.stages.work import Round, Training, entering_bytes, layers_by_time, stage_sizes
from node.fit.workload import Workload
from scripts.bench.common.published_shapes import LARGER, SHAPES
from scripts.bench.gpu.expected import CARDS
from scripts.experiments.harness.crossings import Crosses
from scripts.experiments.reports.report_document import table

SHAPES_TRAINED: Final = MappingProxyType({"Qwen2.5-0.5B": SHAPES["Qwen2.5-0.5B"], **LARGER})
RANK: Final = 16
PASS_TOKENS: Final = 1024  # of a micro-batch
BEGUN: Final = 4  # × machines, micro-batches at once, at most
OPTIMIZER_BYTES: Final = 28  # a weight that a step reads and writes: weight, gradient, moments


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    flops: float
    bytes_a_second: float  # of its memory
    streamed_a_second: float  # bytes from where weights are kept that do not fit
    device: DeviceKind


@dataclass(frozen=True, slots=True)
class Link:
    name: str
    bytes_a_second: float  # up
    delay_seconds: float  # one way


PROCESSOR: Final = Machine("processor", 0.15e12, 30e9, 1.5e9, "cpu")  # weights from a disk
_CARD: Final = CARDS["8 GB (RTX 4060)"]
CARD: Final = Machine("8 GB card", _CARD.flops, _CARD.bytes_a_second, 12e9, "cuda")  # from main memory
LAN: Final = Link("1 Gbit/s, .2 ms", 125e6, 0.0002)
HOME: Final = Link("50 Mbit/s, 20 ms", 6.25e6, 0.02)
LINKS: Final = (LAN, HOME)
EXACT: Final = Crosses("exact")
EIGHT_BITS: Final = Crosses("all", bits=8)
ENCODINGS: Final[Mapping[str, Crosses]] = MappingProxyType(
    {
        "bfloat16": EXACT,
        "8 bits": EIGHT_BITS,
        "4 bits": Crosses("all", bits=4, block=16),
        "subspace 1/4": Crosses("subspace", 1 / 4),
        "1/8": Crosses("subspace", 1 / 8),
        "1/16": Crosses("subspace", 1 / 16),
        "1/4 in 8 bits": Crosses("subspace", 1 / 4, bits=8),
        "top 1/16": Crosses("top-k", 1 / 16, feedback=True),
    }
)


def sizes_of(shape: str) -> ModelSizes:
    found = sizes_from(SHAPES_TRAINED[shape], shape)
    assert found is not None
    return found


def layers_of(training: Training, a_round: Round, speeds: Sequence[float]) -> list[int]:
    """Returns how many layers each machine holds, by its speed; the owner, the first one, has the head besides."""
    layer, head = sum(training.layer_flops(a_round)), sum(training.head_flops(a_round))
    layers, seconds = training.sizes.layers, [layer / speed for speed in speeds]
    beside = [head / speeds[0], *[0.0] * (len(speeds) - 1)]
    return layers_by_time(layers, seconds, beside, [0] * len(speeds), [layers] * len(speeds))


def trained(
    training: Training,
    a_round: Round,
    machine: Machine,
    link: Link,
    crosses: Crosses,
    speeds: Sequence[float],
) -> Timeline:
    """Returns the training half of a round over machines of so many times ``machine``'s speed."""
    layer, head = training.layer_flops(a_round), training.head_flops(a_round)
    forward, backward = (each / machine.flops / a_round.micro_batches for each in layer)
    stages = [
        StageSeconds(layers * forward / speed, layers * backward / speed)
        for layers, speed in zip(layers_of(training, a_round, speeds), speeds, strict=True)
    ]
    turn = sum(head) / machine.flops / a_round.micro_batches / speeds[0]
    sent = a_round.tokens * crosses.token_bytes(training.sizes.hidden) / link.bytes_a_second / a_round.micro_batches
    chain = ring(stages, turn, Sent(sent, link.delay_seconds))
    return best_timeline(chain, a_round.micro_batches, BEGUN * len(speeds))[0]


def generated_seconds(
    training: Training, a_round: Round, machine: Machine, link: Link | None, crosses: Crosses, stages: int
) -> float:
    """Returns the seconds in which a round's completions are decoded, weights in bfloat16; prompts not counted."""
    sizes = training.sizes
    elements = sizes.layers * sizes.layer_parameters + sizes.vocabulary * sizes.hidden
    columns = a_round.prompt + a_round.own / 2
    best = float("inf")
    for groups in range(1, 4 * stages + 1):
        rows = a_round.rows / groups
        cached = 2 * 2 * sizes.layers * sizes.keys * columns * rows
        moved = (2 * elements + cached) / stages / machine.bytes_a_second
        step = max(moved, 2.0 * elements * rows / stages / machine.flops)
        sent = 0.0 if link is None else rows * crosses.token_bytes(sizes.hidden) / link.bytes_a_second
        delay = 0.0 if link is None else link.delay_seconds
        best = min(best, max(groups * step, stages * (step + sent + delay), groups * sent))
    return best * a_round.own


def alone_seconds(training: Training, a_round: Round, machine: Machine, streamed: bool) -> tuple[float, float]:
    """Returns generating and training of one machine alone, which holds the model, or gets its weights each time."""
    sizes = training.sizes
    weights = 2.0 * (sizes.layers * sizes.layer_parameters + sizes.vocabulary * sizes.hidden)
    generating = generated_seconds(training, a_round, machine, None, EXACT, 1)
    computed = sum(sizes.layers * of_layer for of_layer in training.layer_flops(a_round))
    computed = (computed + sum(training.head_flops(a_round))) / machine.flops
    if not streamed:
        return generating, computed
    moved = a_round.micro_batches * weights * (4 if training.whole else 2) / machine.streamed_a_second
    moved += OPTIMIZER_BYTES * sizes.parameters / machine.streamed_a_second if training.whole else 0.0
    return max(generating, a_round.own * weights / machine.streamed_a_second), max(computed, moved)


def workload_of(a_round: Round) -> Workload:
    """Returns the round for a node that shares nothing."""
    return Workload(
        prompt_tokens=a_round.prompt,
        answer_tokens=a_round.own,
        own_groups=a_round.groups,
        foreign_groups=0,
        completions=a_round.completions,
        averages=False,
        publishes=False,
    )


def four_bit_bytes(training: Training, a_round: Round) -> int:
    """Returns what an adapter on weights in 4 bits takes of a card."""
    settings = msgspec.structs.replace(smallest(whole=False, device="cuda"), four_bit=True)
    return footprint_of(training.sizes, settings, workload_of(a_round), "cuda").peak_bytes("device")


def stage_bytes(
    training: Training, a_round: Round, device: DeviceKind, layers: Sequence[int], held: Sequence[int]
) -> list[int]:
    """Returns what each machine takes at its peak, of main memory or of its card, at the smallest settings, with so
    many layers and micro-batches; one alone has all layers."""
    found = []
    for number, (of_stage, micro_batches) in enumerate(zip(layers, held, strict=True)):
        settings = smallest(training.whole, device)
        sizes = stage_sizes(training.sizes, of_stage, is_owner=number == 0)
        footprint = footprint_of(sizes, settings, workload_of(a_round), device)
        kept = (micro_batches - 1) * PASS_TOKENS * entering_bytes(sizes, settings)
        place: Place = "device" if device == "cuda" else "host"
        found.append(max(phase.bytes(place) + (phase.name == "learning") * kept for phase in footprint.phases))
    return found


def smallest(whole: bool, device: DeviceKind) -> MemorySettings:
    """Returns what ``starling fit`` would try nearly last: small passes, and as many rows as are wanted."""
    return MemorySettings(
        dtype="bfloat16" if not whole or device == "cuda" else "float32",
        adapter_rank=0 if whole else RANK,
        four_bit=False,
        rows=32,
        batch_tokens=PASS_TOKENS,
        recompute=True,
        chunk_tokens=512,
        optimizer="adamw8bit" if whole else "adamw",
        merge_adapters=False,
        store_bytes=0,
        save_beside=False,
        averages=False,
    )


def bytes_table() -> str:
    """Bytes of a token, one way, and how many tokens a second a machine's uplink carries in training, both ways."""
    rows = []
    for name, crosses in ENCODINGS.items():
        cells = []
        for shape in SHAPES_TRAINED:
            each = crosses.token_bytes(sizes_of(shape).hidden)
            cells += [f"{each:,.0f}", *(f"{link.bytes_a_second / each / 2:,.0f}" for link in LINKS)]
        rows.append([name, *cells])
    header = ["a cut"]
    for shape in SHAPES_TRAINED:
        header += [f"{shape}: bytes", "tokens/s LAN", "home"]
    return table(header, rows)


def computing_table(a_round: Round, machines: int) -> str:
    """Tokens a second that a machine's share of the model takes, forward and backward, and how often as long its
    uplink is taken by a token's hidden states and gradient."""
    rows = []
    for training, name in trainings():
        cells = []
        for machine in (PROCESSOR, CARD):
            _, alone = alone_seconds(training, a_round, machine, streamed=False)
            computed = alone / machines / a_round.tokens
            cells.append(f"{1 / computed:,.0f}")
            for link in LINKS:
                for crosses in (EXACT, EIGHT_BITS):
                    sent = 2 * crosses.token_bytes(training.sizes.hidden) / link.bytes_a_second
                    cells.append(f"{sent / computed:.2g}")
        rows.append([name, *cells])
    header = [f"1/{machines} of"]
    for machine in (PROCESSOR, CARD):
        header += [f"{machine.name}: tokens/s", "LAN", "8 bits", "home", "8 bits"]
    return table(header, rows)


def bubbles_table() -> str:
    """The idle share of equal machines by micro-batches, the head a third of the owner's work: without links, and where
    a message takes a part of a forward pass."""
    counts = (1, 2, 4, 8, 16, 32)
    rows = []
    for machines in (2, 3, 4):
        for sent in (0.0, 0.5, 1.0, 2.0):
            stages = [StageSeconds(2 / 3, 4 / 3), *[StageSeconds(1.0, 2.0)] * (machines - 1)]
            found = [best_timeline(ring(stages, 1.0, Sent(sent)), count, BEGUN * machines)[0] for count in counts]
            cells = [f"{sum(each.idle) / machines:.2f}" for each in found]
            rows.append([str(machines), f"{sent:g}", *cells, str(found[-2].held[0])])
    header = ["machines", "message / forward pass", *(f"{count} micro-batches" for count in counts), "held of 16"]
    return table(header, rows)


def round_table(a_round: Round, machines: int) -> str:
    rows = []
    for training, name in trainings():
        for machine in (PROCESSOR, CARD):
            generating, computed = alone_seconds(training, a_round, machine, streamed=False)
            cells = [name, machine.name, f"{seconds_text(generating)} + {seconds_text(computed)}"]
            streamed = alone_seconds(training, a_round, machine, streamed=True)
            ways = [streamed]
            for link in LINKS:
                for crosses in (EXACT, EIGHT_BITS):
                    through = trained(training, a_round, machine, link, crosses, [1.0] * machines).seconds
                    drawn = generated_seconds(training, a_round, machine, link, crosses, machines)
                    ways.append((drawn, through))
            for drawn, through in ways:
                faster = [one / (drawn + through) for one in (generating + computed, sum(streamed))]
                against = (
                    f"{faster[0]:.2g} ×" if (drawn, through) == streamed else f"{faster[0]:.2g}, {faster[1]:.2g} ×"
                )
                cells.append(f"{seconds_text(drawn)} + {seconds_text(through)} ({against})")
            rows.append(cells)
    header = ["model", "machines", "alone, holds it", "alone, streamed", "LAN", "LAN, 8 bits", "home", "home, 8 bits"]
    return table(header, rows)


def unlike_table(a_round: Round) -> str:
    """Machines of unlike speed on a LAN, layers by speed, in training: idle shares, and against the fastest alone."""
    rows = []
    for training, name in trainings():
        for speeds in ((1.0, 3.0), (3.0, 1.0), (1.0, 2.0, 4.0)):
            _, alone = alone_seconds(training, a_round, PROCESSOR, streamed=False)
            found = trained(training, a_round, PROCESSOR, LAN, EXACT, speeds)
            layers = ", ".join(map(str, layers_of(training, a_round, speeds)))
            idle = ", ".join(f"{each:.2f}" for each in found.idle)
            faster = alone / max(speeds) / found.seconds
            rows.append([name, ", ".join(f"{speed:g}" for speed in speeds), layers, idle, f"{faster:.2f} ×"])
    return table(["model", "speeds, the owner's first", "layers", "idle", "against the fastest alone"], rows)


def memory_table(a_round: Round, machines: int) -> str:
    rows = []
    for training, name in trainings():
        layers = layers_of(training, a_round, [1.0] * machines)
        cells = [name]
        devices: tuple[DeviceKind, ...] = ("cpu", "cuda")
        for device in devices:
            (alone,) = stage_bytes(training, a_round, device, [training.sizes.layers], [1])
            held = trained(training, a_round, PROCESSOR, LAN, EXACT, [1.0] * machines).held
            each = stage_bytes(training, a_round, device, layers, held)
            cells += [f"{alone / 1e9:.2f} GB", ", ".join(f"{one / 1e9:.2f}" for one in each)]
        quarter = "" if training.whole else f"{four_bit_bytes(training, a_round) / 1e9:.2f} GB"
        cells.append(quarter)
        rows.append([*cells, ", ".join(map(str, layers))])
    header = ["model", "main memory, alone", f"each of {machines}", "card, alone", f"each of {machines}"]
    header += ["card, alone, weights in 4 bits", "layers"]
    return table(header, rows)


def trainings() -> list[tuple[Training, str]]:
    return [
        (Training(sizes_of(shape), whole), f"{shape}, {'whole' if whole else 'adapter'}")
        for shape in SHAPES_TRAINED
        for whole in (False, True)
    ]


def seconds_text(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=3, help="equal ones, in stages")
    parser.add_argument("--groups", type=int, default=32, help="prompts of a round")
    parser.add_argument("--completions", type=int, default=4, help="of each prompt")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--own", type=int, default=256, help="tokens of a completion")
    options = parser.parse_args(arguments)
    if options.machines < 2:
        parser.error("--machines is at least 2")
    a_round = Round(options.groups, options.completions, options.prompt, options.own, PASS_TOKENS)
    tables = (
        bytes_table(),
        computing_table(a_round, options.machines),
        bubbles_table(),
        round_table(a_round, options.machines),
        unlike_table(a_round),
        memory_table(a_round, options.machines),
    )
    sys.stdout.write("\n\n".join(tables) + "\n")


if __name__ == "__main__":
    main()
