"""Conversations between nodes: bytes of a group on the wire, time to play them again, and whether lies are found.

    python -m scripts.bench.conversations [--lies 1000] [--json]

Three built-in environments, with eight conversations a group. Actions are wrong ones, drawn from a few, and then those
that go well. Token ids and log-probabilities are those of ``scripts.bench.wire``, its "typical" ones; digests are what
the environment gives. "Plain" is MessagePack of dicts of the actions: ids, log-probabilities as float64, text and
finish, the same metadata, neither compressed nor signed, and with no digest. Ours is the sealed announcement with its
one advert, and the blob.

The replay of a conversation is the processor time of one verdict in a scoring worker: the first text, every action,
observation, reward and digest.

A lie is one change in what a peer claims of a conversation: what followed an action, what it earned, two actions in
each other's place, a turn left out. The digests are those of what is claimed. It is found at the right turn where the
receiver names the first that is untrue, as a comparison of the texts and rewards themselves shows. Then one peer's
false groups are counted by the reputation that the swarm process keeps.
"""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
from msgspec.structs import replace as replace_struct

from node.environments.conversation import ConversationTask, transcript
from node.learner.foreign.candidates import as_scored
from node.learner.foreign.verification import check_rewards, check_turns
from node.tasks.registry import BUILT_IN_TASKS
from node.tasks.scorer import Scores
from node.tasks.worker import score_one
from protocol.conversations import Action, turn_digest
from protocol.identity import NodeKey
from protocol.rollouts import Completion, FinishReason, Group, decode_group, encode_group
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.wire import microseconds, sampled_logps, sealed_advert, token_id_of
from swarm.api import Judgement
from swarm.peers.reputation import ReputationBook

COMPLETIONS = 8
ENVIRONMENTS = ("guess_number", "grid:large", "database:large")
TURNS = 8
END = 151_645  # the id of a token that ends a turn
WRONG = {
    "guess_number": [str(number) for number in range(0, 1001, 7)],
    "grid:large": ["north", "south", "west", "east"],
    "database:large": [
        "SELECT name, age FROM people WHERE city = 'Oslo' ORDER BY age DESC LIMIT 3",
        "SELECT count(*) FROM orders WHERE pieces > 3",
        "SELECT buyer, sum(pieces * price) FROM orders GROUP BY buyer",
        "SELECT city, avg(age) FROM people GROUP BY city HAVING count(*) > 1",
    ],
}
LIES = ("observation", "reward", "order", "turn")


def environment(name: str) -> ConversationTask:
    task = BUILT_IN_TASKS[name]
    assert isinstance(task, ConversationTask)
    return task


def actions_for(task: ConversationTask, seed: int, draws: random.Random) -> list[str]:
    """Returns at most ``TURNS`` actions: wrong ones, and then those that go well."""
    most = min(TURNS, task.environment.max_turns)
    right = (task.example(seed) or [])[-most:]
    actions = [*draws.choices(WRONG[task.name], k=most - len(right)), *right]
    played = score_one(task, task.prompt(task.ref(seed)), transcript(actions)).played
    assert played is not None
    return actions[: len(played.observations)]


def completion_of(task: ConversationTask, seed: int, actions: Sequence[str], rng: np.random.Generator) -> Completion:
    pieces = [[*re.findall(r" ?[A-Za-z]+|\d|[^A-Za-z\d]", action), ""] for action in actions]
    ids = [[END if not piece else token_id_of(piece) for piece in each] for each in pieces]
    lengths = [len(piece) for each in pieces for piece in each]
    verdict = score_one(task, task.prompt(task.ref(seed)), transcript(actions))
    assert verdict.played is not None
    rows = zip(ids, verdict.played.digests[1:], strict=True)
    return Completion(
        "".join(actions).encode(),
        np.array([token_id for each in ids for token_id in each]),
        np.array(lengths),
        sampled_logps(rng, len(lengths)),
        FinishReason.STOP,
        verdict.reward,
        tuple(Action(len(each), True, digest) for each, digest in rows),
    )


def group_of(task: ConversationTask, seed: int) -> Group:
    draws, rng = random.Random(seed), np.random.default_rng(seed)
    first = score_one(task, task.prompt(task.ref(seed)), transcript([])).played
    assert first is not None
    completions = tuple(completion_of(task, seed, actions_for(task, seed, draws), rng) for _ in range(COMPLETIONS))
    return Group(task.ref(seed), rng.bytes(16), rng.bytes(16), 1234, completions, first.digests[0])


def plain_message(group: Group) -> bytes:
    """Returns the actions as a program without an optimised format would send them."""
    return msgspec.msgpack.encode(
        {
            "environment": group.prompt.task,
            "version": group.prompt.version,
            "config_hash": group.prompt.config_hash,
            "seed": group.prompt.seed,
            "family": group.family,
            "tokenizer": group.tokenizer,
            "policy_version": group.policy_version,
            "completions": [
                {
                    "actions": [
                        {
                            "text": turn.text.decode(),
                            "token_ids": turn.token_ids.tolist(),
                            "logps": turn.logps.tolist(),
                            "finish": str(turn.finish),
                        }
                        for turn in completion.turns()
                    ],
                    "reward": completion.reward,
                }
                for completion in group.completions
            ],
        }
    )


def sizes(task: ConversationTask, groups: Sequence[Group]) -> list[Figure]:
    key = NodeKey(bytes(32))
    blobs = [encode_group(group) for group in groups]
    adverts = [len(sealed_advert(key, group, blob)) for group, blob in zip(groups, blobs, strict=True)]
    plain = sum(len(plain_message(group)) for group in groups)
    sent = sum(map(len, blobs)) + sum(adverts)
    digests = sum(16 * (1 + sum(len(each.actions) for each in group.completions)) for group in groups)
    turns = sum(len(each.actions) for group in groups for each in group.completions)
    tokens = sum(len(each.token_ids) for group in groups for each in group.completions)
    count = len(groups)
    took = microseconds(lambda: encode_group(groups[0]), 300)
    return [
        Figure(f"{task.name}: turns a conversation", turns / count / COMPLETIONS, "turns", "higher"),
        Figure(f"{task.name}: tokens an action", tokens / turns, "tokens", "higher"),
        Figure(f"{task.name}: plain MessagePack of the actions", plain / count, "bytes", "lower"),
        Figure(f"{task.name}: advert, blob", sent / count, "bytes", "lower"),
        Figure(f"{task.name}: of these digests", digests / count, "bytes", "lower"),
        Figure(f"{task.name}: advert and blob, of plain", 100 * sent / plain, "%", "lower", "≤ 40 %"),
        Figure(f"{task.name}: encode a group", took, "µs", "lower"),
    ]


def replay_milliseconds(task: ConversationTask, groups: Sequence[Group]) -> Figure:
    """Measures the processor time of a conversation of so many turns as there are, each three times, the fastest."""
    spent: list[float] = []
    for group in groups:
        prompt = task.prompt(group.prompt)
        for completion in group.completions:
            fastest = float("inf")
            for _ in range(3):
                began = time.process_time()
                for _ in range(10):
                    score_one(task, prompt, as_scored(completion))
                fastest = min(fastest, time.process_time() - began)
            spent.append(fastest / 10)
    return Figure(f"{task.name}: replay of a conversation", 1e3 * float(np.mean(spent)), "ms CPU", "lower", "≤ 2 ms")


def lied(task: ConversationTask, group: Group, lie: str, draws: random.Random) -> tuple[Group, tuple[int, int]] | None:
    """Returns the group with one lie in it, whose digests follow from what is claimed, and the completion and the turn
    at which the claim is first untrue. None where this change makes nothing untrue."""
    place = draws.randrange(COMPLETIONS)
    completion, turns = group.completions[place], group.completions[place].turns()
    claimed = task.exchanges(group.prompt, [turn.text.decode() for turn in turns])
    at = draws.randrange(len(claimed))
    told = claimed[at]
    if lie == "observation":
        claimed[at] = replace_struct(told, observation=told.observation + draws.choice(" .x"))
    elif lie == "reward":
        claimed[at] = replace_struct(
            told, reward=draws.choice([each for each in (0.0, 0.5, 1.0) if each != told.reward])
        )
    elif lie == "order":
        other = draws.randrange(len(claimed))
        turns[at], turns[other] = turns[other], turns[at]
        claimed[at], claimed[other] = (
            replace_struct(claimed[one], action=claimed[two].action) for one, two in ((at, other), (other, at))
        )
    else:
        del turns[at], claimed[at]
    actual = task.exchanges(group.prompt, [each.action for each in claimed])
    pairs = itertools.zip_longest(claimed, actual)
    untrue = next((turn for turn, (theirs, ours) in enumerate(pairs, 1) if theirs != ours), None)
    if untrue is None or not turns:
        return None
    digests = [group.beginning]
    for each in claimed:
        digests.append(turn_digest(digests[-1], each.action, each.observation, each.reward, done=each.done))
    liar = Completion(
        b"".join(turn.text for turn in turns),
        np.concatenate([turn.token_ids for turn in turns]),
        np.concatenate([turn.token_bytes for turn in turns]),
        np.concatenate([turn.logps for turn in turns]),
        completion.finish,
        claimed[-1].reward,
        tuple(Action(len(turn.token_ids), True, digest) for turn, digest in zip(turns, digests[1:], strict=True)),
    )
    completions = [*group.completions[:place], liar, *group.completions[place + 1 :]]
    return replace(group, completions=tuple(completions)), (place, untrue)


def found_at(task: ConversationTask, group: Group) -> tuple[int, int] | None:
    """Returns the completion and the turn that a receiver names, of a group that comes over the wire; None: no lie."""
    group = decode_group(encode_group(group))
    prompt = task.prompt(group.prompt)
    verdicts = [score_one(task, prompt, as_scored(completion)) for completion in group.completions]
    scores = Scores(
        tuple(verdict.reward for verdict in verdicts),
        (None,) * len(verdicts),
        tuple(verdict.played for verdict in verdicts),
    )
    difference = check_turns(group, scores)
    if difference is None:
        assert check_rewards([completion.reward for completion in group.completions], scores) is None
        return None
    named = re.match(r"completion (\d+): (?:turn (\d+)|the first text)", difference)
    assert named is not None
    return int(named[1]), int(named[2] or 0)


def lies(count: int, seed: int) -> list[Figure]:
    tasks = [environment(name) for name in ENVIRONMENTS]
    groups = [(task, group_of(task, number)) for task in tasks for number in range(12)]
    draws = random.Random(seed)
    figures: list[Figure] = []
    for lie in LIES:
        told = found = right = 0
        while told < count:
            task, group = draws.choice(groups)
            false = lied(task, group, lie, draws)
            if false is None:
                continue
            named = found_at(task, false[0])
            told, found, right = told + 1, found + (named is not None), right + (named == false[1])
        figures.append(Figure(f"{lie}: lies found, of {told}", found, "lies", "higher", "all"))
        figures.append(Figure(f"{lie}: of these at their turn", right, "lies", "higher", "all"))
    true = sum(found_at(task, group) is None for task, group in groups)
    figures.append(Figure(f"true groups that pass, of {len(groups)}", true, "groups", "higher", "all"))
    return [*figures, Figure("false groups until a ban", lies_until_ban(), "groups", "lower", "≤ 3")]


def lies_until_ban() -> int:
    """Returns how many such groups of one peer, a minute apart, the swarm process takes before it bans the peer."""
    book, now_seconds = ReputationBook(), 1_790_000_000.0
    for count in itertools.count(1):
        book.observe("liar", Judgement.FALSE_REWARD, now_seconds + 60 * count)
        if book.banned_because("liar", now_seconds + 60 * count) is not None:
            return count
    raise AssertionError("a count has no end")


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--groups", type=int, default=20, help="of each environment")
    parser.add_argument("--lies", type=int, default=1000, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    figures: list[Figure] = []
    for name in ENVIRONMENTS:
        task = environment(name)
        groups = [group_of(task, seed) for seed in range(options.groups)]
        figures += [*sizes(task, groups), replay_milliseconds(task, groups[:5])]
    report("conversations", [*figures, *lies(options.lies, options.seed)], as_json=options.json)


if __name__ == "__main__":
    main()
