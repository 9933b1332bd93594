"""What ``splits.py`` says of families."""

from __future__ import annotations

from scripts.experiments.splits import Family, family_of


def test_family_whose_last_exchanges_stay_within_two_pairs_is_split() -> None:
    mixed = [(0, 1), (1, 2), (2, 3)]
    assert Family([*mixed, *[(0, 1), (2, 3)] * 4], 0, 1.0).is_split(4)
    assert not Family([*[(0, 1), (2, 3)] * 4, *mixed, (0, 3)], 0, 1.0).is_split(4)


def test_replicas_that_drift_stay_one_family_by_the_nodes_rule_and_part_where_three_deviations_are_refused() -> None:
    by_rule, by_three = (
        [family_of(4, 400, seed, correlation=0.8, most=most) for seed in range(4)] for most in (None, 3.0)
    )
    assert not any(each.is_split(4) for each in by_rule)
    assert any(each.is_split(4) and each.refusals > 10 for each in by_three)
