"""What learns, in processes of its own: a node of ours or a contender. Each keeps weights as it goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from node.compute_environment import without_compute_settings
from node.configuration import TasksSection
from node.policy.model_files import model_folder
from node.tasks.registry import load_tasks
from scripts import REPOSITORY
from scripts.bench.common.process_usage import tree_cpu_seconds
from scripts.bench.common.processes import started_node
from scripts.bench.contenders.environments import GENRL_PYTHON, TRL_PYTHON, prepare_genrl, prepare_trl
from scripts.bench.skill.curves import Point
from scripts.bench.skill.models import setting_of
from scripts.bench.skill.success import Judge, training_questions

OURS: Final = "starling"
CONTENDERS: Final[Mapping[str, tuple[Path, Callable[[], None]]]] = {
    "trl": (TRL_PYTHON, prepare_trl),
    "genrl": (GENRL_PYTHON, prepare_genrl),
}
COMPLETIONS: Final = 8  # of a question, for contenders: TRL's default
Progress = Callable[[float], None]  # is told processor seconds


@dataclass(frozen=True)
class Kept:
    """Weights that a run wrote after so many processor seconds and steps."""

    seconds: float
    steps: int
    completions: int  # trained on until then
    foreign_groups: int  # of others, trained on until then
    path: Path


class Learning(Protocol):
    """A run of one model. ``address`` waits until it listens in a swarm, and raises ``RuntimeError`` where it ends
    before. ``follow`` returns when it has used its processor seconds, and has ended: what it kept, and
    why there is no more. ``success`` is of weights that it kept."""

    def address(self) -> str: ...

    def follow(self, progress: Progress) -> tuple[list[Kept], str]: ...

    def success(self, kept: Kept, judge: Judge) -> float: ...


def started(contender: str, folder: Path, model: str, *, swarm: str | None = None, **job: Any) -> Learning:
    """Starts a run. ``job``: ``rate``, ``batch``, ``seed``, ``threads``, ``seconds``, ``parts``; ``swarm``: the address
    of another node of its swarm, "" for the first; None: it learns alone."""
    if contender == OURS:
        peer = ["--peer", swarm] if swarm else []
        return NodeRun(folder / "home", model, job["seed"], job["seconds"], job["parts"], *peer)
    return ContenderRun(contender, folder, model, **job, **({} if swarm is None else {"swarm": swarm}))


def measured(run: Learning, found: tuple[list[Kept], str], judge: Judge) -> tuple[list[Point], str]:
    """Returns the success of everything that a run kept, and why there is no more."""
    kept, error = found
    return [Point(each.seconds, each.steps, each.completions, run.success(each, judge)) for each in kept], error


class NodeRun:
    """``starling up`` as shipped, with one setting changed for measuring: it keeps all checkpoints."""

    def __init__(self, home: Path, model: str, seed: int, seconds: float, parts: int, *flags: str) -> None:
        settings = {"seed": seed, "checkpoint.keep": 10_000}
        given = [f"--set={key}={value}" for key, value in settings.items()]
        self._node = started_node(home, f"--model={setting_of(model)}", *given, *flags, stderr=subprocess.PIPE)
        self._model, self._seconds, self._parts = model, seconds, parts
        self._said: list[bytes] = []
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def address(self) -> str:
        assert self._node.stdout is not None
        line = b""
        for line in self._node.stdout:
            event = json.loads(line)
            if event["event"] == "node":
                return str(event["addresses"][0])
        raise RuntimeError(f"{self._ending(self._node.wait())} {line.decode(errors='replace')}")

    def follow(self, progress: Progress) -> tuple[list[Kept], str]:
        node = self._node
        assert node.stdin is not None and node.stdout is not None
        saved: list[Kept] = []
        completions = foreign = 0
        of_round: dict[int, int] = {0: 0}
        try:
            for line in node.stdout:
                event, used = json.loads(line), tree_cpu_seconds(node.pid)
                if event["event"] == "round":
                    completions += sum(event["completions_by_task"].values())
                    of_round[event["round"]] = completions
                    foreign = event["foreign_groups_used_total"]
                elif event["event"] == "checkpoint":
                    number, path = event["round"], Path(event["path"])
                    saved.append(Kept(used, number, of_round.get(number, completions), foreign, path))
                    progress(used)
                if used >= self._seconds:
                    break
        finally:
            node.stdin.close()
            threading.Thread(target=node.stdout.read, daemon=True).start()  # a node whose output is not read stops
            status = node.wait()
        kept = saved[:: max(1, len(saved) // self._parts)]
        kept += saved[-1:] if kept[-1:] != saved[-1:] else []
        kept = [each for each in kept if each.path.exists() and each.seconds <= 1.1 * self._seconds]
        return kept, "" if saved else self._ending(status)

    def success(self, kept: Kept, judge: Judge) -> float:
        return judge.of_checkpoint(self._model, kept.path)

    def _listen(self) -> None:
        assert self._node.stderr is not None
        self._said.extend(self._node.stderr)

    def _ending(self, status: int) -> str:
        self._listening.join()
        return f"exit status {status}: {b''.join(self._said[-3:]).decode(errors='replace')}"


class ContenderRun:
    """``contenders/skill_contender.py`` in the contender's own environment."""

    def __init__(self, contender: str, folder: Path, model: str, **job: Any) -> None:
        """``job``: ``rate``, ``batch``, ``seed``, ``threads``, ``seconds``, ``parts``, and more that it is told."""
        python, _ = CONTENDERS[contender]
        self._model, self._batch, self._errors = model, job["batch"], (folder / "errors").open("w+")
        written = folder / "job.json"
        written.write_text(
            json.dumps(
                {
                    **job,
                    "model": str(model_folder(setting_of(model))),
                    "prompts": training_questions(job["seed"]),
                    "completions": COMPLETIONS,
                    "longest": max(task.max_new_tokens for task in load_tasks(TasksSection()).values()),
                    "folder": str(folder),
                    "rewards": [sys.executable, "-m", "scripts.bench.contenders.reward_process"],
                }
            )
        )
        command = [str(python), "-m", "scripts.bench.contenders.skill_contender", contender, str(written)]
        environment = {**without_compute_settings(os.environ), "WANDB_MODE": "disabled"}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": self._errors, "text": True, "env": environment}
        self._process: subprocess.Popen[str] = subprocess.Popen(command, cwd=REPOSITORY, **pipes)

    def address(self) -> str:
        for said in self._lines("address"):
            return str(said["address"])
        raise RuntimeError(self._ended())

    def follow(self, progress: Progress) -> tuple[list[Kept], str]:
        kept: list[Kept] = []
        try:
            for said in self._lines("seconds"):
                counts = (said["steps"], said["completions"], said["foreign"])
                kept.append(Kept(said["seconds"], *counts, Path(said["folder"])))
                progress(said["seconds"])
        except BaseException:
            self._process.kill()
            raise
        return kept, self._ended()

    def success(self, kept: Kept, judge: Judge) -> float:
        return judge.of_folder(self._model, kept.path)

    def _lines(self, key: str) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(f'{{"{key}"'):  # libraries print too
                yield json.loads(line)

    def _ended(self) -> str:
        """Waits for its end. Returns why it failed."""
        status = self._process.wait()
        with self._errors as errors:
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:]
        return "" if status == 0 else f"exit status {status}: {''.join(last)}"
