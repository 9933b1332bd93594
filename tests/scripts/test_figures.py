"""``docs/figures.md``, the records that it is written from, and the README's figures."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from node.configuration.sources import known_keys
from scripts import REPOSITORY
from scripts.bench.counts import counted
from scripts.experiments import family
from scripts.figure_rows import README_ROWS, ROWS, Row
from scripts.figure_sources import SOURCES, changed_since, code_of
from scripts.figures import LEDGER, PAGE, RECORDS, Machine, Record, load_records, page, record

ROW = Row("speed", "wire", "≥ 2 ×", "{ratio|.1f} ×")
OTHER = Row("size", "blobs", "", "{bytes|.0f} B")
MADE = Record("python -m scripts.bench.wire", Machine("a processor", 2), {"ratio": 2.25}, "2026-01-02", 0.5, "abc1234")
VARIES = ("bytes kept", "decoding")  # by what an allocator or a draw makes of it; the rest is exact


def test_page_is_what_the_script_writes_from_the_records() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(load_records(RECORDS))


def test_every_record_has_a_row_or_is_counted_and_every_row_says_what_it_measures() -> None:
    benches = {row.bench for row in ROWS} | {"counts"}
    assert load_records(RECORDS).keys() <= benches
    assert SOURCES.keys() == benches
    for name, source in SOURCES.items():
        assert source.measures, name
        assert [path for path in source.measures if not (REPOSITORY / path).exists()] == [], name


def test_newest_line_of_the_ledger_is_the_record() -> None:
    lines = [json.loads(line) for line in (RECORDS / LEDGER).read_text(encoding="utf-8").splitlines()]
    newest = {line["bench"]: line for line in lines}
    for name, made in load_records(RECORDS).items():
        assert (newest[name]["commit"], newest[name]["date"]) == (made.commit, made.date), name
        assert newest[name]["figures"].items() <= made.figures.items(), name


def test_every_figure_of_the_ledger_names_a_commit_of_this_history() -> None:
    listing = ["git", "-C", str(REPOSITORY), "rev-list", "HEAD"]
    listed = subprocess.run(listing, capture_output=True, text=True, check=False).stdout
    history = {commit[:7] for commit in listed.split()}
    lines = [json.loads(line) for line in (RECORDS / LEDGER).read_text(encoding="utf-8").splitlines()]
    if lines[0]["commit"] not in history:
        pytest.skip("this checkout lacks the history")
    lost = {line["bench"]: line["commit"] for line in lines if line["commit"] not in history}
    assert lost == {}  # rewritten since: the parent of the record's own commit has that code


def test_what_can_be_counted_is_what_the_record_says() -> None:
    known = load_records(RECORDS)["counts"].figures
    found = {figure.name: figure.value for figure in counted()}
    assert found.keys() == known.keys()
    for name, value in found.items():
        within = 0.02 if name.startswith(VARIES) or any(each in name for each in VARIES) else 1e-9
        assert value == pytest.approx(known[name], rel=within), (
            f"{name}: if the change is wanted, commit it, then python -m scripts.figures record counts --busy"
        )


def test_the_readmes_figures_are_those_of_records() -> None:
    records = load_records(RECORDS)
    table = (REPOSITORY / "README.md").read_text(encoding="utf-8").partition(" figures\n\n| figure")[2]
    rows = [line.strip("| ").replace("*", "").split(" | ") for line in table.split("\n\n")[0].splitlines()[2:]]
    assert rows == [[row.text, row.measured(records[row.bench].figures)] for row in README_ROWS]


def test_the_readmes_figures_were_measured_with_settings_that_a_user_has() -> None:
    own = {key for key in known_keys() if not key.startswith("objective.research")}
    for row in README_ROWS:
        assert set(SOURCES[row.bench].settings) <= own, row.bench
    of_conditions = {
        f"{section}.{key}"
        for condition in family.CONDITIONS
        for section, keys in condition.settings.items()
        for key in keys
    }
    assert set(SOURCES["family"].settings) == of_conditions


def test_row_has_the_figure_the_bar_the_date_the_load_the_commit_and_the_command() -> None:
    text = page({"wire": MADE}, [ROW])
    assert "| speed | 2.2 × | ≥ 2 × | 2026-01-02, load 0.5, A, abc1234 | `python -m scripts.bench.wire` |" in text
    assert "- A: a processor, 2 cores" in text


def test_figures_of_another_machine_and_rows_without_a_record_are_marked() -> None:
    elsewhere = replace(MADE, machine=Machine("another", 8, "AVX2"), figures={"bytes": 7.0})
    text = page({"wire": MADE, "blobs": elsewhere}, [ROW, OTHER])
    assert "| size | 7 B |  | 2026-01-02, load 0.5, B, abc1234 |" in text
    assert "- B: another, 8 cores, AVX2" in text
    assert "| size |  | `python -m scripts.figures record blobs` | 2 min |" in page({"wire": MADE}, [ROW, OTHER])


def test_page_without_a_figure_of_a_row_is_not_written() -> None:
    with pytest.raises(KeyError, match="ratio"):
        page({"wire": replace(MADE, figures={})}, [ROW])


def test_comments_docstrings_and_what_runs_on_a_gpu_are_no_code_that_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        named = ["-c", "user.name=t", "-c", "user.email=t@example"]
        command = ["git", "-C", str(tmp_path), *named, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "node").mkdir()
    for name in ("told.py", "done.py", "gone.py", "triton_sum.py", "page.md"):
        (tmp_path / "node" / name).write_text(f'"""What {name} does."""\nX = 1  # one\n')
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "before")
    before = git("rev-parse", "HEAD")
    (tmp_path / "node" / "told.py").write_text('"""Says the same in other words."""\n\n# one\nX = 1\n')
    (tmp_path / "node" / "page.md").write_text("another page")
    (tmp_path / "node" / "triton_sum.py").write_text("X = 2")  # no figure is of a GPU
    assert changed_since(before, ["node"], tmp_path) == []
    (tmp_path / "node" / "done.py").write_text('"""What done.py does."""\nX = 2  # one\n')
    (tmp_path / "node" / "gone.py").unlink()
    assert changed_since(before, ["node"], tmp_path) == ["node/done.py", "node/gone.py"]
    git("add", ".")
    git("commit", "-qm", "after")
    assert changed_since(before, ["node"], tmp_path) == ["node/done.py", "node/gone.py"]
    assert changed_since(before, ["elsewhere"], tmp_path) == []


def test_code_that_is_only_a_docstring_is_compared_too() -> None:
    assert code_of("a.py", b'"""One."""') == code_of("a.py", b'"""Two."""')
    assert code_of("a.py", b"def f():\n    return 1") != code_of("a.py", b"def f():\n    return 2")
    assert code_of("a.toml", b"# one") != code_of("a.toml", b"# two")


def test_benchmark_that_is_run_leaves_a_record_of_its_figures_and_a_line_in_the_ledger(tmp_path: Path) -> None:
    path = record("wire", ["--groups", "1", "--repeats", "1"], tmp_path, load_average=0.25, commit="abc1234")
    made = load_records(tmp_path)["wire"]
    assert path.parent == tmp_path
    assert made.command == "python -m scripts.bench.wire --groups 1 --repeats 1"
    assert (made.load_average, made.commit) == (0.25, "abc1234")
    assert made.figures["typical: advert and blob, of plain"] > 0
    [line] = (tmp_path / LEDGER).read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["figures"].keys() == {"typical: advert and blob, of plain"}


@pytest.mark.parametrize(("name", "arguments"), [("no_such_benchmark", []), ("wire", ["--no-such-flag"])])
def test_benchmark_that_does_not_run_leaves_no_record(tmp_path: Path, name: str, arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        record(name, arguments, tmp_path, load_average=0.25, commit="abc1234")
    assert list(tmp_path.iterdir()) == []
