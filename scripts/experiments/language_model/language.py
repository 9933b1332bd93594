"""An artificial language with structure at several distances, drawn from a seed, for the replicas of an experiment.

A document is ``SENTENCES`` sentences of ``LENGTH`` tokens on one of ``TOPICS`` topics; no token names the topic. A
sentence opens with a word drawn for the topic; each further word is drawn from the successors that the topic's table
gives the word before, with fixed probabilities; the last word depends on the first alone. Some sentences open with
``AGAIN`` instead and repeat the rest of the sentence before the last, word for word.

So a model gains from one word back (tables), from seven (agreement), from sixteen (repetition) and from the whole
document (topic), and its loss never reaches zero. ``seed`` of a ``Language`` makes the tables, ``seed`` of
``documents`` the text: two seeds of text share only the language.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

VOCABULARY: Final = 64
AGAIN: Final = 0
TOPICS: Final = 6
OPENERS: Final = 12  # words that open sentences of a topic
SUCCESSORS: Final = np.array([0.6, 0.25, 0.1, 0.05])
SENTENCES: Final = 6
LENGTH: Final = 8  # tokens a sentence
TOKENS: Final = SENTENCES * LENGTH  # a document
REPEATED: Final = 0.3  # share of the sentences that have two before them

Tokens = NDArray[np.int64]


class Language:
    """The tables of one language."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 0])
        words = np.arange(1, VOCABULARY)
        self._openers = np.stack([rng.choice(words, OPENERS, replace=False) for _ in range(TOPICS)])
        shape = (TOPICS, VOCABULARY, len(SUCCESSORS))
        self._successors = rng.choice(words, shape)  # (topic, word, rank)
        self._closings = rng.choice(words, (TOPICS, VOCABULARY))

    def documents(self, seed: int, count: int) -> Tokens:
        """Returns ``count`` documents, (count, TOKENS)."""
        rng = np.random.default_rng([seed, 1])
        topic = rng.integers(TOPICS, size=count)
        sentences = np.zeros((count, SENTENCES, LENGTH), dtype=np.int64)
        for number in range(SENTENCES):
            fresh = self._sentences(rng, topic)
            if number >= 2:
                again = rng.random(count) < REPEATED
                fresh[again, 0] = AGAIN
                fresh[again, 1:] = sentences[again, number - 2, 1:]
            sentences[:, number] = fresh
        return sentences.reshape(count, TOKENS)

    def _sentences(self, rng: np.random.Generator, topic: Tokens) -> Tokens:
        words = np.zeros((len(topic), LENGTH), dtype=np.int64)
        words[:, 0] = self._openers[topic, rng.integers(OPENERS, size=len(topic))]
        for place in range(1, LENGTH - 1):
            rank = rng.choice(len(SUCCESSORS), size=len(topic), p=SUCCESSORS)
            words[:, place] = self._successors[topic, words[:, place - 1], rank]
        words[:, -1] = self._closings[topic, words[:, 0]]
        return words
