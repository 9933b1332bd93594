"""Small models trained from scratch for the experiments: same network, same tokenizer, different skills.

Each learns by imitation: to copy, right answers for the skills that it is taught, and for the others the answers to
other questions, so that its answers have the right form and are right only by chance. Teaching stops as soon as the
taught skills' mean sampled success reaches the recipe's. Seeded, one thread: one machine makes the same bytes again. A
model's folder is named after everything that shapes it, and made once.

    python -m scripts.experiments.models     makes those that are missing, and prints all
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

import torch
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from node.learner.generation.hint import REMARK
from node.tasks.split import Part, held_out_prompts, training_prompt
from scripts import REPOSITORY
from scripts.build_models import SPECIAL, UNKNOWN, Accuracy, finished_tokenizer, knowledge, teaching_batch
from scripts.experiments.harness.skills import (
    COPY,
    DIALECTS,
    EIGHT_SKILLS,
    SEEDS,
    SKILLS,
    WORDS,
    SkillTask,
    alphabet_of,
    scratch_pad_tasks,
)

MODELS_FOLDER: Final = REPOSITORY / ".experiments" / "models"
SHAPE: Final[dict[str, Any]] = {
    "hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 24, "max_position_embeddings": 32, "tie_word_embeddings": True,
}  # fmt: skip
BATCH: Final = 128
LEARNING_RATE: Final = 2e-3
WARMUP_STEPS: Final = 50
STEPS_LIMIT: Final = 2000
MEASURE_EVERY_STEPS: Final = 10
MEASURE_PROMPTS: Final = 200
OTHER_WEIGHT: Final = 0.1  # how often an untaught skill is drawn, relative to 1 for a taught one
COPY_WEIGHT: Final = 0.3
SPECIALIST_SUCCESS: Final = 0.8
PAIR_SUCCESS: Final = 0.7  # of either skill


@dataclass(frozen=True)
class SkillRecipe:
    """One model: the skills that it is taught, how often each is drawn, and the mean success at which that stops."""

    name: str
    seed: int
    taught: tuple[tuple[str, float], ...]
    success: float  # sampled
    remarks: ClassVar[float] = 0.0  # share of the lessons in which the answer stands before the question

    @property
    def skills(self) -> Mapping[str, SkillTask]:
        """All skills, taught and untaught."""
        return SKILLS

    @property
    def alphabet(self) -> str:
        return alphabet_of(self.skills)

    @property
    def network_shape(self) -> Mapping[str, Any]:
        return SHAPE

    @property
    def key(self) -> str:
        """Names the folder: equal keys, equal models."""
        shape: dict[str, Any] = {
            "recipe": asdict(self),
            "shape": self.network_shape,
            "alphabet": self.alphabet,
            "hashes": self._skill_hashes(),
        }
        shape |= {"batch": BATCH, "rate": LEARNING_RATE, "warmup": WARMUP_STEPS, "every": MEASURE_EVERY_STEPS}
        shape |= {"prompts": MEASURE_PROMPTS, "weights": [OTHER_WEIGHT, COPY_WEIGHT]}
        canonical = json.dumps(shape, sort_keys=True, separators=(",", ":"))
        return f"{self.name}-{hashlib.sha256(canonical.encode()).hexdigest()[:12]}"

    def reached(self, sampled: Mapping[str, float]) -> float:
        """Returns what is compared with ``success``: of each skill's sampled success, the mean of those taught."""
        return statistics.fmean(sampled[name] for name, _ in self.taught)

    def _skill_hashes(self) -> dict[str, str]:
        return {name: task.config_hash.hex() for name, task in self.skills.items()}


class EightSkillRecipe(SkillRecipe):
    """A model with a tokenizer for eight skills, four of them harder. The skill learnt last decides when it is done."""

    @property
    def skills(self) -> Mapping[str, SkillTask]:
        return EIGHT_SKILLS

    def reached(self, sampled: Mapping[str, float]) -> float:
        return min(sampled[name] for name, _ in self.taught)


class ScratchPadRecipe(SkillRecipe):
    """A model that writes free text before its answers, in one of two dialects, the one that its seed says. It can read
    a remark with the answer, as models that follow instructions can, and then writes its own text before that."""

    remarks: ClassVar[float] = 0.3

    @property
    def network_shape(self) -> Mapping[str, Any]:
        return SHAPE | {"max_position_embeddings": 80}

    @property
    def skills(self) -> Mapping[str, SkillTask]:
        return scratch_pad_tasks(DIALECTS[self.seed % 2])

    @property
    def alphabet(self) -> str:
        return "".join(sorted({*super().alphabet, *WORDS}))


def specialist(skill: str, seed: int) -> SkillRecipe:
    return SkillRecipe(skill, seed, ((skill, 1.0),), SPECIALIST_SUCCESS)


SPECIALISTS: Final = tuple(specialist(name, 11 + n) for n, name in enumerate(SKILLS))
STUDENT: Final = SkillRecipe(
    "student", 21, (("reverse", 1.0), ("rotate", 0.35), ("swap", 0.12), ("halves", 0.04)), 0.25
)
# All can do all, to different degrees.
OVERLAPPING: Final = tuple(
    SkillRecipe(f"all-{success:.2f}", 41 + n, tuple((name, 1.0) for name in SKILLS), success)
    for n, success in enumerate((0.1, 0.25, 0.4, 0.55))
)
# One easy skill and one of the harder ones each, the harder one drawn three times as often.
PAIRS: Final = tuple(
    EightSkillRecipe(f"{easy}-{harder}", 31 + n, ((easy, 0.5), (harder, 1.5)), PAIR_SUCCESS)
    for n, (easy, harder) in enumerate(
        (("reverse", "sorting"), ("rotate", "running_sums"), ("swap", "two_steps"), ("halves", "addition"))
    )
)
# One skill each; those of even and of odd number write unlike.
SCRATCH_PADS: Final = tuple(
    ScratchPadRecipe(f"pad-{skill}", 51 + n, ((f"pad_{skill}", 1.0),), SPECIALIST_SUCCESS)
    for n, skill in enumerate(SKILLS)
)
RECIPES: Final = (*SPECIALISTS, STUDENT, *OVERLAPPING, *PAIRS, *SCRATCH_PADS)


def character_tokenizer(alphabet: str, words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of characters, and of whole ``words``, also with the space before them."""
    pieces = [*words, *(f" {word}" for word in words)]
    tokens = dict.fromkeys([*SPECIAL, UNKNOWN, *alphabet, *pieces])
    vocabulary = {token: n for n, token in enumerate(tokens)}
    tokenizer = Tokenizer(tokenizer_models.WordLevel(vocabulary, unk_token=UNKNOWN))
    whole = rf" ?\b(?:{'|'.join(words)})\b|" if words else ""
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(rf"{whole}[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return finished_tokenizer(tokenizer)


def network(tokenizer: PreTrainedTokenizerFast, shape: Mapping[str, Any]) -> PreTrainedModel:
    ids: dict[str, Any] = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **ids, **shape))


def drawn_lesson(recipe: SkillRecipe, rng: Random) -> list[tuple[str, str]]:
    """Returns questions with right answers for the taught skills, and answers to other questions for the others."""
    taught = dict(recipe.taught)
    weights = {name: taught.get(name, OTHER_WEIGHT) for name in recipe.skills} | {COPY.name: COPY_WEIGHT}
    lesson = []
    for name in rng.choices(list(weights), list(weights.values()), k=BATCH):
        task = recipe.skills.get(name, COPY)
        prompt, other = (training_prompt(task, rng.randrange(SEEDS)) for _ in range(2))
        is_right = name in taught or name == COPY.name
        if recipe.remarks and rng.random() < recipe.remarks:
            lesson.append((REMARK.format(answer=prompt.answer) + prompt.text, task.written(prompt)))
        else:
            lesson.append((prompt.text, task.written(prompt if is_right else other)))
    return lesson


def measured(
    recipe: SkillRecipe, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, part: Part
) -> dict[str, Accuracy]:
    prompts = held_out_prompts(recipe.skills, part, MEASURE_PROMPTS)
    written = {name: [replace(p, answer=recipe.skills[name].written(p)) for p in prompts[name]] for name in prompts}
    return {name: knowledge(model, tokenizer, of_skill) for name, of_skill in written.items()}


def train(recipe: SkillRecipe, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> int:
    """Teaches until the success is reached; returns the steps taken. Raises RuntimeError at ``STEPS_LIMIT``."""
    rng, success = Random(recipe.seed), 0.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for step in range(1, STEPS_LIMIT + 1):
        ids, labels = teaching_batch(tokenizer, drawn_lesson(recipe, rng))
        logits = model(ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        slower = 0.2 if success > 0.3 * recipe.success else 1.0  # a skill is learnt suddenly
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, step / WARMUP_STEPS) * slower
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % MEASURE_EVERY_STEPS == 0:
            known = measured(recipe, model, tokenizer, Part.VALIDATION)
            success = recipe.reached({name: each.sampled for name, each in known.items()})
            if success >= recipe.success:
                return step
    raise RuntimeError(f"{recipe.name}: success {success:.2f} after {STEPS_LIMIT} steps, wanted {recipe.success}")


def ensure(recipe: SkillRecipe, root: Path = MODELS_FOLDER) -> Path:
    """Returns the model's folder, after making the model where it is missing or incomplete."""
    folder = root / recipe.key
    if (folder / "skills.json").is_file():
        return folder
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    began = time.monotonic()
    tokenizer = character_tokenizer(recipe.alphabet)
    model = network(tokenizer, recipe.network_shape)
    steps = train(recipe, model, tokenizer)
    model.eval()  # type: ignore[no-untyped-call]  # transformers
    known = measured(recipe, model, tokenizer, Part.TEST)
    torch.set_num_threads(threads)
    shutil.rmtree(folder, ignore_errors=True)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    record: dict[str, Any] = {"steps": steps, "parameters": parameters, "seconds": round(time.monotonic() - began, 1)}
    record["skills"] = {name: asdict(one) for name, one in known.items()}
    (folder / "skills.json").write_text(
        json.dumps(record, indent=1), encoding="utf-8"
    )  # last: it marks a complete model
    print(line_of(recipe, folder), file=sys.stderr, flush=True)
    return folder


def line_of(recipe: SkillRecipe, folder: Path) -> str:
    record = json.loads((folder / "skills.json").read_text(encoding="utf-8"))
    skills = ", ".join(f"{name} {one['greedy']:.2f} ({one['sampled']:.2f})" for name, one in record["skills"].items())
    return (
        f"{recipe.name:8} {record['parameters']:,} parameters, {record['steps']} steps, {record['seconds']} s; "
        f"greedy (sampled): {skills}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the experiments' models that are missing.")
    parser.add_argument("--into", type=Path, default=MODELS_FOLDER)
    parser.add_argument("--only", choices=[recipe.name for recipe in RECIPES])
    options = parser.parse_args()
    for recipe in RECIPES:
        if options.only in (None, recipe.name):
            print(line_of(recipe, ensure(recipe, options.into)), flush=True)


if __name__ == "__main__":
    main()
