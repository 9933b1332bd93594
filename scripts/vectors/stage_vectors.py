"""Messages of ``/starling/stage/1``, as fields and as frames, and those that must be refused."""

from __future__ import annotations

import msgspec

from protocol import limits
from protocol.streams import stage_messages as messages
from protocol.streams.framing import framed
from protocol.streams.stage_messages import StageRefusal, TensorShape
from scripts.vectors.plain_values import FAMILY, Json, vectors_of_sides

HIDDEN = TensorShape("bfloat16", (2, 5, 896))


def stage_messages() -> list[Json]:
    """Every request and every answer, without the tensors that follow."""
    of_rows, mask = TensorShape("int64", (2,)), TensorShape("bool", (2, 9))
    factors = TensorShape("float32", (16, 896)), TensorShape("float32", (896, 16))
    requests = {
        "hello": messages.StageHello(messages.STAGE_MAJOR, messages.STAGE_MINOR),
        "probe": messages.ProbeLink(TensorShape("float32", (16384,))),
        "hold": messages.HoldLayers(3, 13),
        "load": messages.LoadFactors(("layers.3.q.A", "layers.3.q.B"), factors),
        "forward of prompts": messages.PassForward(7, 0, True, True, 512, 0, HIDDEN, None, None, None),
        "forward": messages.PassForward(7, 1, True, True, None, 4, HIDDEN, mask, TensorShape("int64", (2, 5)), of_rows),
        "backward": messages.PassBackward(7, 1, HIDDEN),
        "gradients": messages.AskGradients(),
        "forget": messages.ForgetCalls(),
        "begin": messages.BeginRows(),
        "begin of another batch": messages.BeginRows(3),
        "prefill": messages.PrefillPrompts(HIDDEN, of_rows),
        "join": messages.JoinRows((0, 0, 1)),
        "leave": messages.LeaveRows((0,), (2,), 2),
        "step": messages.StepRows(TensorShape("bfloat16", (2, 1, 896))),
        "release": messages.ReleaseRows(),
    }
    answers = {
        "welcome": messages.StageWelcome(1, 0, FAMILY, 24, 896, 1_500_000_000, 0.15e12, 30e9),
        "done": messages.StageDone(),
        "tensor": messages.StageTensor(HIDDEN),
        "gradients": messages.StageGradients(("layers.3.q.B",), factors[1:]),
        "beat": messages.StageBeat(12.5, 4096),
        **{f"refused: {reason}": messages.StageRefused(reason, "½ of it") for reason in StageRefusal},
    }
    return vectors_of_sides(requests, answers)


def refused_stage_requests() -> dict[tuple[str, str, str], bytes]:
    """Frames that must be refused, by protocol, what was expected, and a name that begins with the reason."""

    def packed(*value: object) -> bytes:
        return framed(msgspec.msgpack.encode(value))

    large = ("float32", (2**16, 2**16, 1))
    cases = {
        "oversized: its length": (limits.STAGE_MESSAGE_BYTES + 1).to_bytes(4, "big"),
        "oversized: a tensor of 16 GiB": packed("backward", 7, 1, large),
        "oversized: tensors of more than the bound together": packed(
            "load", ["a", "b"], [("float32", (2**13, 2**15, 1)), ("float32", (1,))]
        ),
        "malformed: an unknown request": packed("sing"),
        "malformed: an unknown number format": packed("step", ("float16", (1, 1, 8))),
        "malformed: a tensor of four dimensions": packed("step", ("float32", (1, 1, 1, 8))),
        "malformed: a dimension below 0": packed("step", ("float32", (1, -1, 8))),
        "malformed: hidden states of truth values": packed("step", ("bool", (1, 1, 8))),
        "malformed: padding that is no integer": packed("prefill", ("float32", (1, 1, 8)), ("float32", (1,))),
        "malformed: factors in bfloat16": packed("load", ["a"], [("bfloat16", (1,))]),
        "malformed: more names than factors": packed("load", ["a", "b"], [("float32", (1,))]),
        "malformed: a name twice": packed("load", ["a", "a"], [("float32", (1,))] * 2),
        "malformed: a row beyond the last": packed("join", [limits.STAGE_ROWS]),
        "malformed: a batch beyond the last": packed("begin", limits.STAGE_BATCHES),
        "malformed: a layer beyond the last": packed("hold", 0, limits.STAGE_LAYERS + 1),
    }
    return {("stages", "any", name): frame for name, frame in cases.items()}
