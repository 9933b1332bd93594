"""The report of a run from its recorded lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from node.events import (
    Averaged,
    Event,
    Fault,
    LearnerReady,
    NamedPeer,
    OutOfMemory,
    PeersChanged,
    RoundDone,
    Stopped,
    TurnsUsed,
    Usage,
    encode_event,
)
from node.report.comparison import Comparison, compare, comparison_lines
from node.report.facts import run_facts
from node.report.html import report_page
from node.report.lines import report_lines
from protocol.errors import ConfigurationError
from tests.factories import round_done

Recorded = Event | Usage | PeersChanged
HOSTILE = "</script><b>x\x1b[2J"


def done(number: int, reward: float, **changes: object) -> RoundDone:
    event = round_done(
        number,
        time_seconds=1000.0 + number,
        seconds=1.0,
        reward=reward,
        reward_by_task={"add": reward},
        success_by_task={"add": reward},
        foreign_groups_used=2,
        foreign_rejected={"late": 1},
        groups_offered=4,
        groups_offered_total=4 * number,
        foreign_groups_used_total=2 * number,
        tokens_generated_total=100 * number,
        bytes_fetched=1000,
        foreign_completions=10,
    )
    return msgspec.structs.replace(event, **changes)


def ready(**changes: object) -> LearnerReady:
    event = LearnerReady(
        time_seconds=1000.0, model="builtin:wren", family="ab", tokenizer="cd", parameters=10, trainable_parameters=10,
        device="cpu", dtype="float32", tasks=("add",), round=0, checkpoint=None, seconds=1.0,
    )  # fmt: skip
    return msgspec.structs.replace(event, **changes)


def usage(second: float, sent_bytes: int) -> Usage:
    return Usage(
        time_seconds=second, supervisor_bytes=1, learner_bytes=2, swarm_bytes=3, sent_bytes_total=sent_bytes,
        received_bytes_total=10 * sent_bytes,
    )  # fmt: skip


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., Path]:
    def write(*events: Recorded, older: tuple[Recorded, ...] = (), rubbish: bytes = b"") -> Path:
        path = tmp_path / "metrics.jsonl"
        if older:
            (tmp_path / "metrics.jsonl.1").write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in older))
        path.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events) + rubbish)
        return path

    return write


def test_totals_run_over_every_start_and_over_both_halves_of_the_log(recorded: Callable[..., Path]) -> None:
    first = (ready(), *(done(n, 0.1) for n in range(1, 11)), usage(1005.0, 500), usage(1010.0, 700))
    second = (ready(time_seconds=1011.0), *(done(n, 0.9) for n in range(11, 21)), usage(1020.0, 50))
    ended = Stopped(time_seconds=1021.0, round=20, because="rounds", tokens_generated_total=2000, checkpoint=None)
    facts = run_facts(recorded(*second, ended, older=first))
    assert (facts.starts, facts.rounds, facts.tokens_generated, facts.ended_because) == (2, 20, 2000, "rounds")
    smoothed = 0.1 + 0.8 * (1 - 0.9**10) / (1 - 0.9**20)  # a round counts 0.9 of the next
    assert facts.first_reward == {"add": pytest.approx(0.1)} and facts.last_reward == {"add": pytest.approx(smoothed)}
    assert (facts.sharing.used, facts.sharing.offered, facts.sharing.bytes_per_foreign_completion) == (40, 80, 100.0)
    assert [(why.reason, why.count) for why in facts.sharing.not_used] == [("late", 20)]
    assert (facts.traffic.sent_bytes, facts.traffic.received_bytes) == (750, 7500)  # totals began anew at the second
    (line,) = [line for line in report_lines(facts) if line.startswith("reward")]
    assert line == "reward   add  0.10 → 0.69  +0.59"
    assert facts.model == "wren" and run_facts(recorded(ready(name="wren+lora8"))).model == "wren+lora8"


def test_turns_that_conversations_took_are_told_of_tasks_that_have_any(recorded: Callable[..., Path]) -> None:
    used = {"add": (TurnsUsed(2, 4, 3),)}
    lines = report_lines(run_facts(recorded(ready(), done(1, 0.5, turns_by_task=used))))
    (line,) = [line for line in lines if line.startswith("turns")]
    assert "2.0" in line and "0.75" in line
    assert not any(line.startswith("turns") for line in report_lines(run_facts(recorded(ready(), done(1, 0.5)))))


def test_a_run_that_goes_on_has_no_end_and_only_exchanges_with_a_partner_count(recorded: Callable[..., Path]) -> None:
    alone = Averaged(time_seconds=1003.0, round=3, partner=None, because="nobody", seconds=1.0)
    paired = msgspec.structs.replace(alone, partner="12D3", distance=0.02, sent_bytes=10, received_bytes=20)
    facts = run_facts(recorded(ready(), done(1, 0.5), alone, paired))
    assert facts.ended_because is None
    assert (facts.averaged_total, facts.averaged) == (1, (paired,))


def test_the_report_says_how_many_questions_of_peers_were_answered_in_own_words(recorded: Callable[..., Path]) -> None:
    def said(*events: Recorded) -> list[str]:
        return [line for line in report_lines(run_facts(recorded(*events))) if line.startswith("own words")]

    assert said(ready(), done(1, 0.5)) == []
    (line,) = said(ready(), done(1, 0.5, hints=16, hints_right=9), done(2, 0.5, hints=16, hints_right=11))
    assert "20 of 32" in line


def test_lines_that_do_not_decode_are_counted_and_skipped(recorded: Callable[..., Path]) -> None:
    facts = run_facts(recorded(ready(), done(1, 0.5), rubbish=b'{"event":"round","round":tr\nnot json\n'))
    assert (facts.rounds, facts.lines_passed_over) == (1, 1)
    assert report_lines(facts)[-1].startswith("note ") and report_lines(facts)[-1].endswith(" 1")


def test_nothing_recorded_is_refused_with_the_option_that_names_the_data_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"{tmp_path}.*--home"):
        run_facts(tmp_path / "metrics.jsonl")


def test_page_holds_no_markup_of_others_and_asks_no_other_server(recorded: Callable[..., Path]) -> None:
    fault = Fault(time_seconds=1002.0, kind="malformed", detail=HOSTILE, round=1, fatal=False)
    hostile = done(1, 0.5, reward_by_task={HOSTILE: 0.5})
    page = report_page(run_facts(recorded(ready(model=HOSTILE), hostile, fault)), name=HOSTILE)
    before, _, rest = page.partition('id="facts">')
    drawn, _, script = rest.partition("</script>")
    assert "<b>x" not in before and "\x1b" not in before + drawn
    assert "\\u003cb>" in drawn and "<" not in drawn
    assert 'src="' not in before and 'href="http' not in before
    assert not re.search(r"^(import|export) ", script, flags=re.MULTILINE)  # it is one script, which loads no other


def test_memory_that_ran_out_is_counted_and_listed_with_what_followed(recorded: Callable[..., Path]) -> None:
    ran_out = OutOfMemory(
        time_seconds=1002.0,
        round=3,
        phase="learn",
        then="halve",
        detail=HOSTILE,
        key="learner.batch_tokens",
        before=8192,
        after=4096,
    )
    facts = run_facts(recorded(ready(), done(1, 0.5), ran_out, ran_out))
    assert facts.out_of_memory_total == 2 and facts.out_of_memory == (ran_out, ran_out)
    page = report_page(facts, name="ann")
    assert "Memory ran out 2 times" in page and "learner.batch_tokens: 8192 to 4096" in page and HOSTILE not in page
    assert "ran out" not in report_page(run_facts(recorded(ready(), done(1, 0.5))), name="ann")


def test_the_events_that_a_report_reads_have_the_tags_that_the_node_writes() -> None:
    assert encode_event(done(1, 0.5)).startswith(b'{"event":"round"')
    assert msgspec.json.encode(usage(1.0, 1)).startswith(b'{"event":"usage"')


def taught(number: int, reward: float, **changes: object) -> RoundDone:
    return done(number, reward, completions_by_task={"add": 8}, gradient_mass_by_task={"add": {"bob": 1.0}}, **changes)


def test_the_report_says_what_came_from_whom_what_was_lost_and_what_happened(recorded: Callable[..., Path]) -> None:
    bob = NamedPeer("bob", f"bob {HOSTILE}", "robin")
    came = PeersChanged(time_seconds=1000.5, round=0, came=(bob,), left=(), came_total=1, left_total=0, present=1)
    left = PeersChanged(time_seconds=1080.5, round=80, came=(), left=(bob,), came_total=0, left_total=1, present=0)
    rounds = [taught(n, 0.0 if n <= 2 else 0.8 if n <= 80 else 0.1) for n in range(1, 141)]
    facts = run_facts(recorded(ready(), came, *rounds[:80], left, *rounds[80:]))
    assert facts.gains is not None and facts.gains.peers[0].name is not None
    (loss,) = facts.gains.losses
    assert (loss.task, round(loss.best, 2), round(loss.now, 2)) == ("add", 0.8, 0.1)
    assert [mark.kind for mark in facts.history.marks] == ["start", "came", "left", "loss"]
    lines = report_lines(facts)
    assert any(line.startswith("gained   This node's mean reward over 1 task is 0.10") for line in lines)
    assert any(line.startswith("lost     add has fallen from 0.80") and "left after round 80" in line for line in lines)
    assert any(line.startswith("from     bob") and "add +0.10" in line for line in lines)
    assert all(line.isprintable() for line in lines)


def test_two_runs_are_compared_and_a_mean_does_not_hide_a_task_that_went_the_other_way(
    recorded: Callable[..., Path],
) -> None:
    few = {"add": 0.2, "sort": 0.5}
    alone = run_facts(recorded(ready(), *(done(n, 0.5, reward_by_task=few) for n in range(1, 21))))
    both = {"add": 0.9, "sort": 0.3, "new": 0.1}
    together = run_facts(recorded(ready(), *(done(n, 0.5, reward_by_task=both) for n in range(1, 31))))
    comparison = compare(alone, together, ("alone", f"together{HOSTILE}"))
    assert [(each.task, each.difference) for each in comparison.tasks] == [
        ("add", pytest.approx(0.7)),
        ("sort", pytest.approx(-0.2)),
        ("new", None),
    ]
    assert "higher by 0.250 of mean reward over the 2 tasks that both trained; on sort alone is higher by 0.200" in (
        comparison.sentence
    )
    lines = comparison_lines(comparison)
    assert all(line.isprintable() for line in lines)
    (run,) = [line for line in lines if line.startswith("run ")]
    assert "20 rounds" in run and "30 rounds" in run
    (new,) = [line for line in lines if line.startswith("new")]
    assert "–" in new and "0.100 → 0.100" in new
    assert msgspec.json.decode(msgspec.json.encode(comparison), type=Comparison).sentence == comparison.sentence


def test_runs_without_a_common_task_and_runs_that_end_alike_are_called_so(recorded: Callable[..., Path]) -> None:
    one = run_facts(recorded(ready(), done(1, 0.5)))
    other = run_facts(recorded(ready(), done(1, 0.5, reward_by_task={"sort": 0.5})))
    assert compare(one, one, ("a", "b")).sentence.startswith("Both end alike")
    assert "no task in common" in compare(one, other, ("a", "b")).sentence
