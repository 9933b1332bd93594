"""Which announced state is chosen, and why the others are not."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from node.state_sync.state_choice import (
    FRESH_SECONDS,
    SETTLE_SECONDS,
    SearchMove,
    StateChoice,
    StateRequirements,
    StateUnfit,
    choose_state,
    claimed_success,
    next_search_move,
)
from protocol.messages import StateAdvert, StateBlob, TaskSuccess
from swarm.api import SeenState

NOW = 1_790_000_000.0
FAMILY, LAYOUT = b"f" * 16, b"l" * 16
ANCHOR_BYTES = 1000
OURS = StateRequirements(LAYOUT, ("add", "sort"), ANCHOR_BYTES, 10_000)


def blob(name: str, weights: str, size: int = ANCHOR_BYTES) -> StateBlob:
    return StateBlob(name.encode().ljust(32, b"."), size, weights.encode().ljust(32, b"."))


def seen(
    peer: str,
    *chain: StateBlob,
    success: float | None = 0.5,
    samples: int = 1000,
    reputation: float = 0.5,
    age_seconds: float = 1.0,
    version: int = 7,
    layout: bytes = LAYOUT,
) -> SeenState:
    tasks = () if success is None else tuple(TaskSuccess(task, success, samples) for task in OURS.tasks)
    anchor, *diffs = chain or (blob(f"anchor of {peer}", f"weights of {peer}"),)
    advert = StateAdvert(FAMILY, layout, version, 0, tasks, anchor, tuple(diffs))
    return SeenState(peer, NOW - age_seconds, reputation, advert)


def chosen(*states: SeenState, ours: StateRequirements = OURS) -> str | None:
    """Returns who announces the chosen state."""
    choice = choose_state(NOW, states, ours, ())
    return choice.chosen.announcers[0] if choice.chosen is not None else None


def test_the_best_by_success_on_our_tasks_is_taken() -> None:
    assert chosen(seen("a", success=0.4), seen("b", success=0.8), seen("c", success=0.6)) == "b"


def test_success_on_few_samples_counts_less() -> None:
    assert chosen(seen("a", success=0.6), seen("b", success=1.0, samples=3)) == "a"


def test_a_claim_of_more_samples_than_can_be_weighs_no_more_than_a_thousand() -> None:
    many = claimed_success([TaskSuccess("add", 0.5, 2**63 - 1)], ("add",))
    assert many == claimed_success([TaskSuccess("add", 0.5, 1000)], ("add",))


def test_success_on_tasks_that_we_do_not_train_counts_nothing() -> None:
    claims = [TaskSuccess("add", 1.0, 10**6), TaskSuccess("poetry", 1.0, 10**6)]
    assert claimed_success(claims, ("add", "sort")) < 0.5
    assert claimed_success(claims, ()) == 0.0


def test_of_states_alike_the_one_that_others_took_over_is_taken() -> None:
    shared = blob("anchor", "shared")
    assert chosen(seen("a", success=0.505), seen("b", shared, success=0.5), seen("c", shared, success=None)) == "b"


def test_versions_that_peers_claim_decide_nothing() -> None:
    assert chosen(seen("a", success=0.6, version=3), seen("b", success=0.5, version=2**63 - 1)) == "a"
    assert chosen(seen("a", version=3), seen("b", version=90)) == chosen(seen("a", version=90), seen("b", version=3))


def test_claim_counts_by_the_reputation_of_the_peer_that_makes_it() -> None:
    assert chosen(seen("a", success=0.6, reputation=0.9), seen("b", success=1.0, reputation=0.5)) == "a"


def test_low_claims_of_others_do_not_hide_a_state() -> None:
    shared = blob("anchor", "shared")
    low = [seen(f"low{i}", shared, success=0.0) for i in range(10)]
    assert chosen(*low, seen("a", shared, success=0.6), seen("b", success=0.4)) != "b"


def test_a_state_that_nobody_measured_is_taken_only_for_want_of_another() -> None:
    assert chosen(seen("a", success=None), seen("b", success=0.01)) == "b"
    assert chosen(seen("a", success=None)) == "a"


def test_a_peer_with_a_proven_fault_is_not_believed() -> None:
    choice = choose_state(NOW, [seen("a", reputation=0.17)], OURS, ())
    assert choice.chosen is None
    assert choice.rejected == {StateUnfit.REPUTATION: 1}
    assert StateUnfit.REPUTATION in choice.because


def test_what_cannot_be_used_is_left_out_with_its_reason() -> None:
    large = seen("d", blob("a", "v"), blob("d", "w", 9_500))
    choice = choose_state(
        NOW,
        [
            seen("a", layout=b"o" * 16),
            seen("b", age_seconds=FRESH_SECONDS + 1),
            seen("c", blob("anchor", "weights", ANCHOR_BYTES + 2)),
            large,
        ],
        OURS,
        (),
    )
    assert choice.chosen is None
    assert set(choice.rejected) == {
        StateUnfit.OTHER_LAYOUT, StateUnfit.OLD, StateUnfit.ANCHOR_SIZE, StateUnfit.TOO_LARGE
    }  # fmt: skip


def test_junk_that_claims_the_weights_of_another_spoils_nothing() -> None:
    honest = seen("a", blob("anchor", "weights"))
    junk = seen("b", blob("junk", "weights"), reputation=0.9)
    first = choose_state(NOW, [honest, junk], OURS, ())
    assert first.chosen is not None
    assert first.chosen.holders == ("b", "a")
    second = choose_state(NOW, [honest, junk], OURS, [first.chosen.advert.blobs])
    assert second.chosen is not None
    assert {first.chosen.announcers, second.chosen.announcers} == {("a",), ("b",)}
    assert choose_state(NOW, [honest, junk], OURS, [honest.advert.blobs, junk.advert.blobs]).chosen is None


def test_everybody_who_has_a_blob_is_asked_for_it() -> None:
    anchor, one, two = blob("anchor", "v0"), blob("one", "v1", 10), blob("two", "v2", 10)
    states = [seen("a", anchor, one, two, success=0.9), seen("b", anchor, one, success=0.5), seen("c", anchor)]
    choice = choose_state(NOW, states, OURS, ())
    assert choice.chosen is not None
    assert [set(each.peers) for each in choice.chosen.wanted] == [{"a", "b", "c"}, {"a", "b"}, {"a"}]
    assert choice.chosen.size_bytes == ANCHOR_BYTES + 20


def test_a_node_with_a_checkpoint_takes_only_what_is_better() -> None:
    trained = StateRequirements(LAYOUT, OURS.tasks, ANCHOR_BYTES, 10_000, success=0.6)
    assert chosen(seen("a", success=0.6), ours=trained) is None
    assert chosen(seen("a", success=None), ours=trained) is None
    assert chosen(seen("a", success=0.8), ours=trained) == "a"
    assert "0.600" in choose_state(NOW, [seen("a", success=0.6)], trained, ()).because


@given(
    st.lists(
        st.builds(
            lambda peer, success, reputation, version: seen(
                str(peer), success=success, reputation=reputation, version=version
            ),
            st.integers(0, 5),
            st.none() | st.floats(0, 1),
            st.floats(0, 1),
            st.integers(0, 9),
        ),
        max_size=8,
    ),
    st.randoms(),
)
def test_the_order_in_which_peers_are_heard_decides_nothing(states: list[SeenState], random: object) -> None:
    one = {s.peer: s for s in states}
    shuffled = list(one.values())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert chosen(*one.values()) == chosen(*shuffled)


def move(waited_seconds: float, heard_seconds: float | None, choice: StateChoice, **changes: float) -> SearchMove:
    fields: dict[str, Any] = {"patience_seconds": 60.0, "family_peers": 1} | changes
    return next_search_move(waited_seconds, heard_seconds, choice, **fields)


def test_the_first_announcement_is_not_taken_before_others_could_be_heard() -> None:
    choice = choose_state(NOW, [seen("a")], OURS, ())
    assert move(3.0, 0.5, choice).then == "wait"
    assert move(9.0, SETTLE_SECONDS, choice).then == "take"
    assert move(2.0, 0.5, choice, patience_seconds=2.0).then == "take"


def test_waiting_ends_with_the_reason() -> None:
    nothing = choose_state(NOW, [], OURS, ())
    assert move(59.0, None, nothing, family_peers=0).then == "wait"
    end = move(60.0, None, nothing, family_peers=2)
    assert end.then == "stop"
    assert "no peer of our family announces a state" in end.because
    assert "2 of our family are there" in end.because
