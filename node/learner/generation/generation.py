"""What one round generates: groups are launched, interrupted, resumed and replaced.

Over-provisioning (APRIL, arXiv 2509.18521): with a share o, ⌈(1 + o)·I⌉ groups are launched where I are wanted, those
left over from earlier rounds first. Once I are complete the others are interrupted and kept as ``UnfinishedGroup``,
tokens and log-probabilities included. If more than I become complete with the same token, all are used.

Dynamic sampling (DAPO, arXiv 2503.14476): with ``resample`` r > 0, complete groups whose rewards are all equal are
dropped from the batch, and new prompts are drawn until there are I groups with unequal rewards or r·I prompts have been
drawn. The tokens and rewards of dropped groups still count, and the groups may still be shared.

A conversation is a completion whose environment answers between its actions (``conversations``). All of this holds for
it as for a single answer; it may be interrupted between two turns and within one. Which groups are complete first then
depends on how long environments take; what is sampled does not.
"""

from __future__ import annotations

import logging
import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from node.configuration import LearnerSection
from node.engines.engine import Ended, Engine, Enough, GenerationProgress, GenerationRequest, Sampling, Turns
from node.engines.resumption import row_of
from node.environments.conversation import ConversationTask
from node.fit.workload import SAMPLED_PROMPTS
from node.learner.allocation.allocator import Allocation, allocate
from node.learner.generation.conversations import Conversing
from node.learner.generation.hint import Hint
from node.learner.generation.own_rollouts import RewardScorer, Rollout, rollout_of, scored
from node.learner.generation.unfinished import UnfinishedGroup
from node.policy.tokens import TokenTable
from node.tasks.scorer import Scores
from node.tasks.split import training_prompt
from node.tasks.task import Prompt, Task
from protocol.errors import ConfigurationError, ProtocolError

log = logging.getLogger(__name__)


class EndedGroups(Protocol):
    """The listener to groups that have ended while others are sampled."""

    def start(self) -> None:
        """A round's groups are generated, for the first time or again."""

    def ended(self, rollout: Rollout) -> None: ...


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What a round may generate, decided before it begins. Equal plans, weights and unfinished groups give equal
    rounds."""

    groups: int  # I, wanted complete
    allocations: tuple[Allocation, ...]  # in the order in which they are drawn, as far as needed
    sampling_seed: int
    hints: tuple[Hint, ...] = ()  # each one completion, beside ``groups``


@dataclass(slots=True, eq=False)
class Generated:
    """What one round generated."""

    rollouts: list[Rollout] = field(default_factory=list)  # to learn from
    scores: list[Scores] | None = None  # of ``rollouts``; None where they have not been scored yet
    dropped: list[tuple[Rollout, Scores]] = field(default_factory=list)  # complete, equal rewards, replaced by others
    hinted: list[tuple[Rollout, Hint]] = field(default_factory=list)  # own completions that were sampled with a hint
    unfinished: tuple[UnfinishedGroup, ...] = ()  # oldest first
    resumed: int = 0  # groups left over from earlier rounds that were resumed
    tokens: int = 0  # sampled in this round, for complete and unfinished groups
    too_long: int = 0  # prompts that were left out: they leave no room for an answer in the model's context


@dataclass(frozen=True, slots=True, eq=False)
class _Launch:
    """A group that the engine works on."""

    prompt: Prompt
    request: GenerationRequest
    hint: Hint | None = None


@dataclass(eq=False)
class Generation:
    """Generates one round at a time, on the calling thread. It keeps nothing between two rounds."""

    engine: Engine
    tasks: Mapping[str, Task]
    tokens: TokenTable
    scorer: RewardScorer
    section: LearnerSection
    temperature: float
    context: int

    def run(
        self,
        plan: RoundPlan,
        unfinished: Sequence[UnfinishedGroup],
        halted: Callable[[], bool] | None = None,
        listener: EndedGroups | None = None,
    ) -> Generated:
        """Generates by ``plan``, resuming ``unfinished`` first.

        Once ``halted`` returns true it stops after the next token and returns what there is. A prompt that leaves no
        room for an answer in the model's context is left out and counted. ``listener`` gets the very rollouts that are
        returned, as far as the engine says that they have ended (``Engine.advance``); none with ``resample``, which may
        drop them.
        """
        if listener is not None:
            listener.start()
        drawn, waiting, tally = deque(plan.allocations), list(unfinished), Generated()
        if self.section.resample:
            tally.scores = []
        seeds = random.Random(plan.sampling_seed)
        seed = plan.sampling_seed  # of the first wave
        hinted = [launch for launch in map(self._hinted, plan.hints) if launch is not None]
        while (missing := plan.groups - len(tally.rollouts)) > 0:
            wave = self._launches(missing, drawn, waiting, tally)
            missing += len(hinted)
            wave, hinted = [*wave, *hinted], []
            if not wave:
                break
            told: dict[int, Rollout] = {}
            turns = Conversing([launch.prompt for launch in wave], self.tokens, self.scorer)
            progress = self._advance(wave, missing, seed, halted, self._telling(wave, told, listener), turns)
            complete = self._sort_out(wave, progress, told, waiting, turns, tally)
            if not self.section.resample:
                tally.rollouts += complete
                break
            self._keep_informative(complete, tally)
            if halted is not None and halted():
                break
            seed = seeds.getrandbits(63)
        tally.unfinished = tuple(waiting)
        return tally

    def _launches(
        self, missing: int, drawn: deque[Allocation], waiting: list[UnfinishedGroup], tally: Generated
    ) -> list[_Launch]:
        """Takes from ``waiting``, then from ``drawn``, as many groups as are launched for ``missing`` wanted ones."""
        wanted = launched_for(missing, self.section.overprovision)
        wave: list[_Launch] = []
        while waiting and len(wave) < wanted:
            launch = self._resumed(waiting.pop(0))
            if launch is not None:
                wave.append(launch)
        tally.resumed += len(wave)
        fresh = [drawn.popleft() for _ in range(min(wanted - len(wave), len(drawn)))]
        begun = [self._begun(allocation) for allocation in fresh]
        tally.too_long += begun.count(None)
        wave += [launch for launch in begun if launch is not None]
        return wave

    def _begun(self, allocation: Allocation) -> _Launch | None:
        """Returns None for a prompt that leaves no position of the context for an answer."""
        task = self.tasks[allocation.task]
        prompt = training_prompt(task, allocation.prompt_seed)
        return self._launch(prompt, prompt.text, allocation.completions)

    def _hinted(self, hint: Hint) -> _Launch | None:
        """Returns None for a hint that leaves no position of the context for an answer."""
        task = self.tasks[hint.task]
        prompt = task.prompt(task.ref(hint.seed))
        return self._launch(prompt, hint.asked(prompt.text), 1, hint)

    def _launch(self, prompt: Prompt, text: str, completions: int, hint: Hint | None = None) -> _Launch | None:
        """Returns completions of ``text``, scored as those of ``prompt``; None where it leaves no room for one."""
        ids = tuple(self.tokens.prompt_ids(text, prompt.tools))
        room = min(self.tasks[prompt.ref.task].max_new_tokens, self.context - len(ids))
        if room <= 0:
            return None
        whole = self.context if hint is None and self._converses(prompt) else None
        return _Launch(prompt, GenerationRequest(ids, completions, room, conversation_tokens=whole), hint)

    def _resumed(self, group: UnfinishedGroup) -> _Launch | None:
        """Returns None for a group whose task has changed, or whose prompt and tokens no longer fit the context."""
        task = self.tasks.get(group.ref.task)
        if task is None:
            log.warning("an unfinished group is dropped: this node no longer trains on %s", group.ref.task)
            return None
        try:
            prompt = task.prompt(group.ref)
        except ProtocolError as error:
            log.warning("an unfinished group of %s is dropped: %s", group.ref.task, error)
            return None
        prompt_ids = tuple(self.tokens.prompt_ids(prompt.text, prompt.tools))
        room = min(task.max_new_tokens, self.context - len(prompt_ids))
        converses = self._converses(prompt)
        most = self.context - len(prompt_ids) if converses else room
        longest = max((len(row_of((), each)) for each in group.progress.sequences), default=1)
        if longest > most:
            log.warning(
                "an unfinished group of %s is dropped: it has a completion of %d tokens where the task and the model's "
                "context of %d leave room for %d after its prompt",
                group.ref.task,
                longest,
                self.context,
                most,
            )
            return None
        whole = self.context if converses else None
        return _Launch(prompt, GenerationRequest(prompt_ids, group.completions, room, group.progress, whole))

    def _advance(
        self,
        wave: Sequence[_Launch],
        missing: int,
        seed: int,
        halted: Callable[[], bool] | None,
        ended: Ended | None,
        turns: Turns,
    ) -> list[GenerationProgress]:
        enough: Enough | None = None
        if halted is not None:
            enough = lambda complete: complete >= missing or halted()  # noqa: E731
        elif len(wave) > missing:
            enough = lambda complete: complete >= missing  # noqa: E731
        requests = [launch.request for launch in wave]
        return self.engine.advance(requests, Sampling(self.temperature, seed), enough, ended, turns)

    def _telling(self, wave: Sequence[_Launch], told: dict[int, Rollout], listener: EndedGroups | None) -> Ended | None:
        """Returns what tells ``listener`` of ended groups, and notes them in ``told`` by their place in ``wave``."""
        if listener is None or self.section.resample:
            return None

        def tell(index: int, reached: GenerationProgress) -> None:
            if wave[index].hint is None and not self._converses(wave[index].prompt):
                told[index] = self._rollout(wave[index], reached)
                listener.ended(told[index])

        return tell

    def _converses(self, prompt: Prompt) -> bool:
        return isinstance(self.tasks[prompt.ref.task], ConversationTask)

    def _rollout(self, launch: _Launch, reached: GenerationProgress) -> Rollout:
        asked = launch.prompt
        ids = launch.request.prompt_ids if launch.hint is None else self.tokens.prompt_ids(asked.text, asked.tools)
        return rollout_of(launch.prompt, ids, reached.samples, self.tokens)

    def _sort_out(
        self,
        wave: Sequence[_Launch],
        progress: Sequence[GenerationProgress],
        told: Mapping[int, Rollout],
        waiting: list[UnfinishedGroup],
        turns: Conversing,
        tally: Generated,
    ) -> list[Rollout]:
        """Returns the complete groups; the others go to the front of ``waiting``, being older than what is there."""
        complete: list[Rollout] = []
        unfinished: list[UnfinishedGroup] = []
        for index, (launch, reached) in enumerate(zip(wave, progress, strict=True)):
            request = launch.request
            tally.tokens += reached.tokens - (request.begun.tokens if request.begun else 0)
            if launch.hint is not None:
                if len(reached.samples) == request.completions:
                    tally.hinted.append((self._rollout(launch, reached), launch.hint))
            elif len(reached.samples) == request.completions:
                if request.conversation_tokens is not None:
                    complete.append(turns.rollout(launch.prompt, request.prompt_ids, reached.samples))
                else:
                    complete.append(told.get(index) or self._rollout(launch, reached))
            else:
                unfinished.append(UnfinishedGroup(launch.prompt.ref, request.completions, reached))
        waiting[:0] = unfinished
        return complete

    def _keep_informative(self, complete: Sequence[Rollout], tally: Generated) -> None:
        assert tally.scores is not None
        for rollout, each in zip(complete, scored(complete, self.scorer), strict=True):
            if min(each.rewards) < max(each.rewards):
                tally.rollouts.append(rollout)
                tally.scores.append(each)
            else:
                tally.dropped.append((rollout, each))


def launched_for(groups: int, overprovision: float) -> int:
    """Returns the number of groups to launch where ``groups`` complete ones are wanted."""
    return math.ceil(groups * (1.0 + overprovision) - 1e-9)  # 10 · 1.1 is a little more than 11


def round_plan(section: LearnerSection, tasks: Sequence[str], seed: str, round_number: int) -> RoundPlan:
    """Plans what a round, this or a later one, may generate. Prompts after the first lot are for ``resample``.

    ``seed`` must differ between nodes.
    """

    def allocated(seed: str, groups: int) -> list[Allocation]:
        return allocate(round_number, seed, tasks, groups=groups, completions=section.completions)

    drawn = allocated(seed, launched_for(section.own_groups, section.overprovision))
    for lot in range(1, section.resample):
        drawn += allocated(f"{seed}/lot {lot}", section.own_groups)
    sampling = random.Random(f"starling/sample/{seed}/{round_number}")
    return RoundPlan(section.own_groups, tuple(drawn), sampling.getrandbits(63))


def check_prompt_room(tasks: Mapping[str, Task], tokens: TokenTable, context: int) -> None:
    """Looks at ``SAMPLED_PROMPTS`` prompts of each task, and warns of a task where some leave no room: rounds leave
    these out. Raises ``ConfigurationError`` where none of any task fits, or a task has no question that teaches,
    and for conversations where the chat template writes no reply."""
    if any(isinstance(task, ConversationTask) for task in tasks.values()):
        tokens.reply_ids("", after=tokens.eos_id)  # raises where the chat template writes no reply
        if not tokens.extends:
            log.warning(
                "the model's chat template writes earlier turns differently, as those that leave thoughts out do. "
                "There the model reads the conversation as the template writes it, and what it says from there on is a "
                "sample of its own to learn from: the turns before are computed again"
            )
    fitting = 0
    for name, task in tasks.items():
        prompts = [training_prompt(task, seed) for seed in range(SAMPLED_PROMPTS)]
        lengths = [len(tokens.prompt_ids(each.text, each.tools)) for each in prompts]
        short = sum(length < context for length in lengths)
        fitting += short
        if short < len(lengths):
            log.warning(
                "%d of %d prompts of %s leave no room for an answer in the model's context of %d tokens, the longest "
                "has %d: they will be left out", len(lengths) - short, len(lengths), name, context, max(lengths),
            )  # fmt: skip
    if tasks and not fitting:
        raise ConfigurationError(
            f"no prompt of {', '.join(sorted(tasks))} leaves room for an answer in the model's context of {context} "
            "tokens: choose shorter tasks, or a policy.model with a longer context"
        )
