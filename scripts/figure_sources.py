"""Where each figure of ``docs/figures.md`` comes from: a benchmark's arguments, and the code that it measures.

``stale`` compares that code between the commit of a record and the working tree. Comments and docstrings are no code,
and figures are of machines without a GPU: what runs on one alone is not compared.
"""

from __future__ import annotations

import ast
import fnmatch
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

IGNORED: Final = frozenset({".md", ".txt", ".svg", ".png"})
ON_A_GPU_ALONE: Final = ("*/triton_*.py", "node/engines/lean/device_rows.py", "node/engines/lean/step_*.py")
EMBEDDED: Final = tuple(
    f"node/engines/{name}"
    for name in (
        "batch.py",
        "cache_size.py",
        "complete_groups.py",
        "drafting",
        "draws.py",
        "lean",
        "resumption.py",
        "step_threads.py",
        "torch.py",
    )
)
LEARNING: Final = (
    *EMBEDDED,
    "node/kernels",
    "node/learner",
    "node/models",
    "node/policy",
    "node/tasks",
    "node/configuration/sections.py",
)
TIMED_IN: Final = "node/compute_environment.py"
MEETING: Final = ("swarm/swarm_process.py", "swarm/service.py", "swarm/hosts/libp2p", "swarm/announcements")


@dataclass(frozen=True)
class Source:
    """``arguments`` are those that the page's figure is measured with, ``minutes`` about how long that takes alone on
    two cores. ``measures``: files and folders, beside the benchmark's own module. ``settings``: the keys that its nodes
    do not have at the default."""

    arguments: str
    minutes: float
    measures: tuple[str, ...]
    settings: tuple[str, ...] = ()


SOURCES: Final[Mapping[str, Source]] = {
    "agreement": Source("", 1, ("node/engines", "node/kernels", "node/learner/objective", "node/policy")),
    "api": Source("", 5, ("node/api", "node/supervision")),
    "averaging": Source(
        "--rounds 600 --seeds 3",
        30,
        (
            "node/averaging",
            "node/kernels/sparse_update_kernels.py",
            "protocol/weights",
            "swarm/averaging/norm_history.py",
        ),
    ),
    "blobs": Source("", 2, ("swarm/blobs", "swarm/hosts/libp2p", "protocol/streams")),
    "cluster": Source("", 4, ("swarm/cluster", "protocol/cluster", *MEETING)),
    "counts": Source(
        "",
        0.3,
        ("protocol/weights", "protocol/rollouts.py", "protocol/wire.py", "node/learner/objective", "node/kernels"),
    ),
    "dashboard": Source("", 3, ("node/api", "node/supervision")),
    "demo": Source("--seeds 2 --minutes 3", 30, ("node/demo", "swarm/announcements", TIMED_IN, *LEARNING)),
    "engine": Source("--workloads mixed fixed --rounds 5 --against vllm", 8, (*EMBEDDED, "node/kernels", TIMED_IN)),
    "family": Source(
        "--rounds 80 --seeds 4 --finished",
        20,
        ("node/averaging", *LEARNING),
        (
            "averaging.encoding",
            "averaging.every_rounds",
            "learner.completions",
            "learner.foreign_groups",
            "learner.learning_rate",
            "learner.own_groups",
            "learner.share_groups",
        ),
    ),
    "learner": Source("--against trl --rounds 2", 8, ("node/kernels/head", "node/kernels/linear_logp.py")),
    "learner_step": Source(
        "--against trl", 7, ("node/learner/objective", "node/learner/steps", "node/kernels", TIMED_IN)
    ),
    "sharing": Source("--rounds 120 --seeds 3", 120, LEARNING),
    "sharing_traffic": Source("", 4, ("swarm/blobs", *MEETING, "protocol/rollouts.py", "protocol/messages.py")),
    "sparse_update": Source("", 1, ("node/kernels/sparse_update_kernels.py", "protocol/weights")),
    "startup": Source(
        "",
        2,
        (
            "node/cli",
            "node/library_imports.py",
            "node/supervision",
            "node/learner/assembly",
            "node/policy",
            "swarm/service.py",
        ),
    ),
    "state_sync": Source("", 5, ("node/state_sync", "swarm/blobs", "swarm/hosts/libp2p")),
    "swarm_memory": Source("", 12, ("swarm", "protocol")),
    "weight_diff": Source("", 2, ("node/kernels/weight_diff_kernels.py", "protocol/weights")),
    "wire": Source("", 0.5, ("protocol/rollouts.py", "protocol/wire.py", "protocol/messages.py")),
}


def changed_since(commit: str, paths: Sequence[str], repository: Path) -> list[str]:
    """Returns the files under ``paths`` whose code is another than at ``commit``, uncommitted changes included.

    Raises ``subprocess.CalledProcessError`` where git does not know the commit.
    """
    named = _git(repository, "diff", "--name-only", "--no-renames", commit, "--", *paths).decode().splitlines()
    compared = [name for name in named if Path(name).suffix not in IGNORED and not _is_on_a_gpu_alone(name)]
    return [name for name in compared if _differs(commit, name, repository)]


def _is_on_a_gpu_alone(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in ON_A_GPU_ALONE)


def _differs(commit: str, name: str, repository: Path) -> bool:
    now = repository / name
    known = _git(repository, "ls-tree", "--name-only", commit, "--", name)
    if not known or not now.exists():
        return True
    return code_of(name, _git(repository, "show", f"{commit}:{name}")) != code_of(name, now.read_bytes())


def code_of(name: str, content: bytes) -> str | bytes:
    """Returns what two versions of a file are compared by: of Python its syntax tree, without docstrings."""
    if Path(name).suffix != ".py":
        return content
    tree = ast.parse(content)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            node.body = node.body[1:]
    return ast.dump(tree)


def _git(repository: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(repository), *arguments], check=True, stdout=subprocess.PIPE).stdout
