"""``docs/figures.md`` and the records that it is written from."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from scripts.figure_rows import ROWS, Row
from scripts.figures import PAGE, RECORDS, Machine, Record, load_records, page, record

ROW = Row("speed", "trial", "≥ 2 ×", "{ratio|.1f} ×")
OTHER = Row("size", "other", "", "{bytes|.0f} B")
MADE = Record("python -m scripts.bench.trial", Machine("a processor", 2), {"ratio": 2.25}, "2026-01-02", 0.5)


def test_page_is_what_the_script_writes_from_the_records() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(load_records(RECORDS))


def test_every_record_has_a_row_and_says_when_it_was_measured_or_where_it_is_from() -> None:
    records = load_records(RECORDS)
    assert records.keys() == {row.bench for row in ROWS}
    assert all((each.date is None) == (each.source is not None) for each in records.values())


def test_row_has_the_figure_the_bar_the_date_the_load_and_the_command() -> None:
    text = page({"trial": MADE}, [ROW])
    assert "| speed | 2.2 × | ≥ 2 × | 2026-01-02, load 0.5, A | `python -m scripts.bench.trial` |" in text
    assert "- A: a processor, 2 cores" in text


def test_earlier_figures_and_those_of_another_machine_are_marked() -> None:
    earlier = replace(MADE, machine=Machine("another", 8, "AVX2"), figures={"bytes": 7.0}, date=None, source="a letter")
    text = page({"trial": MADE, "other": earlier}, [ROW, OTHER])
    assert "| size | 7 B |  | earlier, B |" in text
    assert "- B: another, 8 cores, AVX2" in text
    assert "a letter" in text


def test_page_without_a_figure_of_a_row_is_not_written() -> None:
    with pytest.raises(KeyError, match="ratio"):
        page({"trial": replace(MADE, figures={})}, [ROW])


def test_benchmark_that_is_run_leaves_a_record_of_its_figures(tmp_path: Path) -> None:
    path = record("wire", ["--groups", "1", "--repeats", "1"], tmp_path, load_average=0.25)
    made = load_records(tmp_path)["wire"]
    assert path.parent == tmp_path
    assert made.command == "python -m scripts.bench.wire --groups 1 --repeats 1"
    assert made.date is not None
    assert made.load_average == 0.25
    assert made.figures["typical: advert and blob, of plain"] > 0


@pytest.mark.parametrize(("name", "arguments"), [("no_such_benchmark", []), ("wire", ["--no-such-flag"])])
def test_benchmark_that_does_not_run_leaves_no_record(tmp_path: Path, name: str, arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        record(name, arguments, tmp_path, load_average=0.25)
    assert list(tmp_path.iterdir()) == []
