"""How many bytes the lean decoder's keys and values take, and how they are laid out; without torch, for planners.

    own       every row holds the keys and values of its prompt and of its completion
    shared    a prompt's keys and values are held once, for all rows that continue it; a row holds its completion's

A step reads its cache once, so the bytes that it reads are those below. For a prompt of P tokens with G completions
of T tokens, own holds G (P + T) slots and shared P + G T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

# oneDNN compiles a kernel for each number of rows that it meets; multiples of this keep them few.
ROW_MULTIPLE: Final = 8
SLOT_MULTIPLE: Final = 32  # so that calls of similar length share a cache
# At least, in a crowded batch: also room for the tokens that a row gets after its end, until the host looks.
SPARE_SLOTS: Final = 32
# Shared attention costs about ten more operations a layer. Below this many slots saved a row they cost more than they
# save (scripts/bench/engine.py: at prompts of 8 to 40 tokens the rows' own copies are a twentieth faster).
WORTHWHILE_SLOTS: Final = 48


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """A model's sizes as far as keys and values depend on them."""

    layers: int
    hidden: int
    kv_heads: int
    queries: int  # query heads that share one key-value head
    head_size: int
    element_bytes: int  # of the model's dtype
    masked_rows: bool = True  # attention needs a mask of the rows' slots; compiled attention needs none

    @property
    def packed_bytes(self) -> int:
        """Bytes of the queries', keys' and values' matrices: the only weights that the decoder copies.

        With adapters merged it also keeps a copy of every other matrix that they adapt.
        """
        outputs = self.kv_heads * (self.queries + 2) * self.head_size
        return self.layers * outputs * self.hidden * self.element_bytes


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The cache of one call."""

    rows: int
    slots: int  # of each row
    prompts: int  # held apart at a time; 0: each row holds its own
    prompt_slots: int  # of each prompt held apart
    reason: str

    @property
    def shared(self) -> bool:
        return self.prompts > 0

    def with_slots(self, slots: int) -> CachePlan:
        """Returns the plan with at least so many slots a row."""
        return replace(self, slots=_rounded_up(slots, SLOT_MULTIPLE))

    def parts(self, shape: AttentionShape) -> tuple[int, int, int, int]:
        """Returns the numbers of elements: the rows' keys, their values, the shared prompts' keys, their values."""
        slot = shape.layers * shape.kv_heads * shape.head_size
        rows, prompts = slot * self.rows * self.slots, slot * self.prompts * self.prompt_slots
        return rows, rows, prompts, prompts

    def bytes(self, shape: AttentionShape) -> int:
        """Returns what the decoder allocates: keys, values and masks."""
        masked = self.prompts * self.prompt_slots + (self.rows * self.slots if shape.masked_rows else 0)
        masks = shape.kv_heads * masked
        return (sum(self.parts(shape)) + masks) * shape.element_bytes


NO_CACHE: Final = CachePlan(0, 0, 0, 0, "nothing is sampled")


def cache_bytes(
    shape: AttentionShape, rows: int, completions: Sequence[int], longest_prompt: int, longest_completion: int
) -> int:
    """Returns the bytes of a call's cache; arguments as of ``plan_cache``."""
    return plan_cache(rows, completions, longest_prompt, longest_completion).bytes(shape)


def plan_cache(
    rows: int,
    completions: Sequence[int],
    longest_prompt: int,
    longest_completion: int,
    *,
    shared: bool | None = None,
) -> CachePlan:
    """Returns the cache of a call that holds at most ``rows`` sequences at a time.

    ``completions``: how many continue each prompt, in the order in which they are begun; a completion that is resumed
    is a prompt of its own, of one completion. ``shared`` chooses the layout, by default the one that is faster.
    """
    wanted = sum(completions)
    rows = min(rows, wanted)
    prompts = prompt_room(completions, rows)
    # Slots that a row no longer holds, its share of the prompts held apart already subtracted.
    saved = longest_prompt * (1 - prompts / rows)
    if shared is None:
        shared = saved >= WORTHWHILE_SLOTS
    crowded = wanted > rows
    longest = longest_completion if shared else longest_prompt + longest_completion
    # A crowded batch outlives its first rows: spare slots postpone the moment when the timeline must be moved back.
    slots = longest + max(SPARE_SLOTS, longest // 4) if crowded else longest
    layout = "apart from" if shared else "in"
    return CachePlan(
        rows=_rounded_up(rows, ROW_MULTIPLE),
        slots=_rounded_up(slots, SLOT_MULTIPLE),
        prompts=prompts if shared else 0,
        prompt_slots=_rounded_up(longest_prompt, SLOT_MULTIPLE) if shared else 0,
        reason=f"prompts lie {layout} the rows: apart saves {saved:.0f} slots a row, {WORTHWHILE_SLOTS} are worth it",
    )


def prompt_room(completions: Sequence[int], rows: int) -> int:
    """Returns how many prompts are held at a time.

    When ``rows`` rows begin together they continue at most m prompts, m the greatest number of consecutive ones whose
    completions touch ``rows`` neighbouring completions. Rows end in any order, so that a few long completions may keep
    a prompt each: there is room for half as many again. Where that is used up, waiting completions wait for a prompt
    to end as they wait for a row.
    """
    most, first, held = 0, 0, 0
    for last, count in enumerate(completions):
        held += count
        # The first prompt may be cut to its last completion, the last one to its first.
        while held - (completions[first] - 1) - (count - 1 if last > first else 0) > rows:
            held -= completions[first]
            first += 1
        most = max(most, last - first + 1)
    together = sum(1 for count in completions if count)
    return min(together, rows, most + most // 2)


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
