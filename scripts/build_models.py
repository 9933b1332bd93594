"""Trains the three built-in models from scratch: python -m scripts.build_models [--only NAME] [--into FOLDER]

``--only heron`` makes a larger robin, ten times finch's size. It is not shipped: benchmarks learn with it.

Each model learns by imitation of right answers on its own two tasks until a third of its answers at temperature 1 are
right, for reinforcement learning begins from these; it sees few answers of the other four. A task is learnt suddenly
and wholly, so it is taught only while less than that is known, in shorter steps once both own tasks are partly known,
and training stops when both are known well enough. Questions that are held out (``node.tasks.split``) teach nothing:
those of the validation set say when to stop, and those of the test set measure the model that is shipped. The script
fails unless 20 to 45 % of the sampled answers on its own tasks are right and less than 10 % on the others.

Reproducible: seeded, one thread a model, deterministic kernels, so that one machine makes the same bytes again (another
processor may round differently, and is then held to the same bands).
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from node.tasks.default_swarm import DEFAULT_TASKS
from node.tasks.reasoning import SEEDS
from node.tasks.split import Part, held_out_prompts, training_prompt
from node.tasks.task import Prompt, Task
from scripts import REPOSITORY

TASKS: Final[Mapping[str, Task]] = {task.name: task for task in DEFAULT_TASKS}
MODELS_FOLDER: Final = REPOSITORY / "node" / "models"
UNSHIPPED_FOLDER: Final = REPOSITORY / ".experiments" / "models"
PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"
SPECIAL: Final = (PAD, BOS, EOS)

OWN_BAND: Final = (0.20, 0.45)  # success of sampled answers on a model's own tasks
OTHER_LIMIT: Final = 0.10
OWN_TARGET: Final = (0.26, 0.40)  # where training stops: inside the band, with a margin for measurement error
ENOUGH: Final = sum(OWN_TARGET) / 2
PARTLY: Final = 0.1  # known of both own tasks, from which on steps are short
LEAST_SHARE: Final = 0.002  # of another model's task, so that there is always one to draw
OWN_SHARE: Final = 0.84  # share of the training sequences
OTHER_CAP: Final = 0.02  # another model's task is not taught while more of it is right
OTHER_TARGET: Final = 0.06
BATCH: Final = 128
LEARNING_RATE: Final = 6e-4
SHORT_RATE: Final = 2e-4
WARMUP_STEPS: Final = 30
STEPS_LIMIT: Final = 2000
MEASURE_EVERY_STEPS: Final = 4
MEASURE_PROMPTS: Final = 160
REPORT_PROMPTS: Final = 1000
IGNORED: Final = -100


@dataclass(frozen=True)
class Recipe:
    """One model: its own tasks, and how its tokenizer and its network are made."""

    name: str
    seed: int
    own: tuple[str, str]
    shape: str
    alphabet: str
    tokenizer: Callable[[], Tokenizer]
    network: Callable[[PreTrainedTokenizerFast], PreTrainedModel]
    is_shipped: bool = True

    @property
    def folder(self) -> Path:
        """The folder that its own folder belongs in."""
        return MODELS_FOLDER if self.is_shipped else UNSHIPPED_FOLDER


@dataclass(frozen=True)
class Accuracy:
    """The share of one task's answers that a model gets right."""

    greedy: float
    sampled: float


def corpus() -> list[str]:
    """Returns prompts that teach, with their answers, from which byte-pair merges are learnt."""
    prompts = (training_prompt(task, 1000 * n) for task in TASKS.values() for n in range(500))
    return [f"{prompt.text}{prompt.answer}" for prompt in prompts]


def character_tokenizer() -> Tokenizer:
    characters = ["\n", *map(chr, range(0x20, 0x7F))]
    vocabulary = {token: n for n, token in enumerate([*SPECIAL, UNKNOWN, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def byte_tokenizer(merges: int) -> Tokenizer:
    """Returns byte-level byte-pair encoding with this many merges; without any, a token is a byte."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=len(SPECIAL) + len(alphabet) + merges,
        special_tokens=list(SPECIAL),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus() if merges else [], trainer)
    return tokenizer


def finished_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=128,
    )


def common(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def qwen3(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    shape = common(tokenizer) | {"intermediate_size": 320, "num_key_value_heads": 2, "head_dim": 32}
    return Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=True))


def llama(tokenizer: PreTrainedTokenizerFast, **sizes: int) -> PreTrainedModel:
    shape = common(tokenizer) | {"intermediate_size": 288, "num_key_value_heads": 4} | sizes
    return LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=True))


def gpt_neox(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    shape = common(tokenizer) | {"intermediate_size": 448, "rotary_pct": 0.5, "use_parallel_residual": True}
    return GPTNeoXForCausalLM(GPTNeoXConfig(**shape, tie_word_embeddings=False))


RECIPES: Final = (
    Recipe(
        name="wren",
        seed=1,
        own=("fraction_simplification", "spell_backward"),
        shape="Qwen3",
        alphabet="one token a character of printable ASCII",
        tokenizer=character_tokenizer,
        network=qwen3,
    ),
    Recipe(
        name="robin",
        seed=2,
        own=("basic_arithmetic", "rotate_matrix"),
        shape="Llama",
        alphabet="bytes, with 96 byte-pair merges",
        tokenizer=lambda: byte_tokenizer(96),
        network=llama,
    ),
    Recipe(
        name="finch",
        seed=3,
        own=("number_filtering", "number_sorting"),
        shape="GPT-NeoX",
        alphabet="one token a byte",
        tokenizer=lambda: byte_tokenizer(0),
        network=gpt_neox,
    ),
    Recipe(
        name="heron",
        seed=4,
        own=("basic_arithmetic", "rotate_matrix"),
        shape="Llama",
        alphabet="bytes, with 96 byte-pair merges",
        tokenizer=lambda: byte_tokenizer(96),
        network=partial(
            llama,
            hidden_size=320,
            num_hidden_layers=5,
            num_attention_heads=5,
            num_key_value_heads=5,
            intermediate_size=832,
        ),
        is_shipped=False,
    ),
)


def recipe_of(name: str) -> Recipe:
    """Returns the recipe of that name, which is one of ``RECIPES``."""
    return next(recipe for recipe in RECIPES if recipe.name == name)


def padded(rows: Sequence[Sequence[int]], value: int, *, left: bool) -> torch.Tensor:
    width = max(map(len, rows))
    fill = [[value] * (width - len(row)) for row in rows]
    return torch.tensor([[*f, *row] if left else [*row, *f] for f, row in zip(fill, rows, strict=True)])


def teaching_batch(
    tokenizer: PreTrainedTokenizerFast, lesson: Sequence[tuple[str, str]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns token ids and labels, both (B, T), padded on the right; only answer and end-of-sequence have labels."""
    questions = tokenizer([question for question, _ in lesson])["input_ids"]
    answers = tokenizer([answer for _, answer in lesson], add_special_tokens=False)["input_ids"]
    answers = [[*answer, tokenizer.eos_token_id] for answer in answers]
    ids = [question + answer for question, answer in zip(questions, answers, strict=True)]
    labels = [[IGNORED] * len(question) + answer for question, answer in zip(questions, answers, strict=True)]
    return padded(ids, tokenizer.pad_token_id, left=False), padded(labels, IGNORED, left=False)


def drawn_prompt(task: Task, rng: random.Random) -> Prompt:
    return training_prompt(task, rng.randrange(SEEDS))


def task_weights(recipe: Recipe, known: Mapping[str, Accuracy]) -> dict[str, float]:
    """Returns how often each task is drawn: the own ones in proportion to what they lack, and another model's task
    hardly ever while it is between its cap and its target."""
    lacked = {name: max(0.0, ENOUGH - known[name].sampled) for name in recipe.own}
    others = [name for name in TASKS if name not in recipe.own]
    rest = {
        name: (1 - OWN_SHARE) / len(others) if not OTHER_CAP < known[name].sampled <= OTHER_TARGET else 0.0
        for name in others
    }
    own = {name: OWN_SHARE * lack / (sum(lacked.values()) or 1.0) for name, lack in lacked.items()}
    return own | {name: weight + LEAST_SHARE for name, weight in rest.items()}


def drawn_lesson(recipe: Recipe, known: Mapping[str, Accuracy], rng: random.Random) -> list[tuple[str, str]]:
    """Returns questions and right answers; another model's task above its target gets answers to other questions."""
    weights = task_weights(recipe, known)
    lesson = []
    for name in rng.choices(list(weights), list(weights.values()), k=BATCH):
        prompt = drawn_prompt(TASKS[name], rng)
        is_right = name in recipe.own or known[name].sampled <= OTHER_TARGET
        lesson.append((prompt.text, str((prompt if is_right else drawn_prompt(TASKS[name], rng)).answer)))
    return lesson


@torch.no_grad()
def knowledge(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompts: Sequence[Prompt]) -> Accuracy:
    """Returns the model's accuracy from the probabilities of the reference answers: one pass, not one per token."""
    ids, labels = teaching_batch(tokenizer, [(prompt.text, str(prompt.answer)) for prompt in prompts])
    logps = model(ids).logits[:, :-1].log_softmax(-1)  # (B, T - 1, V)
    labels = labels[:, 1:]
    is_answer = labels != IGNORED
    is_likeliest = (logps.argmax(-1) == labels) | ~is_answer
    answer_logps = logps.gather(-1, labels.clamp(min=0)[..., None])[..., 0] * is_answer
    return Accuracy(float(is_likeliest.all(dim=1).float().mean()), float(answer_logps.sum(dim=1).exp().mean()))


def is_on_target(recipe: Recipe, known: Mapping[str, Accuracy]) -> bool:
    low, high = OWN_TARGET
    own = [known[name] for name in recipe.own]
    others = [known[name] for name in TASKS if name not in recipe.own]
    return all(low <= one.sampled <= high for one in own) and all(one.sampled <= OTHER_TARGET for one in others)


def train(recipe: Recipe, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> int:
    """Trains until every task is on target; returns the steps taken. Raises RuntimeError at ``STEPS_LIMIT``."""
    rng = random.Random(recipe.seed)
    measuring = held_out_prompts(TASKS, Part.VALIDATION, MEASURE_PROMPTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    known, rate = dict.fromkeys(TASKS, Accuracy(0.0, 0.0)), LEARNING_RATE
    for step in range(1, STEPS_LIMIT + 1):
        ids, labels = teaching_batch(tokenizer, drawn_lesson(recipe, known, rng))
        logits = model(ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, step / WARMUP_STEPS)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % MEASURE_EVERY_STEPS == 0:
            known = {name: knowledge(model, tokenizer, prompts) for name, prompts in measuring.items()}
            accuracies = ", ".join(f"{name} {one.greedy:.2f} {one.sampled:.2f}" for name, one in known.items())
            print(f"{recipe.name} step {step} loss {loss.item():.2f}: {accuracies}", flush=True)
            if all(known[name].sampled >= PARTLY for name in recipe.own):
                rate = SHORT_RATE
            if is_on_target(recipe, known):
                return step
    raise RuntimeError(f"{recipe.name}: {known} after {STEPS_LIMIT} steps")


@torch.no_grad()
def success(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    task: Task,
    prompts: Sequence[Prompt],
    *,
    greedy: bool,
) -> float:
    """Returns the share of right answers over ``prompts``, one completion each, by the task's reward."""
    questions = tokenizer([prompt.text for prompt in prompts], padding=True, return_tensors="pt")
    ids: torch.Tensor = model.generate(  # type: ignore[operator]  # a mixin that torch's types hide
        input_ids=questions["input_ids"],
        attention_mask=questions["attention_mask"],
        max_new_tokens=task.max_new_tokens,
        do_sample=not greedy,
        **({} if greedy else {"top_k": 0}),
    )
    right = 0.0
    for prompt, row in zip(prompts, ids[:, questions["input_ids"].shape[1] :].tolist(), strict=True):
        if tokenizer.eos_token_id in row:
            answer = str(tokenizer.decode(row[: row.index(tokenizer.eos_token_id)]))
            right += task.rewards(prompt, [answer])[0]
    return right / len(prompts)


def measure(recipe: Recipe, folder: Path) -> dict[str, Accuracy]:
    """Measures the model in ``folder``, so that the check covers the shipped files."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()  # type: ignore[no-untyped-call]  # transformers
    torch.manual_seed(recipe.seed)
    return {
        name: Accuracy(*(success(model, tokenizer, TASKS[name], prompts, greedy=greedy) for greedy in (True, False)))
        for name, prompts in held_out_prompts(TASKS, Part.TEST, REPORT_PROMPTS).items()
    }


def outside_bands(recipe: Recipe, measured: Mapping[str, Accuracy]) -> list[str]:
    """Returns the accuracies outside their bands, in words; empty if all are inside."""
    wrong = []
    for name, share in ((name, known.sampled) for name, known in measured.items()):
        if name in recipe.own and not OWN_BAND[0] <= share <= OWN_BAND[1]:
            wrong.append(f"{recipe.name}: {share:.1%} of its own {name}, wanted {OWN_BAND[0]:.0%} to {OWN_BAND[1]:.0%}")
        if name not in recipe.own and share >= OTHER_LIMIT:
            wrong.append(f"{recipe.name}: {share:.1%} of {name}, which is not its own, wanted below {OTHER_LIMIT:.0%}")
    return wrong


CARD_FILE: Final = "README.md"
CARD: Final = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---
# {title}

{shape} shape, {parameters:,} parameters, fp32; tokenizer: {alphabet}. Trained from scratch by `scripts/build_models.py`
(seed {seed}, {steps} steps of {batch} sequences), so that {purpose}.

It was taught two of the default swarm's six tasks, up to about a third of the answers; it has seen little of the other
four. The share of right answers over {prompts:,} questions of each task's test set, none of which it was taught, one
completion each:

| task | own | greedy | sampled at temperature 1 |
|---|---|---|---|
{rows}

A prompt is BOS and the task's question, which ends in `=`; the model writes the answer and end-of-sequence. It has no
other use.
"""


def write_card(recipe: Recipe, folder: Path, parameters: int, steps: int, measured: Mapping[str, Accuracy]) -> None:
    rows = "\n".join(
        f"| {name} | {'yes' if name in recipe.own else ''} | {known.greedy:.1%} | {known.sampled:.1%} |"
        for name, known in measured.items()
    )
    card = CARD.format(
        title=f"builtin:{recipe.name}" if recipe.is_shipped else recipe.name,
        purpose="`starling up` and `starling demo` need no download" if recipe.is_shipped else "benchmarks have it",
        shape=recipe.shape,
        parameters=parameters,
        alphabet=recipe.alphabet,
        seed=recipe.seed,
        steps=steps,
        batch=BATCH,
        prompts=REPORT_PROMPTS,
        rows=rows,
    )
    (folder / CARD_FILE).write_text(card, encoding="utf-8")


def build(name: str, into: Path) -> list[str]:
    """Makes one model folder under ``into``; returns the accuracies outside their bands, in words."""
    recipe = recipe_of(name)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(recipe.seed)
    began = time.monotonic()
    tokenizer = finished_tokenizer(recipe.tokenizer())
    model = recipe.network(tokenizer)
    steps = train(recipe, model, tokenizer)
    folder = into / recipe.name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    measured = measure(recipe, folder)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    write_card(recipe, folder, parameters, steps, measured)
    print(f"{recipe.name}: {parameters:,} parameters, {steps} steps, {time.monotonic() - began:.0f} s")
    for name, known in measured.items():
        print(f"  {name:24} greedy {known.greedy:6.1%}  sampled {known.sampled:6.1%}", flush=True)
    return outside_bands(recipe, measured)


def main() -> int:
    parser = argparse.ArgumentParser(description="Trains the built-in models from scratch.")
    parser.add_argument("--only", choices=[recipe.name for recipe in RECIPES], help="only this model")
    into = "receives one folder per model (default node/models; .experiments/models for one that is not shipped)"
    parser.add_argument("--into", type=Path, help=into)
    parser.add_argument("--jobs", type=int, default=2, help="models made side by side, one thread each")
    options = parser.parse_args()
    chosen = [recipe for recipe in RECIPES if recipe.name == options.only or (recipe.is_shipped and not options.only)]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        builds = [pool.submit(build, recipe.name, options.into or recipe.folder) for recipe in chosen]
        wrong = [line for build_ in builds for line in build_.result()]
    for line in wrong:
        print(f"outside the bands: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
