"""How contenders of a benchmark take turns, and how their processor time is read."""

from __future__ import annotations

import os
import time
from pathlib import Path

from scripts.bench.common.generation_turns import GenerateOnce, Workload, measure
from scripts.bench.common.process_usage import cpu_seconds


def test_contenders_take_turns_in_alternating_order_and_the_first_round_does_not_count() -> None:
    order: list[str] = []

    def contender(name: str, speeds: list[float]) -> GenerateOnce:
        def run() -> float:
            order.append(name)
            return speeds.pop(0)

        return run

    contenders = {"ours": contender("ours", [9.0, 1.0, 2.0, 3.0]), "theirs": contender("theirs", [9.0, 4.0, 6.0, 5.0])}
    assert measure(contenders, rounds=3, busy=0) == {"ours": 2.0, "theirs": 5.0}
    assert order == ["ours", "theirs"] * 2 + ["theirs", "ours", "ours", "theirs"]


def test_tokens_count_to_the_limit_or_to_the_end() -> None:
    work = Workload("mixed", Path(), prompts=[[2]], limits=[3], eos_id=1)
    assert work.wanted([[5, 6, 7, 8], [5, 1, 7], [1]]) == 3 + 2 + 1


def test_processor_time_is_that_of_the_process() -> None:
    began, before = time.process_time(), cpu_seconds(os.getpid())
    while time.process_time() - began < 0.1:
        pass
    assert 0.05 < cpu_seconds(os.getpid()) - before < 1.0
