"""Compiled loops of drafting: guesses of the next tokens, from what followed their contexts and from the prompt.

The engine draws min {v : CDF(v) > u} from the model's distribution p, by a number u that is known beforehand
(``draws``). Two guesses are at hand where p is thought to be r: the likeliest token, which holds with its probability;
and the token that the same u draws from r, which holds wherever both intervals of the token cover u, however unlikely
the token is (coupling by common random numbers, as in Daliri, Musco, Suresh: Coupling without communication and
drafter-invariant speculative decoding, arXiv 2408.07978). The one that held more often in such cases is made.

    r(v) ∝ (q(v) + ε) exp Σ_f w_f,    f over the features of v,    w_f ← w_f + g_f / √(1 + Σ g_f²), g = ∇ log r(drawn)

q is what followed the contexts (``cpu_contexts``). A place in an answer is how many tokens the answer has, and the
length and the first tokens of its prompt. The features are v itself at this place; where v stands in the prompt, from
its end, at this place; whether all of v's occurrences in the prompt are used up, after the answer's newest token or at
this place, whatever the prompt's length; and how many of the newest tokens v follows in the prompt. So a task whose
answers take up the prompt's parts is learnt, also for prompts that were never seen. The weights are AdaGrad's (Duchi,
Hazan, Singer 2011), of whose sums the oldest squares fade, since the model changes.

How likely a guess is to hold is measured: each token that is sampled is compared with both guesses, which are counted
by class: the guess's share of r, and how far u is from the ends of its interval. Old counts fade.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numba import njit

from node.kernels.cpu_contexts import LONGEST_ORDER, Array, distribution, extended, follow, shift

PROMPT_TOKENS: Final = 24  # of a prompt that are looked at: the last ones
FEATURE_WEIGHTS: Final = 1 << 17  # at the place that a feature's hash says
CLASSES: Final = 16 + 8 * 8  # of guesses: the likeliest ones, those drawn by u
GREEDY: Final = -1.0  # in place of u: the likeliest token is drawn

LENGTH, ANSWERED, HEAD = range(3)  # of a row: its prompt's tokens, its answer's, the hash of the prompt's first ones

_HEAD_TOKENS: Final = 2
_CANDIDATES: Final = 40  # tokens of r
_FEATURES: Final = 8  # of a token
_ALIKE: Final = 3  # newest tokens that are looked for in the prompt
_FLOOR: Final = 1e-3  # ε
_DRAWN_CLASSES: Final = 16  # where those drawn by u begin
_FADES_AT = np.float32(1000)  # a class's guesses; then its counts are halved
_PRIOR = np.float32(8)  # guesses that a class seems to have seen
_KEPT = np.float32(0.999)  # of Σ g², at each of its terms
_ONE, _SHIFT = np.uint64(1), np.uint64(29)


@njit(nogil=True, cache=True)
def _scratch() -> Any:
    """Returns memory for one call: candidates, shares of r, features, numbers of features."""
    return (
        np.empty(_CANDIDATES, np.int64),
        np.empty(_CANDIDATES),
        np.empty((_CANDIDATES, _FEATURES), np.int64),
        np.empty(_CANDIDATES, np.int64),
    )


@njit(nogil=True, cache=True)
def begin(prompt: Array, tail: Array, parts: Array, facts: Array) -> Any:
    """Sets a row's state at the end of its prompt, and returns the hash of it: ``tail``, (8,), its last tokens, -1
    before the first; ``parts``, (2, PROMPT_TOKENS), its last tokens from the end, -1 beyond its first, and which of
    them the answer has used; ``facts``, (3,)."""
    tail[:], parts[:] = -1, -1
    whole, head = np.uint64(0), np.uint64(0)
    for place in range(len(prompt)):
        if place < _HEAD_TOKENS:
            head = extended(head, prompt[place])
        if len(prompt) - 1 - place < PROMPT_TOKENS:
            parts[0, len(prompt) - 1 - place] = prompt[place]
        whole = extended(whole, prompt[place])
        shift(tail, prompt[place])
    parts[1] = 0
    facts[LENGTH], facts[ANSWERED], facts[HEAD] = len(prompt), 0, np.int64(head >> _ONE)
    return whole


@njit(nogil=True, cache=True)
def learn_answer(
    answer: Array, wholes: Array, tails: Array, parts: Array, facts: Array, table: Array, weights: Array
) -> None:
    """Learns from an answer to the prompt at whose end the only row is."""
    room = _scratch()
    for token in answer:
        found = _distribution(tails[0], wholes[0], parts[0], facts[0], table, weights, room)
        _learn(token, found, tails[0], wholes[0], facts[0], table, weights, room)
        wholes[0] = _grown(token, tails[0], wholes[0], parts[0], facts[0])


@njit(nogil=True, cache=True)
def take(
    tokens: Array,  # (steps, n) what was sampled
    uniforms: Array,  # (steps, n) the numbers that drew it
    taken: Array,  # (n,) how many of them each row keeps
    wholes: Array,  # (n,) the hash of all of its tokens
    tails: Array,  # (n, 8)
    parts: Array,  # (n, 2, PROMPT_TOKENS)
    facts: Array,  # (n, 3)
    table: Array,  # (2^b, ENTRY_NUMBERS) int32
    weights: Array,  # (FEATURE_WEIGHTS, 2) of features, and their Σ g²
    counts: Array,  # (classes, 2) how often a guess of each class held, of how many
) -> None:
    """Extends each row by its tokens, and learns from them."""
    room = _scratch()
    for row in range(len(taken)):
        tail, part, fact = tails[row], parts[row], facts[row]
        for step in range(taken[row]):
            token = tokens[step, row]
            found = _distribution(tail, wholes[row], part, fact, table, weights, room)
            if found > 0:
                guess, kind, _ = _likeliest(found, room)
                _count(kind, guess == token, counts)
                if uniforms[step, row] >= 0:
                    guess, kind, _ = _drawn(found, uniforms[step, row], room)
                    _count(kind, guess == token, counts)
            _learn(token, found, tail, wholes[row], fact, table, weights, room)
            wholes[row] = _grown(token, tail, wholes[row], part, fact)


@njit(nogil=True, cache=True)
def propose(
    uniforms: Array,  # (k, n) the numbers that will draw each row's next tokens
    most: Array,  # (n,) guesses a row
    end_tokens: Array,
    floor: float,  # guesses less likely than this are not worth looking at
    wholes: Array,
    tails: Array,
    parts: Array,
    facts: Array,
    table: Array,
    weights: Array,
    counts: Array,
    tokens: Array,  # (n, k)
    chances: Array,  # (n, k)
) -> None:
    """Writes each row's guesses and how likely each is to be reached and to hold, 0 after the last. A row's chances
    never rise from one guess to the next."""
    room = _scratch()
    tail, part, fact = np.empty_like(tails[0]), np.empty_like(parts[0]), np.empty_like(facts[0])
    for row in range(len(most)):
        chances[row] = 0
        tail[:], part[:], fact[:] = tails[row], parts[row], facts[row]
        whole, chance = wholes[row], 1.0
        for place in range(min(most[row], chances.shape[1])):
            found = _distribution(tail, whole, part, fact, table, weights, room)
            if found == 0:
                break
            token, kind, share = _likeliest(found, room)
            likely = _chance(kind, share, counts)
            if uniforms[place, row] >= 0:
                drawn, kind, share = _drawn(found, uniforms[place, row], room)
                other = _chance(kind, share, counts)
                if other > likely:
                    token, likely = drawn, other
            chance *= likely
            if chance < floor or _among(token, end_tokens):
                break
            tokens[row, place], chances[row, place] = token, chance
            whole = _grown(token, tail, whole, part, fact)


@njit(nogil=True, cache=True)
def _distribution(
    tail: Array, whole: np.uint64, parts: Array, facts: Array, table: Array, weights: Array, room: Any
) -> Any:
    """Writes the tokens of r, their shares and their features to ``room``. Returns how many tokens there are."""
    candidates, shares, features, numbers = room
    found = distribution(tail, whole, _place(facts), table, candidates, shares)
    for token in parts[0]:
        if token < 0 or found == _CANDIDATES:
            break
        if not _among(token, candidates[:found]):
            candidates[found], shares[found] = token, 0.0
            found += 1
    highest = -np.inf
    for i in range(found):
        numbers[i] = _features(candidates[i], tail, parts, facts, features[i])
        score = math.log(shares[i] + _FLOOR)
        for k in range(numbers[i]):
            score += weights[features[i, k], 0]
        shares[i] = score
        highest = max(highest, score)
    total = 0.0
    for i in range(found):
        shares[i] = math.exp(shares[i] - highest)
        total += shares[i]
    for i in range(found):
        shares[i] /= total
    return found


@njit(nogil=True, cache=True)
def _place(facts: Array) -> Any:
    return extended(extended(extended(np.uint64(0), facts[HEAD]), facts[LENGTH]), facts[ANSWERED])


@njit(nogil=True, cache=True)
def _features(token: int, tail: Array, parts: Array, facts: Array, features: Array) -> int:
    number, use = 0, 0  # 0: not in the prompt, 1: used up, 2: not used up
    follows = 0  # how many of the newest tokens it follows in the prompt
    for place in range(PROMPT_TOKENS):
        if parts[0, place] != token:
            continue
        use = max(use, 2 - parts[1, place])
        alike = 0
        while (
            alike < _ALIKE
            and place + 1 + alike < PROMPT_TOKENS
            and parts[0, place + 1 + alike] == tail[LONGEST_ORDER - 1 - alike]
        ):
            alike += 1
        follows = max(follows, alike)
        if number < _FEATURES - 4:
            features[number] = _feature(facts[HEAD], facts[LENGTH], facts[ANSWERED], place)
            number += 1
    features[number] = _feature(tail[LONGEST_ORDER - 1], use, -1, -1)
    features[number + 1] = _feature(facts[HEAD], facts[ANSWERED], use, -2)
    features[number + 2] = _feature(_place(facts), token, -3, -3)
    features[number + 3] = _feature(facts[HEAD], follows, -4, -4)
    return number + 4


@njit(nogil=True, cache=True)
def _feature(first: int, second: int, third: int, fourth: int) -> Any:
    key = extended(extended(extended(extended(np.uint64(0), first), second), third), fourth)
    return np.int64((key ^ (key >> _SHIFT)) & np.uint64(FEATURE_WEIGHTS - 1))


@njit(nogil=True, cache=True)
def _learn(
    token: int, found: int, tail: Array, whole: np.uint64, facts: Array, table: Array, weights: Array, room: Any
) -> None:
    """``token`` was drawn where ``room`` has what was expected."""
    candidates, shares, features, numbers = room
    if _among(token, candidates[:found]):
        for i in range(found):
            slope = np.float32((1.0 if candidates[i] == token else 0.0) - shares[i])
            if abs(slope) < 1e-3:
                continue
            for k in range(numbers[i]):
                weight = weights[features[i, k]]
                weight[1] = _KEPT * weight[1] + slope * slope
                weight[0] += slope / math.sqrt(1.0 + weight[1])
    follow(tail, whole, _place(facts), token, table)


@njit(nogil=True, cache=True)
def _grown(token: int, tail: Array, whole: np.uint64, parts: Array, facts: Array) -> Any:
    """Extends a row by a token. Returns the hash of all of its tokens."""
    for place in range(PROMPT_TOKENS - 1, -1, -1):
        if parts[0, place] == token and parts[1, place] == 0:
            parts[1, place] = 1
            break
    facts[ANSWERED] += 1
    shift(tail, token)
    return extended(whole, token)


@njit(nogil=True, cache=True)
def _likeliest(found: int, room: Any) -> Any:
    """Returns the likeliest token, its class and its share."""
    candidates, shares, _, _ = room
    best = 0
    for i in range(found):
        best = i if shares[i] > shares[best] else best
    return candidates[best], min(15, int(16 * shares[best])), shares[best]


@njit(nogil=True, cache=True)
def _drawn(found: int, uniform: float, room: Any) -> Any:
    """Returns the token that ``uniform`` draws, its class and its share."""
    candidates, shares, _, _ = room
    best, highest = 0, -1.0
    for i in range(found):  # the last whose interval begins at or before ``uniform``
        below = 0.0
        for j in range(found):
            below += shares[j] if candidates[j] < candidates[i] else 0.0
        if highest < below <= uniform:
            best, highest = i, below
    share = shares[best]
    near = min(7, int(24 * max(0.0, min(uniform - highest, highest + share - uniform))))
    return candidates[best], _DRAWN_CLASSES + min(7, int(8 * share)) * 8 + near, share


@njit(nogil=True, cache=True)
def _chance(kind: int, share: float, counts: Array) -> Any:
    return (counts[kind, 0] + _PRIOR * share) / (counts[kind, 1] + _PRIOR)


@njit(nogil=True, cache=True)
def _count(kind: int, right: bool, counts: Array) -> None:
    if counts[kind, 1] >= _FADES_AT:
        counts[kind] *= np.float32(0.5)
    counts[kind, 1] += np.float32(1)
    counts[kind, 0] += np.float32(1) if right else np.float32(0)


@njit(nogil=True, cache=True)
def _among(token: int, tokens: Array) -> bool:
    for each in tokens:  # noqa: SIM110  # numba compiles no generator
        if token == each:
            return True
    return False
