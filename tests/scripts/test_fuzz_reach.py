"""The fuzzer leaves no decoder out: whatever judges bytes from outside runs when it gives its examples."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any

import pytest

from protocol.errors import StarlingError
from scripts.attacks import fuzz

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("protocol", "swarm")
JUDGEMENTS = {"MalformedError", "OversizedError"}  # what a reader of bytes from outside raises
READERS = ("decode", "open", "read", "receive", "unpack")  # how one is called that leaves the judgement to others
BYTES = {"bytes", "bytearray", "memoryview"}
STRUCTURED_EACH = 4

# Functions that judge or are called as readers are, and that no bytes from outside reach through the fuzzer. Each needs
# a reason; an entry that is reached, or is gone, fails the test below.
ELSEWHERE = {
    "protocol/rollouts.py _columns_of": "of an own group, before it is sent",
    "protocol/rollouts.py encode_group": "of an own group, before it is sent",
    "swarm/averaging/weight_averaging.py WeightAveraging._check_ours": "of the learner's own request",
    "swarm/averaging/weight_averaging.py _layout_of": "of the learner's own request",
    "swarm/averaging/weight_exchange.py Conversation.receive": "reads frames; decode_averaging_message is a target",
    "swarm/averaging/weight_exchange.py WeightExchange.on_last_message": "compares a number of a decoded message",
    "swarm/blobs/fetch_round.py FetchRound._receive": "reads a header, which is a target, and chunks into their buffer",
    "swarm/blobs/store.py ContentStore.read": "its bytes name a blob",
    "swarm/blobs/store.py ContentStore.reading": "its bytes name a blob",
    "swarm/cluster/cluster_files.py _opened": "of the node's own files; what it calls are targets",
    "swarm/cluster/membership.py decode_members": "of the node's own file",
    "swarm/donors/donor_door.py DonorDoor._serve": "passes bytes on unread; of a donor that sends some unasked",
    "swarm/donors/donor_door.py _hello": "reads a frame; decode_lend_hello is a target",
    "swarm/hosts/go/control.py ControlSocket.open": "sends its bytes; what it reads are targets",
    "swarm/hosts/go/daemon_messages.py open_stream": "encodes a request",
    "swarm/hosts/routers/home_router.py HomeRouter._open_by": "asks sockets; what it reads are targets",
    "swarm/hosts/routers/upnp.py UpnpRouter._listen": "asks sockets; read_search_answer is a target",
    "swarm/settings.py decode_settings": "of the supervisor, on standard input",
}


def judging_functions() -> Iterator[str]:
    """Yields "path qualified.name" of each function that raises a judgement, or reads bytes as its name says."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for name, function in _functions(ast.parse(path.read_text(encoding="utf-8")), ()):
                if _judges(function) or _is_reader(function):
                    yield f"{path.relative_to(ROOT)} {name}"


def _functions(node: ast.AST, outer: tuple[str, ...]) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield ".".join((*outer, child.name)), child
            yield from _functions(child, (*outer, child.name, "<locals>"))
        else:
            yield from _functions(child, (*outer, child.name) if isinstance(child, ast.ClassDef) else outer)


def _judges(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    raised = [node.exc for node in _own_nodes(function) if isinstance(node, ast.Raise)]
    calls = [each.func for each in raised if isinstance(each, ast.Call)]
    return any(isinstance(call, ast.Name) and call.id in JUDGEMENTS for call in calls)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _own_nodes(child)


def _is_reader(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    named = {node.id for each in function.args.args if each.annotation for node in ast.walk(each.annotation)
             if isinstance(node, ast.Name)}  # fmt: skip
    return function.name.lstrip("_").startswith(READERS) and bool(named & BYTES)


@contextmanager
def _noted_calls(called: set[CodeType]) -> Iterator[None]:
    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            called.add(frame.f_code)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


@pytest.fixture(scope="module")
def reached() -> set[str]:
    """The functions that run when each target is given its examples and a few extreme inputs."""
    called: set[CodeType] = set()
    for target in fuzz.all_targets():
        random = Random(1)
        extremes = [target.make(random) for _ in range(STRUCTURED_EACH)] if target.make is not None else []
        for raw in [*target.examples, *extremes]:
            act = target.prepare(raw)
            with _noted_calls(called):
                try:
                    act()
                except StarlingError:
                    continue
    inside = [code for code in called if Path(code.co_filename).is_relative_to(ROOT)]
    return {f"{Path(code.co_filename).relative_to(ROOT)} {code.co_qualname}" for code in inside}


def test_everything_that_judges_bytes_from_outside_is_given_inputs_or_has_a_reason(reached: set[str]) -> None:
    judging = set(judging_functions())
    assert len(judging) > 80  # the search for them works
    assert judging - reached - ELSEWHERE.keys() == set()


def test_reasons_are_kept_for_nothing_else(reached: set[str]) -> None:
    assert ELSEWHERE.keys() - set(judging_functions()) == set()
    assert ELSEWHERE.keys() & reached == set()
