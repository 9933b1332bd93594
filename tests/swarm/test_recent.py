"""The bound on what is remembered of strangers."""

from __future__ import annotations

from swarm.recent import Recent
from swarm.token_bucket import TokenBuckets


def test_the_earliest_leaves_above_the_bound_and_one_set_again_is_the_latest() -> None:
    recent: Recent[str, int] = Recent(2)
    for number, key in enumerate(("one", "two", "one", "three")):
        recent[key] = number
    assert dict(recent) == {"one": 2, "three": 3}


def test_a_key_is_limited_for_as_long_as_fewer_others_than_the_bound_were_used_since() -> None:
    buckets: TokenBuckets[str] = TokenBuckets(rate=0.1, burst=1.0, most=2)
    assert [buckets.take(key, now_seconds=0.0) for key in ("one", "one", "two", "one")] == [True, False, True, False]
    assert [buckets.take(key, now_seconds=0.0) for key in ("three", "two", "one")] == [True, True, True]
    assert len(buckets) == 2
