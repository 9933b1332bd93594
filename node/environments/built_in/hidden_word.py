"""Find a hidden word; each guess is answered letter by letter: + in its place, ? elsewhere in the word, - not in it.

A letter that a guess has more often than the word is marked as often as the word has it, those in place first. The
opening guess is made for the model, so that episodes begin differently. The reward is 1 for the word, and before that
the best guess's share of right places, halved.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Final

from node.environments.environment import Turn
from node.environments.seeded import SeededEnvironment

# Own lists, of everyday words without two spellings.
_THREE: Final = (
    "act add age air ant arm art ash bad bag bat bed bee big bit box boy bus can cap car cat cow cup cut day dog "
    "dry ear eat egg end eye fan far fat few fig fit fly fog fox fun gas get gum hat hen hit hot ice ink jam jar "
    "job key kit leg lid lip log lot low man map mat mix mud net new nut oak oil old one owl pan pen pet pie pig "
    "pin pot rat red rib rod row rug run sad saw sea sky son sun tax tea ten tie tin toe top toy tub two van war "
    "wax way web wet win yes zoo"
)
THREE: Final = tuple(_THREE.split())
_FIVE: Final = (
    "about above actor adult again agent alarm album alone amber angel angle apple arena aside bacon badge "
    "baker basic beach begin below bench berry birth black blade blind block blood board brain brand bread brick "
    "bride brief bring broad brown brush build cabin cable candy cargo carry catch cause chain chair chalk chest "
    "chief child claim class clean clear climb clock cloth cloud coach coast coral count court cover crane "
    "cream crime cross crowd crown curve cycle daily dance delay depth diary dozen draft drama dream dress drink "
    "drive eagle early earth elbow empty enemy enjoy entry equal event exact faith fancy favor fence field fight "
    "final flame flock floor flour focus forty frame fresh front frost fruit ghost giant glass globe glove grain "
    "grape grass green group guard guest guide habit happy heart heavy hedge honey horse hotel house human image "
    "index joint judge juice kneel knife label large laugh layer lemon level light limit linen local logic lucky "
    "lunch magic maple march marsh match mayor metal minor model money month motor mount mouse mouth movie music "
    "nerve night noble noise north novel nurse ocean offer olive onion opera orbit order organ other owner paint "
    "panel paper party patch peace pearl phone piano piece pilot pitch place plain plane plant plate point polar "
    "pound power price pride prize proof queen quick quiet radio raise range rapid reach ready reply right river "
    "robin rough round route royal salad scale scene scout sense shade shape share sheep shelf shell shine shirt "
    "shore short sight skill sleep slice small smart smile smoke snake solid sound south space spare speak spend "
    "spice spoon sport staff stage stair stamp stand start steam steel stick stone storm story stove style sugar "
    "table taste teach theme thick think third tiger title toast tooth topic torch total touch tower track trade "
    "train trial tribe truck trust uncle under union upper urban usual value video visit voice wagon waste watch "
    "water wheat wheel white whole woman world wound write young youth"
)
FIVE: Final = tuple(_FIVE.split())


def hidden_word(name: str, words: Sequence[str], max_turns: int, *, brief: bool = False) -> SeededEnvironment:
    """One of ``words``, which are equally long."""

    def episode(draws: random.Random) -> Seeking:
        secret, opening = draws.sample(words, 2)
        return Seeking(words, secret, opening, brief=brief)

    return SeededEnvironment(
        name, episode, max_turns, 8 if brief else 24, 300, config={"words": list(words), "brief": brief},
        is_canonical=frozenset(words).__contains__,
    )  # fmt: skip


def marks(guess: str, secret: str) -> str:
    """Returns a mark for each letter of ``guess``, which is as long as ``secret``."""
    left = Counter(own for letter, own in zip(guess, secret, strict=True) if letter != own)
    found = ["+" if letter == own else "-" for letter, own in zip(guess, secret, strict=True)]
    for place, letter in enumerate(guess):
        if found[place] == "-" and left[letter]:
            left[letter] -= 1
            found[place] = "?"
    return "".join(found)


class Seeking:
    def __init__(self, words: Sequence[str], secret: str, opening: str, *, brief: bool) -> None:
        self.words, self.secret, self.opening, self._brief = words, secret, opening, brief
        self._best = 0

    def observation(self) -> str:
        said = marks(self.opening, self.secret)
        if self._brief:
            return f"{self.opening}{said}:"
        return (
            f"Find a word of {len(self.secret)} letters. Each guess is answered letter by letter: + in its place, ? "
            f"elsewhere in the word, - not in it. Answer with a guess alone. {self.opening}: {said}"
        )

    def act(self, text: str) -> Turn:
        guess = text.strip().lower()
        if guess not in self.words:
            return Turn("?" if self._brief else f"That is no word of {len(self.secret)} letters that I know.")
        said = marks(guess, self.secret)
        self._best = max(self._best, said.count("+"))
        return Turn(said if self._brief else f"{guess}: {said}", done=guess == self.secret)

    def reward(self) -> float:
        return 1.0 if self._best == len(self.secret) else self._best / len(self.secret) / 2

    def example(self) -> Sequence[str]:
        """A guess that may be right after the opening, and then the word."""
        said = marks(self.opening, self.secret)
        fitting = next(word for word in self.words if marks(self.opening, word) == said)
        return [self.secret] if fitting == self.secret else [fitting, self.secret]
