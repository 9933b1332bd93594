"""Questions of the web page, over a small stand-in for the process that answers, and once over the real one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node.supervision.children import ChildSpec
from node.supervision.rolling_log import RollingLog
from node.supervision.trying import Trying, room_beside_learner, try_spec
from node.trying.messages import TryRequest
from node.trying.tried import Tried
from protocol.errors import ConfigurationError, EngineLostError, TooLittleMemoryError
from tests.hang_guard import HANG_SECONDS
from tests.node.export.trained_run import trained_run

pytestmark = pytest.mark.processes

SAY = "import json, sys\ndef say(**said): print(json.dumps(said), flush=True)\nsay(said='doing', what='starting')\n"
ECHO = (
    SAY
    + """
sys.stdin.readline()  # what it starts with
for line in sys.stdin:
    text = json.loads(line)['text']
    tried = {'question': text, 'task': None, 'seed': None, 'right_answer': None, 'answers': []}
    say(said='refused', because='not that') if text == 'no' else say(said='answered', tried=tried)
"""
)
SILENT = SAY + "sys.stdin.read()"
DYING = SAY + "sys.stdin.readline(); sys.stdin.readline(); sys.exit(3)"
ASKED = TryRequest("why")


async def there_is_room() -> str | None:
    return None


@asynccontextmanager
async def trying(folder: Path, program: str, idle_seconds: float = HANG_SECONDS) -> AsyncIterator[Trying]:
    spec = ChildSpec("try", (sys.executable, "-c", program), b"{}", None)
    made = Trying(spec, RollingLog(folder / "try.log", max_bytes=1 << 16), idle_seconds=idle_seconds)
    try:
        yield made
    finally:
        await made.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not is_so():  # noqa: ASYNC110 - it waits for another process
            await asyncio.sleep(0.01)


async def test_one_process_answers_question_after_question_and_ends_with_the_node(tmp_path: Path) -> None:
    async with trying(tmp_path, ECHO) as made:
        assert (await made.ask(ASKED, there_is_room)).question == "why"
        pid = made.pid
        with pytest.raises(ConfigurationError, match="not that"):
            await made.ask(TryRequest("no"), there_is_room)
        assert (await made.ask(ASKED, there_is_room)).question == "why"
        assert made.pid == pid is not None and made.doing is None
    assert made.pid is None


async def test_no_process_is_started_where_the_learner_needs_the_memory(tmp_path: Path) -> None:
    async def why_not() -> str:
        return "the learner has it"

    async with trying(tmp_path, ECHO) as made:
        with pytest.raises(TooLittleMemoryError, match="the learner has it"):
            await made.ask(ASKED, why_not)
        assert made.pid is None
        assert (await made.ask(ASKED, there_is_room)).question == "why"


async def test_a_second_question_is_refused_while_one_is_open_and_that_one_fails_when_the_learner_starts(
    tmp_path: Path,
) -> None:
    async with trying(tmp_path, SILENT) as made:
        first = asyncio.create_task(made.ask(ASKED, there_is_room))
        await until(lambda: made.doing == "starting")
        with pytest.raises(ConfigurationError, match="another question"):
            await made.ask(ASKED, there_is_room)
        made.end("the learner starts")
        with pytest.raises(EngineLostError, match="the learner starts"):
            await first
        await until(lambda: made.pid is None)


async def test_a_process_that_dies_fails_the_question_and_the_next_one_starts_another(tmp_path: Path) -> None:
    async with trying(tmp_path, DYING) as made:
        for _ in range(2):
            with pytest.raises(EngineLostError):
                await made.ask(ASKED, there_is_room)


async def test_a_process_that_nobody_asks_is_ended(tmp_path: Path) -> None:
    async with trying(tmp_path, ECHO, idle_seconds=0.0) as made:
        await made.ask(ASKED, there_is_room)
        await until(lambda: made.pid is None)


async def test_real_process_answers_from_base_and_checkpoint_beside_a_learner_that_leaves_room(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run")
    log = RollingLog(tmp_path / "try.log", max_bytes=1 << 20)
    made = Trying(try_spec(run.home, run.config.model_dump(mode="json")), log)

    async def room(planned_bytes: int = 0) -> str | None:
        return await room_beside_learner(
            run.home, run.config, planned_bytes=planned_bytes, held_bytes=0, others_bytes=0
        )

    try:
        with pytest.raises(TooLittleMemoryError):
            await made.ask(TryRequest("%&'()"), lambda: room(1 << 60))
        tried: Tried = await made.ask(TryRequest("%&'()"), room)
    finally:
        await made.close()
    assert [answer.model for answer in tried.answers] == ["base", "round 8"]
