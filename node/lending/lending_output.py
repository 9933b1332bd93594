"""What a donor prints: its owner, the model, and why it waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TextIO

from node.printable import one_line, printable
from node.quantities import counted, duration, layer_span, size
from swarm.api import LendingStatus, SwarmStatus


class LendingLines:
    """Writes events as lines for people. A reader that has gone does not end the donor."""

    def __init__(self, out: TextIO, *, clock: Callable[[], float] = time.time) -> None:
        self._out, self._clock = out, clock

    def __call__(self, event: str, fields: Mapping[str, Any]) -> None:
        match event:
            case "ready":
                self._say(f"Donor {fields['peer']}. It trains nothing and holds no data; Ctrl-C ends it.")
            case "lending":
                model, owner = printable(fields["model"], 200), printable(fields["owner"])
                lent = "layers of" if fields["layers"] else "the engine with"
                self._say(f"Lending {lent} {model} to {owner}.")
            case "holding":
                which = layer_span(fields["first"], fields["last"])
                self._say(f"Holding {which} of {fields['layers']}, {size(fields['bytes'])}.")
            case "computed":
                rate = fields["tokens"] / fields["seconds"] if fields["seconds"] else 0.0
                self._say(f"Computed {counted(fields['tokens'], 'token')} in {fields['seconds']:.1f} s: {rate:,.0f}/s.")
            case "waiting":
                self._say(f"Not lending now, trying again: {one_line(fields['because'], 600)}")
            case "left":
                self._say(f"The donor has ended: {one_line(fields['reason'])}")

    def _say(self, text: str) -> None:
        with suppress(BrokenPipeError):
            self._out.write(f"{time.strftime('%H:%M:%S', time.localtime(self._clock()))}  {text}\n")
            self._out.flush()


def lender_lines(status: SwarmStatus, lending: LendingStatus) -> Iterator[str]:
    """Yields what ``starling status`` prints of a donor."""
    yield f"donor     {printable(status.peer)}, for {duration(status.uptime_seconds)}; it trains nothing"
    yield f"owner     {printable(lending.owner)}"
    if lending.waits_because:
        yield f"waits     {one_line(lending.waits_because, 600)}"
    else:
        lent = "layers of " if lending.layers else ""
        yield f"lends     {lent}{printable(lending.model, 200) or 'connecting'}"
    yield (
        f"swarm     {printable(status.swarm)} ({status.swarm_id}), {counted(status.connected_peers, 'peer')} "
        f"connected, {size(status.sent_bytes)} sent, {size(status.received_bytes)} received"
    )
    if status.alone_because is not None:
        yield f"alone     {one_line(status.alone_because, 600)}"
