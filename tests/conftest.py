"""For all tests.

Asynchronous code is tested in two ways. What runs on asyncio (the supervisor, the HTTP API, ``starling top``) is tested
by coroutines, ``async def test_…``, which pytest-asyncio runs in the loop that the product uses. What runs on trio (all
of ``swarm/``) is tested by plain functions: each hands its story, with its hosts, to ``anyio.run`` on trio's
``MockClock``, so that a day of the story takes no time. That clock is an argument of the run and belongs to the test's
own world; a plug-in that makes the loop before the test begins has no place for either. Trio shuffles the tasks that
are ready with a generator of its own, which is seeded here, so that such a story goes the same way every time.
"""

import gc
import itertools
import os
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from trio._core import _run

from tests.examples import USUAL

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # as ``node.compute_environment`` does, which tells why
os.environ["MKL_CBWR"] = "AUTO,STRICT"  # likewise
os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton: its kernels then run here, on CPU tensors

# The same examples every time, however slow the machine: what CI refuses, everybody can see fail. For a search that
# finds something new: HYPOTHESIS_PROFILE=thorough ./scripts/test.sh --quick
settings.register_profile(
    "starling", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "thorough", settings.get_profile("starling"), derandomize=False, print_blob=True, max_examples=10 * USUAL
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "starling"))


@pytest.fixture(autouse=True)
def _tasks_in_the_same_order_every_time() -> None:
    _run._r.seed(0)  # a private name; Hypothesis and pytest-trio use it for the same purpose


gc.disable()  # until everything is imported; see pytest_collection_finish


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keeps torch, transformers and the tests themselves out of every later garbage collection: a sixth of the time."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.unfreeze()  # otherwise triton reports its own objects as leaked


PROCESSOR_SECONDS = "processor_seconds"
_began = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--processor-seconds", type=int, default=0, metavar="N", help="name the N files that took most processor time"
    )


def _processor_seconds() -> float:
    """Processor time of this process and of those of its children that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_began] = _processor_seconds()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "teardown":  # a property goes to the process that reports, also from a worker
        item.user_properties.append((PROCESSOR_SECONDS, _processor_seconds() - item.stash[_began]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """With ``--processor-seconds``: what all tests took, children included, and the files that took the most."""
    shown: int = config.getoption("--processor-seconds")
    if not shown:
        return
    files = Counter[str]()
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport) and report.when == "teardown":
            properties: dict[str, Any] = dict(report.user_properties)
            files[report.nodeid.partition("::")[0]] += properties[PROCESSOR_SECONDS]
    terminalreporter.section(f"processor time of the tests: {files.total() / 60:.1f} minutes")
    for name, seconds in files.most_common(shown):
        terminalreporter.write_line(f"{seconds:7.1f} s {name}")
