"""Which layers each of several machines holds, what that takes, and what a round takes then. Pure.

With each of the settings that ``node.fit.candidates`` yields, an adapter on weights that are not in 4 bits, and each
size of passes with and without recomputation, a machine has at most as many layers as its memory holds, and of these as
many as its speed makes best. Then as many micro-batches are begun at once as there is room for, up to the fewest that
are as fast as any (``schedule``). Of the settings with which all layers have a place, first of those with room to
average, those with the fastest round are taken, and of about as fast ones those with the fastest training. Weights are
in the configured dtype, or in the one that the owner's device prefers: machines are told it before they are counted.

    the owner      what a learner of its own layers takes (``node.fit.footprint``), with factors of all layers, their
                   gradients and moments; of each further micro-batch what enters its layers
    a stage        its layers, their factors and gradients, the same of micro-batches, and its own two processes in
                   place of a node's
    generating     prompts and then each step of all rows, in some batches side by side. A machine takes max(bytes /
                   bytes a second, flops / speed) for a batch; batches wait for the busiest machine or uplink, and each
                   for all of them, one after the other
    training       the star of ``schedule``
    messages       of a machine's processor, where that computes: what it works on each, as the owner measured it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from node.configuration import Auto, Config, chosen
from node.fit.activations import ELEMENT_BYTES, kept_bytes, pass_shape
from node.fit.candidates import Trained, candidates, with_keys
from node.fit.footprint import ENGINE_PROCESS_BYTES, Footprint, Part, Place, footprint_of
from node.fit.machine import Machine
from node.fit.model_sizes import ModelSizes
from node.fit.settings import MemorySettings, described
from node.fit.stages.schedule import SLOWER, OwnerOrder, Sent, StageSeconds, best_timeline, star
from node.fit.stages.work import Round, Training, entering_bytes, layers_by_time, stage_sizes
from node.fit.workload import Workload
from node.printable import printable
from node.quantities import counted, size
from protocol import limits
from protocol.errors import ConfigurationError

LENDING_BYTES: Final = 120_000_000  # the process of ``starling lend`` beside the one that computes
BEGUN: Final = 4  # × machines, micro-batches at once, at most
SIDE_BY_SIDE: Final = 2  # × machines, batches of rows that are sampled at once, at most
_OF_THE_OWNER: Final = frozenset(  # parts of a learner's footprint that a stage has not
    {"engine's copies", "reference", "optimizer", "averaging's state", "copies against harm", "published weights"}
    | {"copies for donors", "learner process", "other processes", "head", "step", "checkpoint copy", "averaging"}
    | {"publishing"}
)


class Pace(Struct, frozen=True):
    """How fast a machine computes, as measured there: a layer of the model (``node.stages.pace``), or without it large
    products of matrices (``node.policy.pace_probe``)."""

    flops: float  # a second, in a training pass
    bytes_a_second: float  # of weights, in a step of generation


class LinkSpeed(Struct, frozen=True):
    """What a link between the owner and another machine carries, alike in both directions, and the work of either
    machine's processor for it."""

    bytes_a_second: float
    delay_seconds: float  # one way
    work_seconds: float = 0.0  # of the owner, for a message that it sends or gets
    work_seconds_a_byte: float = 0.0  # besides

    def work(self, size_bytes: float) -> float:
        """Returns the processor time of the owner for one message."""
        return self.work_seconds + size_bytes * self.work_seconds_a_byte


USUAL_LINK: Final = LinkSpeed(125e6, 0.0002)  # 1 Gbit/s, where it was not measured


class StageMachine(Struct, frozen=True):
    """A machine beside the owner's, as it described itself."""

    name: str
    usable_bytes: int  # of the memory that its layers would be in
    pace: Pace
    link: LinkSpeed = USUAL_LINK


class HeldLayers(Struct, frozen=True, kw_only=True):
    """The layers from ``first`` to before ``last``, on one machine."""

    name: str
    first: int
    last: int
    expected_bytes: int  # at its peak
    usable_bytes: int
    idle: float  # share of a training step in which it waits


class StagePlan(Struct, frozen=True, kw_only=True):
    """``held``: of each machine, the owner's first, in the order of the layers."""

    settings: MemorySettings
    held: tuple[HeldLayers, ...]
    order: OwnerOrder  # of the owner's work in a training step
    batches: int  # of rows that are sampled side by side
    generating_seconds: float  # of a round
    training_seconds: float
    sent_bytes: int  # by the owner in a round, to all others; it gets back as many
    because: str

    @property
    def seconds(self) -> float:
        """Of a round."""
        return self.generating_seconds + self.training_seconds


@dataclass(frozen=True, slots=True)
class _Way:
    """One row of candidates: what machines take at these settings."""

    sizes: ModelSizes
    settings: MemorySettings
    workload: Workload
    owner: Machine
    machines: Sequence[StageMachine]

    def owner_footprint(self, layers: int, in_flight: int) -> Footprint:
        part = replace(
            stage_sizes(self.sizes, layers, is_owner=True),
            layer_linear_widths=-(-self.sizes.layers * self.sizes.layer_linear_widths // layers),
            model_type="in stages",  # whose decoder packs nothing
        )
        found = footprint_of(part, self.settings, self.workload, self.owner.device)
        place: Place = "device" if self.owner.device == "cuda" else "host"
        further = Part("micro-batches begun", self._further_bytes(part, in_flight), place)
        return replace(
            found,
            phases=tuple(
                replace(each, parts=(*each.parts, further)) if each.name == "learning" else each
                for each in found.phases
            ),
        )

    def stage_bytes(self, layers: int, in_flight: int) -> int:
        """Returns what a stage takes at its peak, wherever its layers are."""
        part = replace(stage_sizes(self.sizes, layers, is_owner=False), model_type="in stages")
        own = replace(self.workload, averages=False, publishes=False, foreign_groups=0, has_donors=False)
        found = footprint_of(part, self.settings, own)
        further = self._further_bytes(part, in_flight)
        return (ENGINE_PROCESS_BYTES + LENDING_BYTES) + max(
            sum(each.bytes for each in phase.parts if each.name not in _OF_THE_OWNER)
            + (further if phase.name == "learning" else 0)
            for phase in found.phases
        )

    def _further_bytes(self, part: ModelSizes, in_flight: int) -> int:
        if self.settings.recompute:
            return (in_flight - 1) * self.settings.batch_tokens * entering_bytes(part, self.settings)
        shape = pass_shape(self.workload, self.settings.batch_tokens)
        return (in_flight - 1) * kept_bytes(part, self.settings, shape, self.owner.device)

    def fits(self, held: Sequence[int], in_flight: int) -> bool:
        return self.owner_excess(held[0], in_flight) <= 0 and all(
            self.stage_bytes(layers, in_flight) <= machine.usable_bytes
            for layers, machine in zip(held[1:], self.machines, strict=True)
        )

    def owner_excess(self, layers: int, in_flight: int = 1) -> int:
        return self.owner.excess_bytes(self.owner_footprint(layers, in_flight))

    def most(self) -> list[int]:
        """Returns how many layers each machine has room for, the owner's first."""
        return [
            _most(self.sizes.layers, lambda layers: self.owner_excess(layers) <= 0),
            *(_most(self.sizes.layers, partial(self._stage_fits, machine)) for machine in self.machines),
        ]

    def _stage_fits(self, machine: StageMachine, layers: int) -> bool:
        return self.stage_bytes(layers, 1) <= machine.usable_bytes

    def has_room(self, most: Sequence[int]) -> bool:
        return min(most) > 0 and sum(most) >= self.sizes.layers

    def missing_bytes(self, most: Sequence[int]) -> int:
        """Returns how much more memory it takes in all, at the least."""
        unplaced = max(0, self.sizes.layers - sum(most))
        missing = unplaced * (self.stage_bytes(2, 1) - self.stage_bytes(1, 1))
        if most[0] == 0:
            missing += self.owner_excess(1)
        for layers, machine in zip(most[1:], self.machines, strict=True):
            missing += max(0, self.stage_bytes(1, 1) - machine.usable_bytes) if layers == 0 else 0
        return missing


def plan_stages(
    config: Config,
    sizes: ModelSizes,
    owner: Machine,
    pace: Pace,
    head_pace: Pace,
    machines: Sequence[StageMachine],
    workload: Workload,
    *,
    kept: Trained | None = None,
) -> StagePlan:
    """Returns the plan as above; every machine has at least one layer. ``owner``, ``pace`` of
    layers and ``head_pace`` are of the machine that has embedding and head; ``kept`` is what a checkpoint was trained
    with.

    Raises ``ConfigurationError`` if none fits: by how much.
    """
    if len(machines) >= sizes.layers:
        raise ConfigurationError(
            f"{config.policy.model} has {counted(sizes.layers, 'layer')}, too few for {len(machines) + 1} machines: "
            f"set policy.stages to at most {sizes.layers - 1}"
        )
    ways = _ways(config, sizes, owner, machines, workload, kept)
    if not ways:
        raise ConfigurationError(
            "a model over several machines is trained by an adapter on weights that are not in 4 bits: set "
            'policy.adapter_rank to "auto" or above 0, and policy.four_bit to "auto" or false'
        )
    for _, of_kind in groupby(ways, lambda way: way.settings.averages):
        fitting = [(way, most) for way in of_kind if way.has_room(most := way.most())]
        if fitting:
            found = [_planned(way, pace, head_pace, most) for way, most in fitting]
            fastest = min(each.seconds for each in found)
            alike = [each for each in found if each.seconds <= SLOWER * fastest]
            return min(alike, key=lambda each: each.training_seconds)
    narrow = with_keys(config, policy={"dtype": "bfloat16"})
    narrower = _ways(narrow, sizes, owner, machines, workload, kept) if ways[0].settings.dtype == "float32" else []
    would_do = any(way.has_room(way.most()) for way in narrower)
    raise ConfigurationError(_refusal(config, ways) + "; --set policy.dtype=bfloat16 would fit" * would_do)


def _ways(
    config: Config,
    sizes: ModelSizes,
    owner: Machine,
    machines: Sequence[StageMachine],
    workload: Workload,
    kept: Trained | None,
) -> list[_Way]:
    dtype = chosen(config.policy.dtype, owner.dtype)
    every = _adapters(candidates(config, owner, kept), config.learner.recompute)
    return [_Way(sizes, each, workload, owner, machines) for each in every if each.dtype == dtype]


def _adapters(every: Iterator[MemorySettings], asked: bool | Auto) -> Iterator[MemorySettings]:
    """Yields the settings that machines in stages can have, of which nothing is merged; small passes without
    recomputation too, where that is open: several are under way."""
    seen = set[MemorySettings]()
    for each in every:
        if not each.adapter_rank or each.four_bit:
            continue
        for recompute in dict.fromkeys((chosen(asked, False), each.recompute)):
            found = replace(
                each, merge_adapters=False, recompute=recompute, chunk_tokens=each.chunk_tokens if recompute else None
            )
            if found not in seen:
                seen.add(found)
                yield found


def _planned(way: _Way, pace: Pace, head_pace: Pace, most: Sequence[int]) -> StagePlan:
    a_round = _round_of(way)
    training = Training(way.sizes, whole=False, recompute=way.settings.recompute)
    paces = [pace, *(each.pace for each in way.machines)]
    shape = pass_shape(way.workload, way.settings.batch_tokens)
    count, tokens = shape.passes, shape.passes * shape.tokens
    layer = [each * tokens / a_round.tokens for each in training.layer_flops(a_round)]
    head = sum(training.head_flops(a_round)) / head_pace.flops / count
    sent = tokens * ELEMENT_BYTES[way.settings.dtype] * way.sizes.hidden / count
    carrying = _carrying_seconds(way, paces, sent)  # four messages of each link: there and back, forward and back
    held = layers_by_time(
        way.sizes.layers,
        [sum(layer) / each.flops for each in paces],
        [count * (4 * each + head * (at == 0)) for at, each in enumerate(carrying)],
        [1] * len(paces),
        most,
    )
    stages = [
        StageSeconds(*(layers * each / of.flops / count + (1 if at == 0 else 2) * carried for each in layer))
        for at, (layers, of, carried) in enumerate(zip(held, paces, carrying, strict=True))
    ]
    links = [Sent(sent / each.link.bytes_a_second, each.link.delay_seconds) for each in way.machines]
    chain = star(stages, head + 2 * carrying[0], links)
    room = _most(BEGUN * len(paces), lambda begun: way.fits(held, begun))
    found, order = best_timeline(chain, count, max(1, room))
    names, begins = ["this machine", *(each.name for each in way.machines)], [sum(held[:at]) for at in range(len(held))]
    expected = [
        way.owner_footprint(held[0], order.begun).peak_bytes("device" if way.owner.device == "cuda" else "host"),
        *(way.stage_bytes(layers, order.begun) for layers in held[1:]),
    ]
    usable = [way.owner.usable_device_bytes or way.owner.host_bytes, *(each.usable_bytes for each in way.machines)]
    generating_seconds, batches = _generating(way, a_round, held, paces, head_pace)
    generated = a_round.rows * a_round.own + a_round.groups * a_round.prompt
    crossing = len(way.machines) * ELEMENT_BYTES[way.settings.dtype] * way.sizes.hidden
    return StagePlan(
        settings=way.settings,
        held=tuple(
            HeldLayers(
                name=names[at],
                first=begins[at],
                last=begins[at] + layers,
                expected_bytes=expected[at],
                usable_bytes=usable[at],
                idle=found.idle[at],
            )
            for at, layers in enumerate(held)
        ),
        order=order,
        batches=batches,
        generating_seconds=generating_seconds,
        training_seconds=found.seconds,
        sent_bytes=(2 * tokens + generated) * crossing,
        because=_because(way, held, most, batches),
    )


def _carrying_seconds(way: _Way, paces: Sequence[Pace], size_bytes: float) -> list[float]:
    """Returns the processor time of each machine for a message of each of its links, the owner first. It is measured on
    the owner's, and taken to follow the speed of layers; beside a card it takes nothing from what computes."""
    if way.owner.device != "cpu":
        return [0.0] * len(paces)
    work = [each.link.work(size_bytes) for each in way.machines]
    return [sum(work), *(each * paces[0].flops / pace.flops for each, pace in zip(work, paces[1:], strict=True))]


def _generating(
    way: _Way, a_round: Round, held: Sequence[int], paces: Sequence[Pace], head_pace: Pace
) -> tuple[float, int]:
    """Returns the seconds of a round, and the fewest batches side by side that take about as long as the best."""
    most = min(SIDE_BY_SIDE * len(held), limits.STAGE_BATCHES, a_round.groups)
    ways = [_generating_seconds(way, a_round, held, paces, head_pace, each) for each in range(1, most + 1)]
    batches = next(each for each, seconds in enumerate(ways, 1) if seconds <= SLOWER * min(ways))
    return ways[batches - 1], batches


def _generating_seconds(
    way: _Way, a_round: Round, held: Sequence[int], paces: Sequence[Pace], head_pace: Pace, batches: int
) -> float:
    sizes, width = way.sizes, ELEMENT_BYTES[way.settings.dtype]
    rows = min(way.settings.rows, a_round.rows)
    each_rows = rows / batches
    columns = a_round.prompt + a_round.own / 2
    head = sizes.vocabulary * sizes.hidden
    busy, prompts = list[float](), 0.0  # of each machine with a batch, and then of each link
    for layers, pace in zip(held, paces, strict=True):
        weights = layers * sizes.layer_parameters
        moved = width * (weights + 2 * layers * sizes.keys * columns * each_rows)
        busy.append(max(moved / pace.bytes_a_second, 2.0 * weights * each_rows / pace.flops))
        prompts += 2.0 * weights * a_round.groups * a_round.prompt / pace.flops
    busy[0] += max(width * head / head_pace.bytes_a_second, 2.0 * head * each_rows / head_pace.flops)
    carrying = _carrying_seconds(way, paces, each_rows * width * sizes.hidden)  # which messages' delay has in it
    links = [each.link for each in way.machines]
    sending = [each_rows * width * sizes.hidden / each.bytes_a_second for each in links]
    one_batch = sum(busy) + 2 * sum(sending) + 2 * sum(each.delay_seconds for each in links)
    busiest = max(computes + 2 * carries for computes, carries in zip(busy, carrying, strict=True))
    step = max(batches * max(busiest, sum(sending)), one_batch)
    prompts += sum(2 * a_round.groups * a_round.prompt * width * sizes.hidden / each.bytes_a_second for each in links)
    return step * a_round.own * a_round.rows / rows + prompts


def _round_of(way: _Way) -> Round:
    load = way.workload
    return Round(load.own_groups, load.completions, load.prompt_tokens, load.answer_tokens, way.settings.batch_tokens)


def _most(most: int, fits: Callable[[int], bool]) -> int:
    """Returns the largest number, up to ``most``, that fits; 0 where one does not."""
    return next((count for count in range(most, 0, -1) if fits(count)), 0)


def _because(way: _Way, held: Sequence[int], most: Sequence[int], batches: int) -> str:
    full = sum(one == other for one, other in zip(held, most, strict=True))
    limits = f"; {counted(full, 'machine')} of {len(held)} can hold no more" if full else ""
    return f"layers by speed{limits}: {described(way.settings)} in {counted(batches, 'part')} side by side"


def _refusal(config: Config, ways: Sequence[_Way]) -> str:
    way = min(ways, key=lambda each: each.missing_bytes(each.most()))
    most = way.most()
    small = [
        printable(name, 64)
        for name, layers in zip(("this machine", *(each.name for each in way.machines)), most, strict=True)
        if layers == 0
    ]
    too_small = f" ({', '.join(small)}: too small for even one layer)" if small else ""
    missing = way.missing_bytes(most)
    machines = counted(len(most), "machine")
    another = size(way.stage_bytes(1, 1) + missing)
    or_another = "" if small else f", or another machine with {another} (policy.stages = {len(most)})"
    return (
        f"{config.policy.model} does not fit {machines}: they have room for {sum(most)} of its {way.sizes.layers} "
        f"layers{too_small}, with {described(way.settings)}; {size(missing)} more memory in all would do{or_another}"
    )
