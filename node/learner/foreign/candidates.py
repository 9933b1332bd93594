"""From the foreign groups that arrived to the foreign half of a round's batch.

    regenerated       the prompt is made again from its reference, and teaches              or the group is refused
    verified          claimed rewards agree with those recomputed beside our own ones     or the group is refused
                      what conversations led to is what their actions lead to here
    training_groups   alignment and advantages, as ``objective.training_groups``
    report_use        the swarm process learns which groups were trained on

A refused group is judged, never taken again, and noted in the round's ``ForeignOutcomes`` with its reason; so is every
group that was trained on.
"""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from node.configuration import ObjectiveSection
from node.environments.conversation import Played, actions_of, as_read, transcript
from node.learner.allocation.success import SuccessTracker
from node.learner.foreign.conversation_checks import Agreement
from node.learner.foreign.intake import ForeignGroup, Incoming, RolloutIntake
from node.learner.foreign.outcomes import Decided, ForeignOutcome, ForeignOutcomes, name_of
from node.learner.foreign.verification import ForeignRefusal, check_rewards, check_turns, regenerated_prompt
from node.learner.generation.hint import Hint
from node.learner.objective.advantages import AdvantageRule
from node.learner.objective.batch import SELF, TrainingGroup
from node.learner.objective.report import ObjectiveReport
from node.learner.objective.training_groups import foreign_training_group
from node.policy.tokens import TokenTable
from node.tasks.answers import RIGHT
from node.tasks.canonical import is_canonical, is_own_text
from node.tasks.scorer import Scores
from node.tasks.split import Part, part_of
from node.tasks.task import Prompt, Task
from protocol.errors import ProtocolError
from protocol.messages import PromptRef
from protocol.rollouts import Completion, Group
from swarm.api import Judgement

log = logging.getLogger(__name__)
HELD_OUT: Final = ForeignRefusal(
    Judgement.MALFORMED, ForeignOutcome.HELD_OUT, "its question only measures: nobody trains on it"
)
NOT_CHECKED: Final = ForeignRefusal(
    None, ForeignOutcome.NOT_CHECKED, "there was no time left to play it again: learner.replay_seconds bounds it"
)
MIN_COLLECT_SECONDS: Final = 0.25  # waiting for foreign groups


@dataclass(frozen=True, slots=True, eq=False)
class ForeignCandidate:
    """A peer's group that was fetched and decoded, and whose prompt was made again by this node's own task.

    Its rewards are claims of the peer: nothing learns from them before ``VerifiedGroup`` has recomputed ones.
    """

    foreign: ForeignGroup
    prompt: Prompt

    @property
    def group(self) -> Group:
        return self.foreign.group

    def scoring_item(self) -> tuple[PromptRef, list[str]]:
        """Returns what the scorer takes: the prompt's reference, and each completion's text in the group's order."""
        return self.prompt.ref, [as_scored(completion) for completion in self.group.completions]


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedGroup:
    """A group whose every checkable claim holds."""

    foreign: ForeignGroup
    prompt: Prompt
    rewards: tuple[float, ...]  # recomputed here
    played: tuple[Played, ...] = ()  # likewise; of conversations

    def texts(self) -> list[bytes]:
        """Returns the completions as people read them."""
        completions = self.foreign.group.completions
        if not self.played:
            return [completion.text for completion in completions]
        return [
            as_read(actions_of(as_scored(each)), played.observations).encode()
            for each, played in zip(completions, self.played, strict=True)
        ]


def as_scored(completion: Completion) -> str:
    """Returns what the scorer takes of a completion: its text, or the transcript of a conversation. Bytes that are not
    UTF-8 become the replacement character, on every node alike."""
    turns = [turn.text.decode("utf-8", "replace") for turn in completion.turns()]
    return transcript(turns) if completion.actions else turns[0]


@dataclass(eq=False)
class ForeignCandidates:
    """Checks foreign groups and prepares them for training. Called from the learner's thread; keeps only which peers'
    conversations go here as they say.

    ``context`` is the number of positions that the learner's model has. ``copies_free_text`` says of a
    task whether right answers of peers are copied with the text around them. ``tasks`` are those that are shared: an
    environment once it has passed its audit here.
    """

    intake: RolloutIntake
    tasks: Mapping[str, Task]
    tokens: TokenTable
    objective: ObjectiveSection
    context: int
    copies_free_text: Callable[[str], bool] = lambda task: False
    agreement: Agreement = field(default_factory=Agreement)

    def may_share(self, task: str) -> bool:
        """Whether others can check and use own groups of ``task``."""
        return task in self.tasks and not self.agreement.fault_is_ours(task)

    def regenerated(self, arrived: Sequence[ForeignGroup], outcomes: ForeignOutcomes) -> list[ForeignCandidate]:
        """Returns the groups whose prompts can be made here, and refuses the others."""
        candidates: list[ForeignCandidate] = []
        for foreign in arrived:
            try:
                prompt = regenerated_prompt(foreign.group, self.tasks, self.tokens)
            except ProtocolError as error:
                self._refuse(foreign, ForeignRefusal(Judgement.MALFORMED, error, str(error)), outcomes)
                continue
            if part_of(prompt) is not Part.TRAINING:
                self._refuse(foreign, HELD_OUT, outcomes)
                continue
            candidates.append(ForeignCandidate(foreign, prompt))
        return candidates

    def verified(
        self, candidates: Sequence[ForeignCandidate], recomputed: Sequence[Scores | None], outcomes: ForeignOutcomes
    ) -> list[VerifiedGroup]:
        """Returns the groups whose claims hold, and refuses the others; None: there was no time to replay it."""
        groups: list[VerifiedGroup] = []
        for candidate, scores in zip(candidates, recomputed, strict=True):
            refusal = NOT_CHECKED if scores is None else self._refusal(candidate, scores)
            if refusal is None:
                assert scores is not None
                played = tuple(each for each in scores.played if each is not None)
                groups.append(VerifiedGroup(candidate.foreign, candidate.prompt, scores.rewards, played))
            else:
                self._refuse(candidate.foreign, refusal, outcomes)
        return groups

    def _refusal(self, candidate: ForeignCandidate, scores: Scores) -> ForeignRefusal | None:
        group, task = candidate.group, candidate.prompt.ref.task
        difference = check_turns(group, scores) if group.converses else None
        refusal = check_rewards([completion.reward for completion in group.completions], scores)
        if group.converses and (difference is not None or refusal is None):
            self.agreement.note(task, candidate.foreign.peer, difference is None)
        if difference is None:
            return refusal
        if self.agreement.fault_is_ours(task):
            return ForeignRefusal(None, ForeignOutcome.WE_DIFFER, difference)
        return ForeignRefusal(Judgement.FALSE_REWARD, ForeignOutcome.DIFFERS, difference)

    def training_groups(
        self,
        verified: Sequence[VerifiedGroup],
        rule: AdvantageRule,
        success: Callable[[str], float],
        capability_ratio: Callable[[str], float] = lambda peer: 1.0,
    ) -> list[TrainingGroup]:
        """Returns the groups in the learner's own tokens; ``success`` is V_θ of a task, ``capability_ratio`` κ of a
        peer, for advantages by capability."""
        return [
            foreign_training_group(
                each.foreign.group,
                tuple(self.tokens.prompt_ids(each.prompt.text, each.prompt.tools)),
                each.rewards,
                peer=each.foreign.peer,
                tokens=self.tokens,
                section=self.objective,
                rule=rule,
                success=success(each.prompt.ref.task),
                context=self.context,
                max_new_tokens=self.tasks[each.prompt.ref.task].max_new_tokens,
                capability_ratio=capability_ratio(each.foreign.peer),
                is_canonical=partial(self._is_copied, each),
                played=each.played,
                asked=each.prompt,
            )
            for each in verified
        ]

    def hints(self, verified: Sequence[VerifiedGroup]) -> list[Hint | None]:
        """Returns for each group the hint that it gives: its question, where it has a right answer of free text and
        none that is copied."""
        return [self._hint(each) for each in verified]

    def _hint(self, group: VerifiedGroup) -> Hint | None:
        ref, answer = group.prompt.ref, group.prompt.answer
        right = [
            completion
            for completion, reward in zip(group.foreign.group.completions, group.rewards, strict=True)
            if reward >= RIGHT
        ]
        if answer is None or not right or any(self._is_copied(group, completion) for completion in right):
            return None
        return Hint(ref.task, ref.seed, answer, group.foreign.peer)

    def _is_copied(self, group: VerifiedGroup, completion: Completion) -> bool:
        """Whether a right completion is copied: where the task itself would write this very text, or where free text is
        copied and it is worth copying."""
        task, text = self.tasks[group.prompt.ref.task], as_scored(completion)
        worth_copying = is_canonical if self.copies_free_text(task.name) else is_own_text
        return worth_copying(task, group.prompt, text)

    def report_use(
        self,
        verified: Sequence[VerifiedGroup],
        groups: Sequence[TrainingGroup],
        hints: Sequence[Hint | None],
        outcomes: ForeignOutcomes,
    ) -> None:
        """Notes which groups are learnt from, as they are or as a hint. A sender's group is judged once, however often
        it is replayed."""
        for each, group, hint in zip(verified, groups, hints, strict=True):
            foreign, outcome, detail = each.foreign, ForeignOutcome.WITHOUT_GRADIENT, None
            is_used = hint is not None or (group.informative and group.influence > 0)
            if is_used:
                outcome = ForeignOutcome.USED if foreign.new else ForeignOutcome.REPLAYED
            elif group.informative:
                outcome = ForeignOutcome.NO_INFLUENCE
            elif group.not_copied:
                outcome = ForeignOutcome.NOT_CANONICAL
            if group.not_copied:
                detail = ", ".join(f"{count} {why}" for why, count in sorted(Counter(group.not_copied).items()))
            outcomes.note(Decided.of_group(outcome, foreign.peer, foreign.group, detail))
            if foreign.new:
                judgement = Judgement.USED if is_used else Judgement.UNUSED
                self.intake.judge(foreign.peer, foreign.blob, judgement)

    def _refuse(self, foreign: ForeignGroup, refusal: ForeignRefusal, outcomes: ForeignOutcomes) -> None:
        outcomes.note(Decided.of_group(refusal.decision, foreign.peer, foreign.group, refusal.detail))
        self.intake.refuse(foreign, refusal.judgement, refusal.detail)
        log.warning("group of %s not used: %s (%s)", foreign.peer, name_of(refusal.decision), refusal.detail)


@dataclass(eq=False)
class ForeignGroups:
    """The groups of others for one learner. Only the learner's thread may call it.

    ``admits``: whose groups a round may learn from; ``draws``: a round's random numbers for one purpose. With ``ahead``
    generation runs ahead and leaves no time: the next groups come while the round learns.
    """

    intake: RolloutIntake
    candidates: ForeignCandidates
    admits: Callable[[int], Callable[[str], bool]]
    draws: Callable[[str, int], random.Random]
    ahead: bool

    def ask(self, rounds_done: int, success: SuccessTracker) -> None:
        """Has groups chosen and fetched for the round after ``rounds_done``, unless the last ones are still on their
        way. Returns at once."""
        self.intake.admits = self.admits(rounds_done + 1)
        self.intake.begin(success.copy().of, self.draws("choose", rounds_done))

    def collected(
        self, rounds_done: int, success: SuccessTracker, seconds: float, outcomes: ForeignOutcomes
    ) -> tuple[Incoming, Sequence[ForeignCandidate]]:
        """Returns what has arrived, after ``seconds`` at most, and of it the groups whose prompts can be made here."""
        incoming = self.intake.collect(max(MIN_COLLECT_SECONDS, seconds))
        candidates = self.candidates.regenerated(incoming.groups, outcomes)
        if self.ahead:
            self.ask(rounds_done + 1, success)
        return incoming, candidates

    def measured(self, objective: ObjectiveReport) -> None:
        """Remembers, for choosing, how far the policies of others are from ours."""
        by_peer = objective.divergence_by_peer()
        self.intake.measured({p: nats for p, nats in by_peer.items() if p != SELF and math.isfinite(nats)})
