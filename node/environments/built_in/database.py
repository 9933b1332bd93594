"""Questions to a database: the model writes SQL, reads what it returns, and then answers.

SQLite in memory, made from the seed and copied for each query. An action that begins with "answer:" ends the episode;
its reward is 1 for the right answer, otherwise 0. Any other action is one query, written by a model, which may be
hostile:

- The authorizer allows reading the tables, and the functions of ``FUNCTIONS``. So there is no write, no PRAGMA, no
  ATTACH, no extension, nothing random and no clock; nothing recursive, no WITH, no LIKE and no GLOB, whose patterns
  can take for ever.
- A query is stopped after ``MOST_OPERATIONS`` of SQLite's own machine, a count that is the same everywhere, unlike a
  time. A value or a row has ``MOST_VALUE_BYTES``, a query ``MOST_QUERY_BYTES``. So the memory of a query is bounded.
- ``MOST_ROWS`` rows of a result are shown, each cut to ``MOST_LINE_CHARACTERS``.

The order of rows without ORDER BY, and the messages for wrong SQL, are those of the library. Its version is part of the
configuration's hash.
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar, Final

from node.environments.environment import Turn
from node.tasks.task import check_ref, config_hash_of
from protocol.messages import PromptRef

SEEDS: Final = 1 << 32
MOST_OPERATIONS: Final = 100_000
OPERATIONS_A_LOOK: Final = 1_000
MOST_VALUE_BYTES: Final = 2_000
MOST_QUERY_BYTES: Final = 1_000
MOST_ROWS: Final = 8
MOST_LINE_CHARACTERS: Final = 80
MOST_MESSAGE_CHARACTERS: Final = 120
FUNCTIONS: Final = frozenset(
    {
        "abs", "avg", "coalesce", "count", "ifnull", "iif", "instr", "length", "lower", "max", "min", "nullif",
        "replace", "round", "substr", "sum", "total", "trim", "upper",
    }
)  # fmt: skip
_LIMITS: Final = {
    sqlite3.SQLITE_LIMIT_LENGTH: MOST_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MOST_QUERY_BYTES,
    sqlite3.SQLITE_LIMIT_COLUMN: 20,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 50,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 5,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 10_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 8,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 1,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_READS: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ})
_WITH: Final = re.compile(r"\bwith\b", re.IGNORECASE)
_ANSWER: Final = re.compile(r"\s*answer\s*:?\s*(.*)", re.IGNORECASE | re.DOTALL)

NAMES: Final = (
    "Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "Jill", "Kai", "Lea", "Max", "Nora",
    "Otto", "Pia", "Quin", "Rosa", "Sam", "Tess",
)  # fmt: skip
CITIES: Final = (
    "Bern", "Cairo", "Delhi", "Lima", "Oslo", "Paris", "Quito", "Rome", "Seoul", "Tunis",
)  # fmt: skip
GOODS: Final = (
    "apples", "books", "chairs", "drums", "eggs", "forks", "gloves", "hats",
)  # fmt: skip

WORDS: Final = FUNCTIONS | {
    "select", "from", "where", "and", "or", "not", "in", "is", "null", "between", "distinct", "group", "order", "by",
    "having", "limit", "asc", "desc", "join", "on", "as", "people", "name", "city", "age", "orders", "buyer", "good",
    "pieces", "price",
}  # fmt: skip
_NAMED: Final = "|".join(f"'{name}'" for name in (*NAMES, *CITIES, *GOODS))
_PIECE: Final = re.compile(rf"{_NAMED}|[A-Za-z]+|[0-9]{{1,6}}(?:\.[0-9]{{1,3}})?|[-+*/%,.()<>=!]")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{1,3})?")


@dataclass(frozen=True)
class Database:
    """``people`` rows of persons, and with ``orders`` above 0 as many of what they bought."""

    name: str
    people: int
    orders: int
    max_turns: int
    max_new_tokens: int = 96

    version: ClassVar[int] = 1
    max_observation_bytes: ClassVar[int] = 1_200

    @property
    def config_hash(self) -> bytes:
        shape = {"environment": "database", "version": self.version, "people": self.people, "orders": self.orders}
        shape |= {"turns": self.max_turns, "tokens": self.max_new_tokens}
        return config_hash_of(shape | {"sqlite": sqlite3.sqlite_version})

    def ref(self, seed: int) -> PromptRef:
        return PromptRef(self.name, self.version, self.config_hash, seed % SEEDS)

    def begin(self, ref: PromptRef) -> Asking:
        check_ref(self, ref, SEEDS)
        draws = random.Random(ref.seed)
        people = [(name, draws.choice(CITIES), draws.randrange(18, 90)) for name in draws.sample(NAMES, self.people)]
        orders = [
            (draws.choice(people)[0], draws.choice(GOODS), draws.randrange(1, 10), draws.randrange(1, 50))
            for _ in range(self.orders)
        ]
        return Asking(people, orders, draws)

    def example(self, ref: PromptRef) -> Sequence[str]:
        episode = self.begin(ref)
        return [episode.query, f"answer: {episode.answer}"]

    def is_canonical(self, action: str) -> bool:
        """A query of known words, numbers and quoted names of the tables alone, or an answer that is a number."""
        if _NUMBER.fullmatch(action.removeprefix("answer: ")):
            return action.startswith("answer: ")
        words = [word.lower() for word in _PIECE.findall(action) if word.isalpha()]
        is_query = len(action) <= MOST_QUERY_BYTES and action.lower().startswith("select ")
        is_plain = action == " ".join(action.split()) and not _PIECE.sub("", action).strip(" ")
        return is_query and is_plain and "--" not in action and "/*" not in action and WORDS.issuperset(words)


class Asking:
    def __init__(
        self, people: list[tuple[str, str, int]], orders: list[tuple[str, str, int, int]], draws: random.Random
    ) -> None:
        self._people, self._orders = people, orders
        self._tables = _tables(people, orders)
        self.question, self.query = self._drawn(draws)
        self._reward, self._looks = 0.0, 0

    @property
    def answer(self) -> str:
        return self._rows(self.query)[0]

    def _drawn(self, draws: random.Random) -> tuple[str, str]:
        """Returns a question and the query that answers it."""
        person, city, good = draws.choice(self._people), draws.choice(self._people)[1], draws.choice(GOODS)
        asked = [
            (f"How old is {person[0]}?", f"SELECT age FROM people WHERE name = '{person[0]}'"),
            (f"How many people live in {city}?", f"SELECT count(*) FROM people WHERE city = '{city}'"),
            (f"How old is the oldest person in {city}?", f"SELECT max(age) FROM people WHERE city = '{city}'"),
            (
                f"How many people are older than {person[2]}?",
                f"SELECT count(*) FROM people WHERE age > {person[2]}",
            ),
        ]
        if self._orders:
            buyer = draws.choice(self._orders)[0]
            asked += [
                (
                    f"How much did {buyer} pay in all? An order costs pieces times price.",
                    f"SELECT sum(pieces * price) FROM orders WHERE buyer = '{buyer}'",
                ),
                (
                    f"How many pieces of {good} were bought by people who live in {city}?",
                    "SELECT coalesce(sum(pieces), 0) FROM orders JOIN people ON buyer = name "
                    f"WHERE good = '{good}' AND city = '{city}'",
                ),
            ]
        return draws.choice(asked)

    def observation(self) -> str:
        tables = "people(name, city, age)" + (", orders(buyer, good, pieces, price)" if self._orders else "")
        return (
            f"A database has {tables}. Write one SQL query at a time, and read what it returns. Once you know it, "
            f"write answer: and the answer. {self.question}"
        )

    def act(self, text: str) -> Turn:
        answered = _ANSWER.fullmatch(text)
        if answered is not None:
            right = answered[1].strip().rstrip(".") == self.answer
            self._reward = float(right)
            return Turn("That is right." if right else "That is wrong.", done=True)
        return Turn(self._asked(text))

    def reward(self) -> float:
        return self._reward

    def _asked(self, query: str) -> str:
        if _WITH.search(query):
            return "error: WITH is not allowed"
        try:
            rows = self._rows(query)
        except (ValueError, sqlite3.ProgrammingError, sqlite3.Warning):  # Python's own: a NUL, two statements
            return "error: that is not one query"
        except sqlite3.Error as error:
            return f"error: {' '.join(str(error).split())[:MOST_MESSAGE_CHARACTERS]}"
        return "\n".join([*rows[:MOST_ROWS], *(["…"] if len(rows) > MOST_ROWS else [])]) or "no rows"

    def _rows(self, query: str) -> list[str]:
        """Returns the first rows, one more than are shown, as lines."""
        with closing(_in_memory()) as connection:
            connection.deserialize(self._tables)
            for limit, value in _LIMITS.items():
                connection.setlimit(limit, value)
            self._looks = 0
            connection.set_progress_handler(self._is_too_long, OPERATIONS_A_LOOK)
            connection.set_authorizer(_allowed)
            rows = connection.execute(query).fetchmany(MOST_ROWS + 1)
        return [", ".join(map(_written, row))[:MOST_LINE_CHARACTERS] for row in rows]

    def _is_too_long(self) -> bool:
        self._looks += 1
        return self._looks > MOST_OPERATIONS // OPERATIONS_A_LOOK


def _in_memory() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)


def _tables(people: list[tuple[str, str, int]], orders: list[tuple[str, str, int, int]]) -> bytes:
    """Returns the database as SQLite writes it to a file."""
    with closing(_in_memory()) as connection:
        connection.execute("CREATE TABLE people (name TEXT, city TEXT, age INTEGER)")
        connection.executemany("INSERT INTO people VALUES (?, ?, ?)", people)
        if orders:
            connection.execute("CREATE TABLE orders (buyer TEXT, good TEXT, pieces INTEGER, price INTEGER)")
            connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", orders)
        return connection.serialize()


def _allowed(action: int, first: str | None, second: str | None, database: str | None, source: str | None) -> int:
    if action in _READS or (action == sqlite3.SQLITE_FUNCTION and second is not None and second.lower() in FUNCTIONS):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _written(value: object) -> str:
    if value is None:
        return "NULL"
    return value.hex() if isinstance(value, bytes) else str(value)
