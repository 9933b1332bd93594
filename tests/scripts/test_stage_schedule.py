"""When the passes of a model in stages run, by arithmetic."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.fit.stages.schedule import OwnerOrder, Sent, StageSeconds, best_timeline, owner_order, ring, star, timeline
from node.fit.stages.work import Round, Training
from scripts.bench.common.published_shapes import SHAPES
from scripts.bench.stages.expected import LAN, PROCESSOR, layers_of, main, sizes_of, trained
from scripts.experiments.harness.crossings import Crosses

SECONDS = st.floats(min_value=0.01, max_value=3.0)
ORDERS = st.integers(1, 9).flatmap(lambda begun: st.builds(OwnerOrder, st.just(begun), st.integers(0, begun - 1)))
STAGES = st.lists(st.builds(StageSeconds, SECONDS, SECONDS), min_size=1, max_size=4)


@settings(max_examples=50, deadline=None)
@given(STAGES, SECONDS, SECONDS, st.integers(1, 9), ORDERS, st.sampled_from([0.0, 0.5]))
def test_every_machine_computes_all_of_its_work_and_holds_no_more_than_were_begun(
    stages: list[StageSeconds], turn: float, sent: float, count: int, order: OwnerOrder, delay: float
) -> None:
    found = timeline(ring(stages, turn, Sent(sent, delay)), count, order)
    of_owner = stages[0].forward + stages[0].backward + turn
    work = [of_owner, *(each.forward + each.backward for each in stages[1:])]
    for seconds, idle in zip(work, found.idle, strict=True):
        assert (1 - idle) * found.seconds == pytest.approx(count * seconds)
    assert max(found.held) <= min(order.begun, count)
    messages = 2 * len(stages) if len(stages) > 1 else 0
    assert found.seconds >= sum(work) + messages * (sent + delay) - 1e-9  # the chain of the first
    if order.begun == 1:
        assert found.seconds == pytest.approx(count * (sum(work) + messages * (sent + delay)))


@given(st.integers(1, 30), ORDERS)
def test_the_owner_works_three_times_on_each_micro_batch_with_no_more_under_way_than_are_begun(
    count: int, order: OwnerOrder
) -> None:
    found, works = owner_order(count, order), Counter[int]()
    assert [number for number in found if found.count(number) != 3] == []
    first = list(dict.fromkeys(found))
    assert first == list(range(count))  # forward in their order
    for number in found:
        works[number] += 1
        assert sum(0 < each < 3 for each in works.values()) <= order.begun
    turns = [[at for at, each in enumerate(found) if each == number][1] for number in range(count)]
    assert turns == sorted(turns)  # and at the head, which is the order in which they go back


def test_a_star_has_the_work_of_a_ring_and_the_owner_sends_on_what_comes_between_the_others() -> None:
    stages = [StageSeconds(1.0, 2.0), StageSeconds(2.0, 3.0), StageSeconds(0.5, 1.5)]
    there, around = star(stages, 0.7, [Sent(0.25), Sent(0.25)]), ring(stages, 0.7, Sent(0.25))
    assert sum(work.seconds for work in there) == pytest.approx(sum(work.seconds for work in around))
    assert [work.machine for work in there] == [0, 1, 0, 2, 0, 2, 0, 1, 0]
    assert timeline(there, 1, OwnerOrder(1, 0)).seconds == pytest.approx(10.7 + 8 * 0.25)
    unlike = star(stages, 0.7, [Sent(0.25, 0.5), Sent(1.0, 2.0)])  # each link is taken four times
    assert timeline(unlike, 1, OwnerOrder(1, 0)).seconds == pytest.approx(10.7 + 4 * (0.75 + 3.0))


def test_equal_machines_without_messages_wait_hardly_longer_than_by_1f1b() -> None:
    for machines in (1, 2, 3, 4):
        found, _ = best_timeline(ring([StageSeconds(1, 2)] * machines, 0.0, Sent()), 16, 4 * machines)
        assert found.seconds <= 1.1 * 3 * (16 + machines - 1)


def test_layers_follow_speed_and_none_is_lost() -> None:
    training, a_round = Training(sizes_of("Qwen2.5-0.5B"), whole=False), Round(32, 4, 128, 256, 1024)
    for speeds in ([1.0], [1.0, 1.0, 1.0], [3.0, 1.0], [1.0, 4.0, 2.0]):
        held = layers_of(training, a_round, speeds)
        assert sum(held) == SHAPES["Qwen2.5-0.5B"]["num_hidden_layers"]
    assert trained(training, a_round, PROCESSOR, LAN, Crosses("exact"), [3.0, 1.0]).seconds > 0


def test_arithmetic_prints_a_table_for_every_question(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--machines", "2", "--groups", "4"])
    tables = capsys.readouterr().out.strip().split("\n\n")
    assert len(tables) == 6 and all(len(each.splitlines()) > 3 for each in tables)
