"""An environment in a file of the owner's own: found by its path, audited, and refused with the line where it fails."""

from __future__ import annotations

import msgspec
import pytest

from node.configuration import TasksSection, with_whole_paths
from node.configuration.published import shaping_configuration
from node.configuration.sources import load_config
from node.doctor.task_check import find_faults
from node.environments.audit import Audit, audit, audited_episodes, difference
from node.environments.audit_process import played
from node.environments.audited import is_replayable, note_audit
from node.environments.conversation import ConversationTask, transcript
from node.tasks.catalogue import find_conversation, sample
from node.tasks.registry import BUILT_IN_TASKS, named_tasks
from node.tasks.worker import score_one
from protocol.errors import ConfigurationError, MalformedError, StorageError
from scripts import REPOSITORY

PAGE = (REPOSITORY / "docs" / "environments.md").read_text(encoding="utf-8")
COUNTDOWN = PAGE.split("```python\n")[1].split("```")[0]


@pytest.fixture
def file(tmp_path):
    """The file of the page."""
    path = tmp_path / "countdown.py"
    path.write_text(COUNTDOWN)
    return path


def loaded(path) -> ConversationTask:
    (task,) = named_tasks(f"{path}:countdown")
    assert isinstance(task, ConversationTask)
    return task


def test_environment_of_the_page_plays_alike_again_and_its_example_earns_everything(file) -> None:
    task = loaded(file)
    for seed, actions in audited_episodes(task):
        first, again = (played(task, seed, actions, unkind) for unkind in (False, True))
        assert first.fault is None
        assert difference(seed, actions, first, again) is None
    verdict = score_one(task, task.prompt(task.ref(3)), transcript(task.example(3) or []))
    assert verdict.played is not None and (verdict.reward, verdict.fault, verdict.played.goes_on) == (1.0, None, False)
    assert (sample(task, 3).conversation or ())[-1].done


def test_it_is_found_by_its_own_name_where_the_configuration_names_the_file(file) -> None:
    section = TasksSection(names=(f"{file}:countdown",))
    assert find_conversation(section, "countdown").config_hash == loaded(file).config_hash
    assert not list(find_faults(section))


def test_another_content_is_another_environment_and_another_folder_is_not(file, tmp_path) -> None:
    task = loaded(file)
    elsewhere = tmp_path / "elsewhere.py"
    elsewhere.write_text(COUNTDOWN)
    assert loaded(elsewhere).config_hash == task.config_hash
    elsewhere.write_text(COUNTDOWN.replace("randint(8, 30)", "randint(8, 31)"))
    changed = loaded(elsewhere)
    assert changed.config_hash != task.config_hash
    own = msgspec.structs.replace(task.ref(0), config_hash=task.environment.config_hash)
    for ref in (task.ref(0), own):
        with pytest.raises(MalformedError):
            changed.prompt(ref)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (COUNTDOWN.replace("countdown = ", "count_down = "), "nearest name there is 'count_down'"),
        (COUNTDOWN.replace("def observation", "def observe"), r"AttributeError: .*'observation'"),
        (COUNTDOWN.replace("self.left = draws", "self.left = 1 // 0 or draws"), r"ZeroDivisionError.*py, line 8"),
        (COUNTDOWN.replace("max_turns=10", "max_turns=65"), "max_turns 65"),
        (
            "class Half:\n    name = 'half'\n    def begin(self, ref): ...\ncountdown = Half()",
            "without version, config_hash",
        ),
        ("countdown = 3", "without name, version"),
    ],
)
def test_unusable_file_is_refused_with_what_is_wrong(file, source, told) -> None:
    file.write_text(source)
    with pytest.raises(ConfigurationError, match=told):
        named_tasks(f"{file}:countdown")
    (fault,) = find_faults(TasksSection(names=(f"{file}:countdown",)))
    assert fault.key == "tasks.names" and fault.in_file


def test_path_is_kept_whole_for_the_next_start_and_never_published(tmp_path) -> None:
    config = load_config(tmp_path, {}, {"tasks.names": "own/countdown.py:countdown,grid"})
    whole = with_whole_paths(config, tmp_path)
    assert whole.tasks.names == (f"{tmp_path}/own/countdown.py:countdown", "grid")
    published = shaping_configuration(whole.model_dump(mode="json"))
    assert published["tasks"]["names"] == ["countdown.py:countdown", "grid"]


@pytest.mark.processes
def test_environment_of_the_page_passes_its_audit_and_one_that_reads_clock_folder_or_network_does_not(
    file, monkeypatch
) -> None:
    monkeypatch.chdir(file.parent)
    assert audit(TasksSection(), "countdown.py:countdown").passed
    impure = "import datetime, os, socket\n" + COUNTDOWN.replace('f"{self.left}-"\n', 'f"{self.left}-{}"\n')
    for read in ("os.getcwd()", "datetime.date.today()", "socket.gethostbyname('localhost')"):
        file.write_text(impure.replace("{}", "{" + read + "}"))
        assert not audit(TasksSection(), "countdown.py:countdown").passed


def test_conversation_is_replayable_once_it_passed_its_audit_here_and_until_it_changes(file, tmp_path) -> None:
    audits = tmp_path / "audits.json"
    task = loaded(file)
    found = Audit("countdown", task.config_hash.hex(), 1, 1, (), (), 0.0, 5.0, 1, 200)
    assert not is_replayable(audits, task)
    note_audit(audits, found)
    assert is_replayable(audits, task)
    file.write_text(COUNTDOWN + "\n# changed")
    assert not is_replayable(audits, loaded(file))
    note_audit(audits, msgspec.structs.replace(found, faults=("raised",)))
    assert not is_replayable(audits, task)
    for damaged in (b"{", b'{"\xff": 1}'):
        audits.write_bytes(damaged)
        assert not is_replayable(audits, task)
    audits.unlink()
    audits.mkdir()  # what is here cannot be read, by root neither
    assert not is_replayable(audits, task)
    with pytest.raises(StorageError):
        note_audit(audits, found)
    assert all(is_replayable(audits, BUILT_IN_TASKS[name]) for name in ("grid", "basic_arithmetic"))
