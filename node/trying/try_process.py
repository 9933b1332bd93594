"""The process that answers for the web page: ``python -m node.trying.try_process``. ``node.supervision.trying`` starts
it.

Standard input: one line, ``TryStart`` as JSON, then one ``TryRequest`` a line; with the end of input the process ends
at once, since it has nothing to save. Standard output: ``messages.Said``, a line each; a request ends with ``Answered``
or ``NotAnswered``. It computes on the CPU, with less of a core than the learner where both want one, and is the first
to be killed where memory runs out: the learner comes first.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from node.checkpoints.checkpoint_files import rounds
from node.checkpoints.choice import BEST, named_checkpoint
from node.configuration import Config
from node.home import Home
from node.library_imports import importing_libraries
from node.process_pipes import claim_standard_output
from node.tasks.catalogue import find_task
from node.trying.messages import Answered, Doing, NotAnswered, Said, TryRequest, TryStart
from node.trying.questions import DEFAULT_TOKENS, own_question, task_questions
from node.trying.tried import Question
from protocol.errors import ConfigurationError, StarlingError
from swarm.exit_codes import ExitCode

if TYPE_CHECKING:
    from node.trying.answering import LoadedModels

NICENESS: Final = 5  # a quarter of a core that the learner wants too; with 15 a person waited minutes for 3 %
OOM_SCORE: Final = "1000"  # the first to be killed
MAX_TOKENS: Final = 512  # of an answer


def main() -> int:
    """Returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor handles a terminal's Ctrl-C
    os.nice(NICENESS)
    with contextlib.suppress(OSError):  # another system than Linux
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    output = claim_standard_output()
    first_line = sys.stdin.buffer.readline()
    if not first_line:
        return ExitCode.USAGE  # no supervisor is there
    start = msgspec.json.decode(first_line, type=TryStart)
    lines: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, lines.put), name="stdin", daemon=True).start()

    def say(said: Said) -> None:
        output.write(msgspec.json.encode(said) + b"\n")
        output.flush()

    say(Doing("importing libraries"))
    with importing_libraries():
        from node.trying.answering import LoadedModels
    home, config = Home(Path(start.home)), Config.model_validate(start.config)
    section = config.policy.model_copy(update={"device": "cpu"})  # a GPU is the learner's

    def on_step(what: str) -> None:
        say(Doing(what))

    answer_all(home, config, LoadedModels(home, section, secrets.randbits(63), on_step), iter(lines.get, b""), say)
    return ExitCode.DONE


def answer_all(
    home: Home, config: Config, models: LoadedModels, lines: Iterable[bytes], say: Callable[[Said], None]
) -> None:
    """Answers each request of ``lines``, one after the other."""
    from node.trying.answering import ask

    begun: dict[str, Iterator[Question]] = {}
    for line in lines:
        request = msgspec.json.decode(line, type=TryRequest)
        try:
            question = _question(request, config, begun)
            tried = ask(models.of(_checkpoint(home, request)), question, 0.0, lambda what: say(Doing(what)))
        except StarlingError as error:
            say(NotAnswered(str(error)))
        else:
            say(Answered(tried))


def _question(request: TryRequest, config: Config, begun: dict[str, Iterator[Question]]) -> Question:
    if not request.of_task:
        return own_question(request.text, DEFAULT_TOKENS)
    name = request.text
    if name not in begun:
        task = find_task(config.tasks, name)
        begun[name] = task_questions(task, min(task.max_new_tokens, MAX_TOKENS))
    question = next(begun[name], None)
    if question is None:
        del begun[name]  # from the first one again
        raise ConfigurationError(f"{name} has no further question that nobody trains on: ask again for the first one")
    return question


def _checkpoint(home: Home, request: TryRequest) -> Path | None:
    """Returns the checkpoint that is asked for; None where there is none yet."""
    if request.checkpoint == BEST:
        return named_checkpoint(home.checkpoints, BEST)
    return next(reversed(rounds(home.checkpoints)), None)


def _read(lines: Iterable[bytes], put: Callable[[bytes], None]) -> None:
    for line in lines:
        put(line)
    os._exit(ExitCode.DONE)


if __name__ == "__main__":
    os._exit(main())  # the thread that reads the input must not delay the end
