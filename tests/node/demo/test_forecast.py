"""What a demonstration says of its time: before it ran, as its first answers come, and after each part."""

from __future__ import annotations

from node.demo.forecast import ALONE_SHARE, OTHERS_WEIGHT, DemoForecast, DemoPart, Measuring, about, plan_lines
from node.demo.show import measuring_line


def forecast(nodes: int = 4, others: float = 0.0, minutes: float | None = 1.0, first: int = 4) -> DemoForecast:
    seconds = None if minutes is None else minutes * 60
    return DemoForecast(nodes=nodes, cores=2, others=others, learning_seconds=seconds, prompts=200, first=first)


def measuring(answers: int, seconds: float, loaded_seconds: float = 10.0) -> Measuring:
    return Measuring("wren", answers, 6000, loaded_seconds, seconds)


def test_the_plan_says_the_whole_and_each_part_before_anything_ran() -> None:
    plan = forecast()
    head, *parts = plan_lines(plan)
    assert plan.whole_seconds == sum(plan.seconds[part] or 0 for part in DemoPart)
    assert head == f"It takes {about(plan.whole_seconds or 0)} in all:"
    assert [line.rpartition("  ")[2] for line in parts] == [str(part) for part in DemoPart]
    assert (plan.seconds[DemoPart.TOGETHER] or 0) > 60
    assert plan.left_seconds(DemoPart.BEFORE) == plan.whole_seconds


def test_a_busy_machine_is_given_more_time_and_that_is_said() -> None:
    quiet, busy = forecast(), forecast(others=4.0 / OTHERS_WEIGHT)
    assert (busy.seconds[DemoPart.BEFORE] or 0) == 2 * (quiet.seconds[DemoPart.BEFORE] or 0)
    assert "busy" in plan_lines(busy)[0] and "busy" not in plan_lines(quiet)[0]


def test_the_plan_of_a_quiet_machine_is_that_of_a_demonstration_that_ran_on_one() -> None:
    # A minute with three models on two quiet cores: what its parts took.
    took = {DemoPart.BEFORE: 10, DemoPart.TOGETHER: 69, DemoPart.MEASURED_TOGETHER: 10, DemoPart.ALONE: 34,
            DemoPart.MEASURED_ALONE: 11}  # fmt: skip
    plan = forecast(nodes=3, first=3)
    assert all(abs((plan.seconds[part] or 0) / seconds - 1) < 0.25 for part, seconds in took.items())
    assert abs((plan.whole_seconds or 0) / 134 - 1) < 0.1


def test_the_plan_of_a_busy_machine_is_near_that_of_a_demonstration_that_ran_on_one() -> None:
    # The same beside other work that left each of three processes .14 of a core.
    took = {DemoPart.BEFORE: 69, DemoPart.TOGETHER: 125, DemoPart.MEASURED_TOGETHER: 85, DemoPart.ALONE: 94}
    plan = forecast(nodes=3, first=3, others=11.0)
    planned = sum(plan.seconds[part] or 0 for part in took)
    assert abs(planned / sum(took.values()) - 1) < 0.25


def test_the_first_answers_of_every_model_correct_all_that_is_left() -> None:
    plan = forecast()
    assert not plan.on_measuring([measuring(0, 10.0), measuring(600, 12.0)])
    assert plan.on_measuring([measuring(600, 12.0), measuring(600, 22.0, loaded_seconds=20.0)])
    assert plan.seconds[DemoPart.BEFORE] == plan.seconds[DemoPart.MEASURED_ALONE] == 40.0
    assert plan.seconds[DemoPart.TOGETHER] == 60.0 + 12.0 * 20.0 / 7.0  # loading took 20 s, not 7


def test_a_part_that_ended_says_how_long_its_like_will_take() -> None:
    plan = forecast()
    plan.on_end(DemoPart.BEFORE, 40.0)
    plan.on_end(DemoPart.TOGETHER, 100.0)  # 60 of them learning
    assert plan.seconds[DemoPart.TOGETHER] == 100.0
    assert plan.left_seconds(DemoPart.MEASURED_TOGETHER) == 40.0 + (40.0 + 60.0 * ALONE_SHARE) + 40.0
    plan.on_end(DemoPart.MEASURED_TOGETHER, 30.0)
    assert plan.left_seconds(DemoPart.ALONE) == 40.0 + 60.0 * ALONE_SHARE + 30.0


def test_a_family_is_measured_once_before_and_all_at_once_after() -> None:
    plan = forecast(first=1)
    plan.on_end(DemoPart.BEFORE, 20.0)
    assert plan.seconds[DemoPart.MEASURED_TOGETHER] == 40.0


def test_where_tokens_are_the_bound_only_measuring_is_told() -> None:
    plan = forecast(minutes=None)
    assert plan.whole_seconds is None and plan.left_seconds(DemoPart.TOGETHER) is None
    head, *parts = plan_lines(plan)
    assert head == "The plan:" and "until the tokens are generated" in parts[1] and "about" in parts[2]
    plan.on_end(DemoPart.TOGETHER, 9.0)
    assert plan.seconds[DemoPart.ALONE] is None


def test_a_measurement_says_how_far_it_is_and_what_is_left() -> None:
    assert measuring_line(measuring(0, 10.0)).endswith("measured 0 of 6,000 answers")
    assert measuring_line(measuring(3000, 40.0)).endswith("measured 3,000 of 6,000 answers, about 30 s left")
    assert measuring_line(measuring(6000, 70.0)).endswith("6,000 of 6,000 answers")


def test_times_are_told_as_exactly_as_they_are_known() -> None:
    assert [about(seconds) for seconds in (1, 38, 89, 100, 280)] == [
        "about 5 s", "about 40 s", "about 90 s", "about 1.5 minutes", "about 4.5 minutes",
    ]  # fmt: skip
