"""Hostile actions against every environment that is built in: what raises, and how long a turn takes at most.

    python -m scripts.attacks.hostile_actions --actions 1000000

Actions are the audit's hostile ones, an environment's own moves with characters changed, random Unicode, calls of tools
with arguments of other types, and SQL: tokens in any order, and queries nested and joined in the way of SQLite's own
fuzzers. Each goes to an episode that has had other actions before. Times are of the processor, of one turn; each
environment gets as many actions. Exits with 1 if an environment raised, or said more than it may.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence

from node.configuration import TasksSection
from node.environments.audit import HOSTILE
from node.environments.built_in.all import CONVERSATIONS
from node.environments.conversation import ConversationTask, observation_fault

_SQL = (
    "SELECT DISTINCT FROM WHERE GROUP BY HAVING ORDER LIMIT OFFSET UNION ALL EXCEPT INTERSECT JOIN LEFT CROSS "
    "NATURAL ON USING AS CASE WHEN THEN ELSE END CAST TEXT INTEGER BLOB IN EXISTS BETWEEN NOT NULL IS AND OR LIKE "
    "GLOB REGEXP MATCH COLLATE NOCASE VALUES WITH RECURSIVE WINDOW OVER PARTITION ROWS RAISE EXPLAIN QUERY PLAN "
    "PRAGMA ATTACH DETACH CREATE TRIGGER TABLE VIEW INDEX VIRTUAL DROP INSERT UPDATE DELETE REPLACE VACUUM ANALYZE "
    "REINDEX SAVEPOINT BEGIN COMMIT people orders name city age buyer good pieces price sqlite_master sqlite_schema "
    "pragma_table_info json_each generate_series rowid count max min sum total group_concat abs round length substr "
    "replace instr upper hex quote char printf format zeroblob randomblob random unicode typeof likelihood "
    "load_extension readfile fts3_tokenizer iif nullif * , ; . ( ) + - / % || & | << >> ~ = == <> < > 0 1 -1 "
    "9223372036854775807 1e308 0x7fffffff 'Ada' '' x'00ff' ? ?1 :a -- /* */ \" ` ["
)
SQL = _SQL.split()
ATOMS = ("name", "age", "city", "1", "-1", "'a'", "NULL", "9223372036854775807", "x'00'", "1e308", "*")
SHAPES = (
    "({} + {})", "({} || {})", "({} * {})", "CASE WHEN {} THEN {} ELSE {} END", "max({}, {})", "replace({}, {}, {})",
    "count({})", "sum({}) OVER (ORDER BY {})", "substr({}, {}, {})", "({} IN (SELECT {} FROM people))", "NOT {}",
    "(SELECT {} FROM people WHERE {} LIMIT {})", "CAST({} AS BLOB)", "instr({}, {})", "{} BETWEEN {} AND {}", "~{}",
)  # fmt: skip


def mutated(draws: random.Random, text: str) -> str:
    """Returns ``text`` with a few pieces left out, doubled or replaced."""
    for _ in range(draws.randint(1, 4)):
        begin = draws.randint(0, len(text))
        end = min(len(text), begin + draws.randint(0, 6))
        doubled = text[begin:end] * draws.choice([2, 2, 50])
        piece = draws.choice(["", doubled, draws.choice(SQL), chr(draws.randrange(0xD800))])
        text = text[:begin] + piece + text[end:]
    return text[:20_000]


def expression(draws: random.Random, depth: int) -> str:
    """Returns an expression of SQL, nested up to ``depth``."""
    if depth == 0:
        return draws.choice(ATOMS)
    inner = (expression(draws, depth - 1) for _ in range(3))
    shape = draws.choice(SHAPES)
    return shape.format(*inner)


def query(draws: random.Random) -> str:
    """Returns a query that SQLite may well take."""
    depth = draws.randint(0, 4)
    tables = ", ".join(f"{draws.choice(['people', 'orders'])} t{n}" for n in range(draws.choice([1, 1, 2, 3, 6])))
    text = f"SELECT {expression(draws, depth)}, {expression(draws, 1)} FROM {tables}"
    for clause in ("WHERE {}", "GROUP BY {}", "HAVING {}", "ORDER BY {}", "LIMIT {}"):
        if draws.random() < 0.3:
            text += " " + clause.format(expression(draws, draws.randint(0, 3)))
    return f"{text} UNION ALL {text}" if draws.random() < 0.1 else text


def call(draws: random.Random, tools: Sequence[str]) -> str:
    """Returns a call of a tool, or of none, with arguments of any type."""
    values = [1, -1, 10**40, 1e308, "", "a" * 50, None, True, [], {}, [[1]], "\0", "hawm"]
    names = ["a", "b", "key", "value", "self", "__class__", "prompt"]
    given = {draws.choice(names): draws.choice(values) for _ in range(draws.randint(0, 3))}
    return json.dumps({"name": draws.choice([*tools, "reset", "__init__", "right"]), "arguments": given})


def actions_for(task: ConversationTask, draws: random.Random) -> Callable[[], str]:
    moves = [move for seed in range(50) for move in task.example(seed) or ()]
    tools = [str(each["function"]["name"]) for each in getattr(task.environment, "tools", ())]
    kinds: list[Callable[[], str]] = [
        lambda: draws.choice(HOSTILE),
        lambda: draws.choice(moves),
        lambda: mutated(draws, draws.choice(moves)),
        lambda: "".join(chr(draws.randrange(0xD800)) for _ in range(draws.randint(0, 40))),
        lambda: " ".join(draws.choices(SQL, k=draws.randint(1, 40))),
        lambda: query(draws),
        lambda: call(draws, tools),
        lambda: mutated(draws, call(draws, tools) if tools else query(draws)),
    ]
    return lambda: draws.choice(kinds)()


def attack(task: ConversationTask, actions: int, seed: int) -> tuple[int, list[str], float, int]:
    """Returns the episodes played, what was wrong, the most milliseconds of a turn, and the most bytes said."""
    draws = random.Random(f"{seed}/{task.name}")
    draw, environment = actions_for(task, draws), task.environment
    faults: dict[str, None] = {}
    episodes, done, slowest, longest = 0, 0, 0.0, 0
    while done < actions:
        episodes += 1
        episode = environment.begin(environment.ref(draws.getrandbits(40)))
        for _ in range(environment.max_turns):
            action = draw()
            done += 1
            began = time.process_time()
            try:
                turn, reward = episode.act(action), episode.reward()
            except Exception as error:  # noqa: BLE001 - what is looked for
                faults[f"{type(error).__name__}: {error} after {action[:80]!r}"] = None
                break
            slowest = max(slowest, time.process_time() - began)
            fault = observation_fault(environment, turn.observation)
            if fault is not None or not 0 <= reward <= 1:
                faults[f"{fault or reward} after {action[:80]!r}"] = None
                break
            longest = max(longest, len(turn.observation.encode()))
            if turn.done:
                break
    return episodes, list(faults), slowest * 1000, longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actions", type=int, default=1_000_000, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    each, wrong = -(-given.actions // len(CONVERSATIONS)), 0
    print(f"{'environment':<22} {'actions':>9} {'episodes':>9} {'slowest turn':>13} {'longest':>8}  wrong", flush=True)
    for task in CONVERSATIONS:
        episodes, faults, slowest, longest = attack(task, each, given.seed)
        wrong += len(faults)
        print(
            f"{task.name:<22} {each:>9,} {episodes:>9,} {slowest:>10.1f} ms {longest:>6} B  {len(faults)}", flush=True
        )
        for fault in faults[:5]:
            print(f"    {fault[:200]}", flush=True)
    limit = TasksSection().scoring_seconds
    print(f"{each * len(CONVERSATIONS):,} actions, {wrong} wrong; an episode may take {limit:g} s in all")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
