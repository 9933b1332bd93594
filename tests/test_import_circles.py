"""Imports go downward: no module imports itself over others, type checking included."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest


def test_no_module_imports_itself_over_others() -> None:
    graph = grimp.build_graph("protocol", "swarm", "node", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert {"protocol.wire", "swarm.service", "node.configuration"} <= set(imports)
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"an import circle: {' -> '.join(reversed(error.args[1]))}")
