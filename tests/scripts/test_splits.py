"""What ``splits.py`` says of families."""

from __future__ import annotations

from scripts.experiments.splits import Family, family_of


def test_family_whose_last_exchanges_stay_within_two_pairs_is_split() -> None:
    mixed = [(0, 1), (1, 2), (2, 3)]
    assert Family([*mixed, *[(0, 1), (2, 3)] * 4], 0, 1.0).is_split(4)
    assert not Family([*[(0, 1), (2, 3)] * 4, *mixed, (0, 3)], 0, 1.0).is_split(4)


def test_replicas_that_drift_part_where_outliers_are_refused_and_stay_one_family_where_they_count_less() -> None:
    refused, weighed = (
        [family_of(4, 400, seed, correlation=0.8, refusing=refusing) for seed in range(4)] for refusing in (True, False)
    )
    assert any(each.is_split(4) and each.refusals > 10 for each in refused)
    assert not any(each.is_split(4) or each.refusals for each in weighed)
