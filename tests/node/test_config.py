"""The configuration: which source wins, and what is said of a key or a value that cannot be."""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path
from typing import Any

import pytest

from node.configuration import Config, environment_source, known_keys, load_config
from protocol.errors import ConfigurationError

EXAMPLE = Path(__file__).parents[2] / "node.toml.example"


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
        ("[nonsense]\n", "nonsense", None),
    ],
)
def test_an_unknown_key_in_the_file_is_refused_naming_the_nearest(
    tmp_path: Path, toml: str, typo: str, nearest: str | None
) -> None:
    said = refusal(written(tmp_path, toml))
    assert f"node.toml: {typo} is not a key" in said
    assert nearest is None or said.endswith(f"the nearest is {nearest}")


def test_an_unknown_variable_is_refused_as_the_environment_spells_it(tmp_path: Path) -> None:
    said = refusal(tmp_path, {"STARLING_SWARM__PEERZ": "a"})
    assert "STARLING_SWARM__PEERZ is not a key" in said and said.endswith("the nearest is STARLING_SWARM__PEERS")


def test_an_unknown_flag_is_refused_naming_the_nearest(tmp_path: Path) -> None:
    said = refusal(tmp_path, flags={"objective.clp": "3"})
    assert "--set objective.clp is not a key" in said and said.endswith("the nearest is objective.clip")


def test_a_value_that_cannot_be_is_told_with_its_place_and_the_limit(tmp_path: Path) -> None:
    home = written(tmp_path, "[objective]\nclip = -3.0\n[learner]\ncompletions = 65\n")
    said = refusal(home, {"STARLING_ENGINE__ROWS": "many"})
    assert "node.toml: objective.clip = -3.0: Input should be greater than 0" in said
    assert "node.toml: learner.completions = 65: Input should be less than or equal to 64" in said
    assert "STARLING_ENGINE__ROWS = 'many': Input should be a valid integer" in said


def test_the_place_that_won_is_blamed_for_a_bad_value(tmp_path: Path) -> None:
    home = written(tmp_path, "[objective]\nclip = 0.1\n")
    assert refusal(home, {"STARLING_OBJECTIVE__CLIP": "-1"}).startswith("environment: STARLING_OBJECTIVE__CLIP = '-1'")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_number_that_is_not_finite_is_refused(tmp_path: Path, value: str) -> None:
    assert "learner.learning_rate" in refusal(written(tmp_path, f"[learner]\nlearning_rate = {value}\n"))


def test_a_broken_list_is_refused_with_both_ways_to_write_one(tmp_path: Path) -> None:
    assert "a,b without brackets" in refusal(tmp_path, flags={"tasks.names": "[a"})


def test_a_file_that_is_no_toml_or_no_text_is_refused(tmp_path: Path) -> None:
    assert "is not TOML" in refusal(written(tmp_path, "name = \n"))
    (tmp_path / "node.toml").write_bytes(b"\xff\xfe")
    assert "cannot be read" in refusal(tmp_path)


def test_a_directory_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node.toml").mkdir()
    assert "cannot be read" in refusal(tmp_path)


def test_an_empty_section_is_no_fault(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "[learner]\n"), {}, {}) == Config()


def test_the_example_names_every_key_once_in_order_and_loads_to_the_defaults(tmp_path: Path) -> None:
    values = tomllib.loads(EXAMPLE.read_text())

    def leaves(tree: dict[str, Any], prefix: str = "") -> list[str]:
        return [
            leaf
            for name, value in tree.items()
            for leaf in (leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name])
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


@pytest.mark.parametrize(
    ("toml", "reason"),
    [
        ('loss = "gspo"', 'correction "byte_aligned" weighs each span by its own'),
        ('loss = "gspo"\ncorrection = "decoupled_ppo"', 'choose correction "none", "ppo", "sequence_tis"'),
        ('loss = "cispo"', "caps the ratio itself at clip_high, here 0: set it above 1"),
        ('loss = "cispo"\nclip_high = 5.0\nclip_negative = 7.0', "clip_negative must be 0"),
        ('correction = "ppo"\nclip_negative = 1.2', "would cut into the range up to 1 + clip_high = 1.2"),
        ("clip_negative = 3.0", 'with steps = 1 and correction "byte_aligned" the ratio is 1'),
        ('advantage = "min_variance"\ncorrection = "none"', "squared importance weights"),
        ('ess_learning_rate = true\ncorrection = "none"', "the variance of importance weights"),
        ("floor_annealed = true\nratio_floor = 0.0", "no floor to anneal"),
        ('floor_annealed = true\ncorrection = "ppo"', "no floor to anneal"),
        ("ratio_floor = 3.0", "ratio_floor = 3 lies above ratio_cap = 2"),
        ('correction = "ppo_ewma"\nratio_cap = 1.0', "1 is not above 1"),
        ('foreign_value = "prompt"\nforeign_advantage = "group"', '"group" has its own'),
    ],
)
def test_a_combination_that_means_nothing_is_refused_with_its_reason_and_its_place(
    tmp_path: Path, toml: str, reason: str
) -> None:
    said = refusal(written(tmp_path, f"[objective]\n{toml}\n"))
    assert reason in said
    key = toml.split(" = ")[0]
    assert f"node.toml: objective.{key}" in said


@pytest.mark.parametrize(
    "toml",
    [
        'loss = "gspo"\ncorrection = "sequence_tis"\nclip = 3e-4\nclip_high = 4e-4',
        'loss = "cispo"\nclip_high = 5.0\ncorrection = "ppo"',
        'correction = "ppo"\nclip_negative = 4.0',
        "steps = 2\nclip_negative = 4.0",
        'advantage = "min_variance"\ncorrection = "sequence_tis"\ness_learning_rate = true',
        'correction = "none"\nratio_floor = 3.0',
        'foreign_value = "prompt"\nfloor_annealed = true',
        'loss = "dr_grpo"\nadvantage = "mean"\nkl_weight = 0.01',
    ],
)
def test_a_combination_that_means_something_is_taken(tmp_path: Path, toml: str) -> None:
    assert load_config(written(tmp_path, f"[objective]\n{toml}\n"), {}, {}).objective != Config().objective
