"""The configuration: which source wins, and what an error says of an unknown key or an invalid value."""

from __future__ import annotations

import ast
import itertools
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from node.configuration import Config, ObjectiveSection, ResearchSection
from node.configuration.sources import environment_source, known_keys, load_config
from protocol.errors import ConfigurationError

PROJECT = Path(__file__).parents[2]
EXAMPLE = PROJECT / "node.toml.example"


def written(home: Path, toml: str) -> Path:
    (home / "node.toml").write_text(toml)
    return home


def refusal(home: Path, environment: dict[str, str] | None = None, flags: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_config(home, environment or {}, flags or {})
    return str(caught.value)


def test_nothing_is_set_and_defaults_apply(tmp_path: Path) -> None:
    assert load_config(tmp_path, {"PATH": "/bin"}, {}) == Config()


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    home = written(tmp_path, "seed = 1\nrounds = 1\ntokens = 1\n[objective]\nclip = 0.1\n")
    config = load_config(home, {"STARLING_ROUNDS": "2", "STARLING_TOKENS": "2"}, {"tokens": "3"})
    assert (config.seed, config.rounds, config.tokens, config.objective.clip) == (1, 2, 3, 0.1)
    assert config.checkpoint == Config().checkpoint


def test_one_key_of_a_section_is_overridden_and_its_others_stay(tmp_path: Path) -> None:
    home = written(tmp_path, "[learner]\nweight_decay = 0.1\nown_groups = 3\n")
    config = load_config(home, {"STARLING_LEARNER__WEIGHT_DECAY": "0.3"}, {"learner.completions": "4"})
    assert (config.learner.weight_decay, config.learner.own_groups, config.learner.completions) == (0.3, 3, 4)


@pytest.mark.parametrize("text", ["/ip4/1/tcp/2,/ip4/3/tcp/4", '["/ip4/1/tcp/2", "/ip4/3/tcp/4"]'])
def test_a_list_is_written_as_json_or_with_commas(tmp_path: Path, text: str) -> None:
    wanted = ("/ip4/1/tcp/2", "/ip4/3/tcp/4")
    assert load_config(tmp_path, {"STARLING_SWARM__PEERS": text}, {}).swarm.peers == wanted
    assert load_config(tmp_path, {}, {"swarm.peers": text}).swarm.peers == wanted


def test_environment_names_are_read_in_either_case_and_home_is_no_key(tmp_path: Path) -> None:
    config = load_config(tmp_path, {"starling_swarm__lan_discovery": "false", "STARLING_HOME": "/x"}, {})
    assert config.swarm.lan_discovery is False


@pytest.mark.parametrize(
    ("toml", "typo", "nearest"),
    [
        ("[swarm]\nlistn = 'x'\n", "swarm.listn", "swarm.listen"),
        ("[learner]\nown_group = 3\n", "learner.own_group", "learner.own_groups"),
        ("round = 3\n", "round", "rounds"),
        ("listen = 'x'\n", "listen", "swarm.listen"),
        ("learner = 3\n", "learner", "learner.own_groups"),
        ("[lerner]\nclip = 0.3\n", "lerner.clip", "objective.clip"),
        ("[objective]\nloss = 'grpo'\n", "objective.loss", "objective.research.loss"),
        ("[learner]\nforeign_choice = 'gain'\n", "learner.foreign_choice", "objective.research.foreign_choice"),
        ("[objective.reserch]\nloss = 'grpo'\n", "objective.reserch.loss", "objective.research.loss"),
        ("[objective]\nresearch = 3\n", "objective.research", "objective.research.loss"),
        ("[nonsense]\n", "nonsense", None),
    ],
)
def test_an_unknown_key_in_the_file_is_refused_naming_the_nearest(
    tmp_path: Path, toml: str, typo: str, nearest: str | None
) -> None:
    said = refusal(written(tmp_path, toml))
    assert f"node.toml: {typo} " in said
    assert nearest is None or said.split()[-1] == nearest


def test_an_unknown_variable_is_refused_as_the_environment_spells_it(tmp_path: Path) -> None:
    said = refusal(tmp_path, {"STARLING_SWARM__PEERZ": "a"})
    assert "STARLING_SWARM__PEERZ " in said and said.split()[-1] == "STARLING_SWARM__PEERS"


@pytest.mark.parametrize("key", ResearchSection.model_fields)
def test_a_key_of_research_written_in_the_section_above_is_refused_naming_its_place(tmp_path: Path, key: str) -> None:
    assert refusal(tmp_path, flags={f"objective.{key}": "1"}).split()[-1] == f"objective.research.{key}"
    said = refusal(tmp_path, {f"STARLING_OBJECTIVE__{key.upper()}": "1"})
    assert said.split()[-1] == f"STARLING_OBJECTIVE__RESEARCH__{key.upper()}"


def test_a_section_within_a_section_is_read_from_every_source(tmp_path: Path) -> None:
    home = written(tmp_path, "[objective]\nclip = 0.1\n[objective.research]\nloss = 'grpo'\nadvantage = 'mean'\n")
    found = load_config(
        home, {"STARLING_OBJECTIVE__RESEARCH__ADVANTAGE": "median"}, {"objective.research.clip_high": "0.3"}
    )
    research = ResearchSection(loss="grpo", advantage="median", clip_high=0.3)
    assert found.objective == ObjectiveSection(clip=0.1, research=research)


def test_an_unknown_flag_is_refused_naming_the_nearest(tmp_path: Path) -> None:
    said = refusal(tmp_path, flags={"objective.clp": "3"})
    assert "--set objective.clp " in said and said.split()[-1] == "objective.clip"


def test_an_invalid_value_is_refused_with_its_place_and_the_limit(tmp_path: Path) -> None:
    home = written(tmp_path, "[objective]\nclip = -3.0\n[learner]\ncompletions = 65\n")
    said = refusal(home, {"STARLING_ENGINE__ROWS": "many"})
    places = {line.partition(" = ")[0].split()[-1]: line.partition(" = ")[2] for line in said.splitlines()}
    assert places.keys() == {"objective.clip", "learner.completions", "STARLING_ENGINE__ROWS"}
    assert re.match(r"-3\.0: .* 0$", places["objective.clip"])
    assert re.match(r"65: .* 64$", places["learner.completions"])
    assert re.match(r"'many': .* integer.*, or: Input should be 'auto'", places["STARLING_ENGINE__ROWS"])


def test_the_place_that_won_is_blamed_for_a_bad_value(tmp_path: Path) -> None:
    home = written(tmp_path, "[objective]\nclip = 0.1\n")
    assert refusal(home, {"STARLING_OBJECTIVE__CLIP": "-1"}).startswith("environment: STARLING_OBJECTIVE__CLIP = '-1'")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_number_that_is_not_finite_is_refused(tmp_path: Path, value: str) -> None:
    assert "learner.learning_rate" in refusal(written(tmp_path, f"[learner]\nlearning_rate = {value}\n"))


def test_a_broken_list_is_refused_with_both_ways_to_write_one(tmp_path: Path) -> None:
    said = refusal(tmp_path, flags={"tasks.names": "[a"})
    assert "tasks.names = '[a'" in said and '["a", "b"]' in said and "a,b" in said


def test_a_file_that_is_no_toml_or_no_text_is_refused(tmp_path: Path) -> None:
    assert str(tmp_path / "node.toml") in refusal(written(tmp_path, "name = \n"))
    (tmp_path / "node.toml").write_bytes(b"\xff\xfe")
    assert str(tmp_path / "node.toml") in refusal(tmp_path)


def test_a_directory_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node.toml").mkdir()
    assert str(tmp_path / "node.toml") in refusal(tmp_path)


@pytest.mark.parametrize("toml", ["[learner]\n", "[objective.research]\n"])
def test_an_empty_section_is_no_fault(tmp_path: Path, toml: str) -> None:
    assert load_config(written(tmp_path, toml), {}, {}) == Config()


def test_the_example_names_every_key_once_in_order_and_loads_to_the_defaults(tmp_path: Path) -> None:
    values = tomllib.loads(EXAMPLE.read_text())

    def leaves(tree: dict[str, Any], prefix: str = "") -> list[str]:
        return [
            leaf
            for name, value in tree.items()
            for leaf in (leaves(value, f"{prefix}{name}.") if isinstance(value, dict) and value else [prefix + name])
        ]

    assert leaves(values) == list(known_keys())
    (tmp_path / "node.toml").write_text(EXAMPLE.read_text())
    assert load_config(tmp_path, {}, {}) == Config()


def test_the_example_explains_every_key_right_above_it() -> None:
    lines = EXAMPLE.read_text().splitlines()
    unexplained = [
        line for above, line in itertools.pairwise(lines) if " = " in line[:24] and not above.startswith("#")
    ]
    assert [line for line in unexplained if not line.startswith("#")] == []


def test_every_key_can_be_set_from_the_environment() -> None:
    names = {f"STARLING_{key.upper().replace('.', '__')}": "1" for key in known_keys()}
    assert set(environment_source(names).spelling) == set(known_keys())


def objective(keys: str) -> str:
    """A node.toml with these lines of ``[objective]`` and ``[objective.research]``, each in its section."""
    lines = keys.splitlines()
    of_research = [line for line in lines if line.split(" = ")[0] in ResearchSection.model_fields]
    own = [line for line in lines if line not in of_research]
    return "\n".join(["[objective]", *own, "[objective.research]", *of_research, ""])


@pytest.mark.parametrize(
    ("toml", "facts"),
    [
        ('loss = "gspo"', ['loss "gspo"', 'correction "byte_aligned"', '"sequence_tis"']),
        ('loss = "gspo"\ncorrection = "token_tis"', ['loss "gspo"', 'correction "token_tis"', '"none"']),
        ('loss = "cispo"', ['loss "cispo"', "clip_high, here 0", "above 1"]),
        ('loss = "cispo"\nclip_high = 5.0\nclip_negative = 7.0', ['loss "cispo"', "clip_negative must be 0"]),
        ('correction = "ppo"\nclip_negative = 1.2', ["clip_negative = 1.2", "1 + clip_high = 1.2"]),
        ("clip_negative = 3.0", ["clip_negative", "steps = 1", 'correction "byte_aligned"']),
        ("ratio_floor = 3.0", ["ratio_floor = 3", "ratio_cap = 2"]),
    ],
)
def test_a_combination_without_a_meaning_is_refused_with_its_reason_and_its_place(
    tmp_path: Path, toml: str, facts: list[str]
) -> None:
    said = refusal(written(tmp_path, objective(toml)))
    assert [fact for fact in facts if fact not in said] == []
    for key in tomllib.loads(toml):
        section = "objective.research" if key in ResearchSection.model_fields else "objective"
        assert f"node.toml: {section}.{key}" in said


@pytest.mark.parametrize(
    "toml",
    [
        'loss = "gspo"\ncorrection = "sequence_tis"\nclip = 3e-4\nclip_high = 4e-4',
        'loss = "gspo"\ncorrection = "hacpo"\nforeign_advantage = "capability"\nratio_floor = 0.0',
        'loss = "cispo"\nclip_high = 5.0\ncorrection = "ppo"',
        'correction = "ppo"\nclip_negative = 4.0',
        "steps = 2\nclip_negative = 4.0",
        'advantage = "median"\ncorrection = "sequence_tis"',
        'correction = "none"\nratio_floor = 3.0',
        'loss = "dr_grpo"\nadvantage = "mean"\nkl_weight = 0.01',
    ],
)
def test_a_combination_with_a_meaning_is_accepted(tmp_path: Path, toml: str) -> None:
    assert load_config(written(tmp_path, objective(toml)), {}, {}).objective != Config().objective


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("objective.correction", "ppo_ewma"),
        ("objective.correction", "icepop"),
        ("objective.research.advantage", "min_variance"),
        ("objective.research.proximal_window", 8.0),
        ("objective.research.ess_learning_rate", False),
    ],
)
def test_what_an_earlier_version_had_says_that_it_is_gone_and_where_that_is_written(
    tmp_path: Path, key: str, value: Any
) -> None:
    section, _, name = key.rpartition(".")
    said = refusal(written(tmp_path, f"[{section}]\n{name} = {json.dumps(value)}\n"))
    assert f"node.toml: {key}" in said and "is gone" in said and "docs/papers.md" in said
    assert ("byte_aligned" in said) == (key == "objective.correction")  # what is allowed
    assert "nearest" not in said


def test_a_checkpoint_of_a_run_with_what_is_gone_still_tells_its_model(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "round-000007"
    folder.mkdir(parents=True)
    research = {"advantage": "min_variance", "proximal_window": 8.0, "ess_learning_rate": True}
    objective = {"correction": "ppo_ewma", "research": research}
    (folder / "config.json").write_text(json.dumps({"policy": {"model": "builtin:finch"}, "objective": objective}))
    found = load_config(tmp_path, {}, {})
    assert found.policy.model == "builtin:finch" and found.objective == Config().objective


# The names under which sections, and the whole tree, are held where they are read.
HOLDERS = {*(key.split(".")[-2] for key in known_keys() if "." in key), "config", "section"}


def reads(source: str) -> set[str]:
    """The attributes that ``source`` reads of something that is named like a section of the configuration."""

    def name_of(node: ast.expr) -> str:
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        return name.lstrip("_")

    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute))
    return {node.attr for node in nodes if isinstance(node.ctx, ast.Load) and name_of(node.value) in HOLDERS}


def test_reading_a_key_is_told_from_an_attribute_of_the_same_name() -> None:
    assert reads("self._section.rows + config.engine.temperature + backend.name") >= {"rows", "temperature"}
    assert not reads("torch.backends.mkldnn; engine_module.backend; section.rows = 3") & {"backend", "rows"}


def test_every_key_is_read_somewhere() -> None:
    """By name: a key that shares its name with another key's is not told from it."""
    modules = [path for path in (PROJECT / "node").rglob("*.py") if path.parent.name != "configuration"]
    read = set[str]().union(*(reads(path.read_text(encoding="utf-8")) for path in modules))
    unread = {key for key in known_keys() if key.rpartition(".")[2] not in read}
    # Others read what is made of these: ``MachineSection.hours``, ``max_memory_bytes`` and so on.
    limits = {f"machine.max_{what}" for what in ("memory", "upload", "download", "threads")}
    assert unread == {"machine.schedule"} | limits
