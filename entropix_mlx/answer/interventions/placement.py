"""Insertions: a wish waits for its place, and what was inserted is watched before it is kept.

Whoever wants to insert a text into an answer (a thought, say) makes a wish. It is remembered for
some tokens. At the first place in the text that suits it, the text is written there *on trial*: an
`Answer` follows it, and some tokens after it, as a rollout that is not committed. Where the rollout
shows a loop, or the model goes on better without it, it is dropped, and the answer goes on as if
nothing had been; otherwise it becomes the text. Nothing here knows MLX.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...step import (
    Dropped,
    DropReason,
    Origin,
    Step,
)
from ..continuation import gain
from ..position import Reading
from ..requests import (
    DRAWN,
    NOTHING,
    Position,
    Roll,
)
from .prose import Place, Surroundings

if TYPE_CHECKING:  # an answer is run without MLX, too
    from mlx_lm.tokenizer_utils import TokenizerWrapper

TAIL = 8
"""Tokens before a place with which the one that is drawn there is decoded."""
_WORD = re.compile(r"\w+")
_STOPS = ".!?…,;: "


class Insertion(NamedTuple):
    """A text that is to stand at a place."""

    tokens: tuple[int, ...]
    origin: Origin
    """What its steps say of where they came from."""
    wish: int
    """Index of the step at which it was wished for."""
    watch: int
    """Tokens to follow after it before it is decided on."""


class Wish:
    """A wish to insert something: remembered until it is too old, or made true."""

    def __init__(self, wait: int) -> None:
        """Begin without a wish; one is remembered for `wait` tokens."""
        self._wait = wait
        self._made: int | None = None

    def make(self, index: int) -> None:
        """Wish for an insertion from a position of the answer on."""
        self._made = index

    def at(self, index: int) -> int | None:
        """Return where the wish was made that is still remembered at a position; else None."""
        if self._made is None or index > self._made + self._wait:
            return None
        return self._made

    def end(self) -> None:
        """Forget it."""
        self._made = None


class Ground:
    """The answer so far, as far as it says what may be inserted after it."""

    def __init__(self, tokenizer: TokenizerWrapper) -> None:
        self.tokens: list[int] = []
        self._tokenizer = tokenizer
        self._surroundings = Surroundings()
        self._text = ""

    @property
    def paragraph(self) -> str:
        """The text since the last blank line."""
        begun = self._text.rstrip("\n").rfind("\n\n")
        return self._text[begun + 2 :] if begun >= 0 else self._text

    def observe(self, step: Step) -> None:
        """Go on with a step that was committed."""
        self.tokens.append(step.token)
        self._surroundings.add(step.text)
        self._text += step.text

    def place(self, drawn: int) -> Place | None:
        """Return what place the end of the answer is, with the token that was drawn to follow."""
        if drawn in self._tokenizer.eos_token_ids:
            return None
        tail = self.tokens[-TAIL:]
        before = self._tokenizer.decode(tail)
        return self._surroundings.place(self._tokenizer.decode([*tail, drawn])[len(before) :])

    def echoes(self, text: str) -> bool:
        """Tell whether the answer says already what is to be inserted."""
        if not text.strip():
            return self._text.endswith("\n")
        return _holds(_words(self._text), _words(text))


def written(text: str, place: Place, paragraph: str) -> str:
    """Return a text as it is written at a place of a paragraph; see `forms`."""
    plain, trailing = forms(text, place)
    return trailing if re.search(r"…|\.\.\.", paragraph) else plain


def forms(text: str, place: Place) -> tuple[str, str]:
    """Return how a text is written at a place: usually, and where the text before has "…".

    At a line's start it stands without a space before it. Inside a sentence it is an interruption:
    " wait," after a comma, " — wait," or "… wait," between two words.
    """
    core = text.strip()
    if not core or place is Place.SENTENCE:
        alike = f" {core}" if core else text
    elif place is Place.LINE:
        alike = core
    else:
        body = core if re.match(r"I\b|\w?[A-Z]{2}", core) else core[0].lower() + core[1:]
        body, ends = body.rstrip(_STOPS), core.endswith(",")
        if place is Place.WORD:
            return f" — {body}{',' if ends else ' —'}", f"… {body}{',' if ends else ' …'}"
        alike = f" {body},"
    return alike, alike


TRIED, USUAL = 0, 1
"""The rollouts of a trial: with the insertion, and without it if the two are compared."""


class Trial:
    """An insertion and the tokens after it, while neither is committed.

    Where it is compared, the answer is followed without it, too, for as many tokens.
    """

    def __init__(
        self, insertion: Insertion, here: Position, tokenizer: TokenizerWrapper, compared: bool
    ) -> None:
        """Begin with the first token of the insertion at a position."""
        self.insertion = insertion
        self.readings: list[Reading] = here.given(insertion.tokens[:1])
        self.usual = [here.reading]
        """The tokens without it: what was drawn in the place of the insertion, and so on."""
        self.last = USUAL if compared else TRIED
        """The last of its rollouts."""
        self._tokenizer = tokenizer

    @property
    def growing(self) -> bool:
        """Whether there is more to insert or to watch."""
        return len(self.readings) < self._length and not self._ends(self.watched)

    @property
    def watched(self) -> list[Reading]:
        """The tokens after the insertion."""
        return self.readings[len(self.insertion.tokens) :]

    @property
    def gain(self) -> float:
        """How much better the model goes on with it than without, in nats a token."""
        return gain(self.watched, self.usual)

    def wanted(self) -> Roll:
        """Return what the trial wants next: a token more with it, and mostly one without."""
        last = {TRIED: self.readings[-1]}
        if self.last == USUAL and self.watched and not self._ends(self.usual):
            last[USUAL] = self.usual[-1]
        rest = self.insertion.tokens[len(self.readings) :]
        at_last = len(self.readings) + 1 == self._length
        return Roll(
            tuple(last),
            tuple(reading.token for reading in last.values()),
            tuple(reading.logprob for reading in last.values()),
            NOTHING if at_last else rest[0] if rest else DRAWN,
        )

    def grow(self, found: Sequence[Position]) -> None:
        """Add the token that is to be inserted or was drawn, and the one without it, if wanted."""
        rest = self.insertion.tokens[len(self.readings) :]
        here = found[TRIED]
        self.readings.append(here.given(rest[:1])[0] if rest else here.reading.without_thinking())
        self.usual += [position.reading for position in found[USUAL:]]

    def origin(self, number: int) -> Origin:
        """Return where a token of the trial came from."""
        return self.insertion.origin if number < len(self.insertion.tokens) else Origin.SAMPLED

    def dropped(self, reason: DropReason) -> Dropped:
        """Return the record of an insertion that did not become the text."""
        return self._record(self.insertion.origin, self.readings, reason)

    def left(self) -> Dropped | None:
        """Return the record of what would have stood without it; None if that was not followed."""
        if self.last == TRIED:
            return None
        return self._record(Origin.SAMPLED, self.usual, DropReason.LEFT)

    @property
    def _length(self) -> int:
        return len(self.insertion.tokens) + self.insertion.watch

    def _record(self, origin: Origin, readings: Sequence[Reading], reason: DropReason) -> Dropped:
        tokens = tuple(one.token for one in readings)
        return Dropped(origin, tokens, text_of(self._tokenizer, tokens), reason)

    def _ends(self, readings: Sequence[Reading]) -> bool:
        return bool(readings) and readings[-1].token in self._tokenizer.eos_token_ids


def text_of(tokenizer: TokenizerWrapper, tokens: Sequence[int]) -> str:
    """Return the text of some tokens, without what ends an answer."""
    ends = tokenizer.eos_token_ids
    return str(tokenizer.decode([token for token in tokens if token not in ends]))


def said_again(
    inserted: Sequence[int], watched: Sequence[int], tokenizer: TokenizerWrapper
) -> bool:
    """Tell whether what follows an inserted text says it again."""
    text = text_of(tokenizer, inserted)
    following = text_of(tokenizer, watched)
    if words := _words(text):
        return _holds(_words(following), words)
    if text.strip() or not text:  # signs, or a token without text
        return bool(set(watched) & set(inserted))
    return following.startswith("\n")


def in_a_circle(
    before: Sequence[int], inserted: Sequence[int], watched: Sequence[int], length: int
) -> bool:
    """Tell whether `length` tokens in a row, the last of them watched, stood in the text before.

    Args:
        before: the tokens of the answer.
        inserted: those that were inserted after them.
        watched: those that followed.
        length: of a repetition; 0 looks for none.
    """
    if not length:
        return False
    text = [*before, *inserted, *watched]
    first = len(before) + len(inserted)
    seen = set()
    for end in range(length, len(text) + 1):
        run = tuple(text[end - length : end])
        if end > first and run in seen:
            return True
        seen.add(run)
    return False


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _holds(words: Sequence[str], part: Sequence[str]) -> bool:
    """Tell whether some words stand in a row among others."""
    length = len(part)
    return any(list(words[at : at + length]) == list(part) for at in range(len(words)))
