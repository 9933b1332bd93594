"""docs/protocol.md says what the code does, where that can be read off."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from node.tasks.default_swarm import DEFAULT_TASKS
from protocol import limits
from protocol.cluster.refusal import RefusalReason
from protocol.streams.averaging_messages import AVERAGING_PROTOCOL, DeclineReason
from protocol.streams.blob_messages import BLOB_PROTOCOL
from protocol.streams.dial_back_messages import DIAL_BACK_PROTOCOL
from protocol.streams.engine_messages import (
    ENGINE_MAJOR,
    ENGINE_MINOR,
    ENGINE_PROTOCOL,
    EngineAnswer,
    EnginePhase,
    EngineRefusal,
    EngineRequest,
)
from protocol.streams.lend_messages import LEND_MAJOR, LEND_MINOR, LEND_PROTOCOL, LendAnswer, LendHello, LendRefusal
from protocol.streams.letter_messages import LETTERS_PROTOCOL, LetterState
from protocol.streams.manifest_messages import MANIFEST_PROTOCOL
from protocol.streams.member_messages import MEMBER_PROTOCOL
from protocol.streams.peer_messages import PEER_PROTOCOL
from protocol.streams.stage_messages import (
    STAGE_MAJOR,
    STAGE_MINOR,
    STAGE_PROTOCOL,
    StageAnswer,
    StageRefusal,
    StageRequest,
)
from scripts.make_vectors import FOLDER

STREAMS = (
    AVERAGING_PROTOCOL,
    BLOB_PROTOCOL,
    DIAL_BACK_PROTOCOL,
    LEND_PROTOCOL,
    LETTERS_PROTOCOL,
    MANIFEST_PROTOCOL,
    MEMBER_PROTOCOL,
    PEER_PROTOCOL,
)
DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "protocol.md").read_text(encoding="utf-8")
ENGINES = (DOCS / "engines.md").read_text(encoding="utf-8")


def test_every_bound_is_listed_with_its_value() -> None:
    listed = {
        name: float(value.replace(",", "")) for name, value in re.findall(r"^\| `(\w+)` \| ([\d,]+) \|$", PAGE, re.M)
    }
    bounds = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert listed == {name: value for name, value in bounds.items() if not name.startswith("PROTOCOL_")}
    assert f"**{limits.PROTOCOL_MAJOR}.{limits.PROTOCOL_MINOR}**" in PAGE


def test_every_stream_protocol_and_every_reason_is_specified() -> None:
    for name in (*STREAMS, *DeclineReason, *RefusalReason, *LendRefusal, *get_args(LetterState)):
        assert f"`{name}`" in PAGE
    assert f"`{LEND_PROTOCOL}`, version **{LEND_MAJOR}.{LEND_MINOR}**" in PAGE
    for kind in (LendHello, *get_args(LendAnswer)):
        fields = ", ".join(f"`{name}`" for name in kind.__struct_fields__)
        assert f'| `"{kind.__struct_config__.tag}"` | {fields} |' in PAGE


def test_the_stages_protocol_is_specified_with_every_message_field_and_reason() -> None:
    assert f"`{STAGE_PROTOCOL}`, version **{STAGE_MAJOR}.{STAGE_MINOR}**" in PAGE
    assert all(f"`{name}`" in PAGE for name in StageRefusal)
    for kind in (*get_args(StageRequest), *get_args(StageAnswer)):
        fields = ", ".join(f"`{name}`" for name in kind.__struct_fields__) or "–"
        assert f'| `"{kind.__struct_config__.tag}"` | {fields} |' in PAGE


def test_the_engines_protocol_is_specified_with_every_message_field_and_reason() -> None:
    assert f"`{ENGINE_PROTOCOL}`, version **{ENGINE_MAJOR}.{ENGINE_MINOR}**" in ENGINES
    for name in (*EngineRefusal, *EnginePhase):
        assert f"`{name}`" in ENGINES
    for kind in (*get_args(EngineRequest), *get_args(EngineAnswer)):
        fields = ", ".join(f"`{name}`" for name in kind.__struct_fields__) or "–"
        assert f'| `"{kind.__struct_config__.tag}"` | {fields} |' in ENGINES
    assert all(hasattr(limits, name) for name in re.findall(r"`(ENGINE_[A-Z_]+)`", ENGINES))


def test_every_task_of_the_default_swarm_is_specified_with_its_template_and_limit() -> None:
    for task in DEFAULT_TASKS:
        rows = [line for line in PAGE.splitlines() if line.startswith(f"| `{task.name}` | `")]
        template = task.question_template.replace("\n", "\\n")
        assert [f"| `{template}`" in row and row.endswith(f" {task.max_new_tokens} |") for row in rows] == [True]


def test_every_file_of_vectors_is_named() -> None:
    made_elsewhere = {"trl_losses"}
    assert {path.stem for path in FOLDER.glob("*.json")} - made_elsewhere <= set(re.findall(r"`(\w+)`", PAGE))


def test_every_bound_that_the_text_names_exists() -> None:
    assert all(hasattr(limits, name) for name in re.findall(r"`([A-Z]+_[A-Z_]+)`", PAGE) if name != "LIKE_THIS")
