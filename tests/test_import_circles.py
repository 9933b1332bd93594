"""Imports go downward: no module imports itself over others, and no room of the learner another that imports it."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

LEARNER = "node.learner"
MOST_ARROWS = 50  # between the learner's rooms: who sees more has a room too many, or one in the wrong place

Imports = dict[str, set[str]]


@pytest.fixture(scope="module")
def imports() -> Imports:
    graph = grimp.build_graph("protocol", "swarm", "node", cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def check_no_circle(imports: Imports) -> None:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"an import circle: {' -> '.join(reversed(error.args[1]))}")


def test_no_module_imports_itself_over_others(imports: Imports) -> None:
    assert {"protocol.wire", "swarm.service", "node.configuration"} <= set(imports)
    check_no_circle(imports)


def test_no_room_of_the_learner_imports_one_that_imports_it(imports: Imports) -> None:
    def room(module: str) -> str:
        return ".".join(module.split(".")[:3])

    rooms: Imports = {}
    for module, imported in imports.items():
        if module.startswith(f"{LEARNER}."):
            others = {room(each) for each in imported if each.startswith(f"{LEARNER}.")} - {room(module)}
            rooms[room(module)] = rooms.get(room(module), set()) | others
    assert f"{LEARNER}.steps" in rooms
    check_no_circle(rooms)
    assert sum(map(len, rooms.values())) <= MOST_ARROWS
