"""The life of one answer: what it wants to know next, and what became of it.

An `Answer` is a coroutine. It yields *wants* (`wants.py`), and whoever runs it sends back what was
found out. It knows no MLX, no clock and no thread, so every course of an answer can be tested with
positions that a test makes up. `Scheduler` runs the answers of a model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from ..step import ChosenBy, Dropped, Fork, Origin, Step
from .interventions.branches import Drafts
from .interventions.forks import Branching
from .interventions.placement import TRIED, Insertion, Trial
from .interventions.retrieval import Lookup, Retrieving
from .interventions.thinking import Thinking
from .position import Reading
from .requests import (
    DRAWN,
    NOTHING,
    Ask,
    Follow,
    Keep,
    Life,
    Position,
    Read,
    Roll,
    Split,
    Want,
)
from .writer import Writer

TAIL = 8
"""Tokens before a branch point that tell whether a full stop stands inside a number."""


class Answer:
    """One answer: `live` is its course, `steps` what it has committed and nobody has taken yet."""

    def __init__(
        self,
        writer: Writer,
        thinking: Thinking,
        branching: Branching,
        retrieving: Retrieving | None = None,
        *,
        before: Sequence[int],
        context_room: int,
        asks: bool = False,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Set up.

        Args:
            writer: makes the steps.
            thinking: says where, and which, text is inserted, and whether it is kept.
            branching: says whether, and how, rollouts are followed.
            retrieving: says where which passage is looked up; None for nowhere.
            before: the last tokens of the prompt, or the whole of it.
            context_room: tokens that the model's context holds after the prompt.
            asks: whether a person can be asked where the rollouts score alike.
            cancelled: asked before every token, in rollouts too.
        """
        self.steps: deque[Step] = deque()
        self._taken_up = 0
        self._writer = writer
        self._thinking = thinking
        self._branching = branching
        self._retrieving = retrieving
        self._tail = deque(before, maxlen=TAIL)
        self._context_room = context_room
        self._asks = asks
        self._cancelled = cancelled

    @property
    def kept(self) -> int:
        """Committed tokens whose whole text is part of the answer: not those of a stop string."""
        return self._writer.kept - self._taken_up

    def take_up(self, answered: Iterable[Step]) -> None:
        """Continue after the steps of an answer, whose tokens end the prompt."""
        for step in answered:
            self._observe(step)
            self._writer.skip(step)
            self._taken_up += 1

    def live(self, last: int, forced: Sequence[int] = ()) -> Life:
        """Run the answer until it ends.

        Args:
            last: the last token of the prompt, the rest of which is in the model's cache.
            forced: tokens to commit first, whatever is drawn; the user's choice.
        """
        here = yield Follow(last, None, self._then(forced[0] if forced else DRAWN))
        if self._cancelled():
            return
        here = yield from self._put(here, forced, Origin.CHOSEN)
        while not self._over:
            reading, index = here.reading, self._writer.index
            passage = self._retrieving and self._retrieving.due(index, reading, self._context_room)
            if passage:
                here = yield from self._quote(here, passage)
                continue
            if self._retrieving and self._retrieving.drafts(index, reading):
                here = yield from self._draft(here, self._retrieving)
                if self._writer.index > index or self._over:
                    continue
            thought = self._thinking.due(index, reading, self._context_room)
            width = self._branching.width(index, reading)
            if thought is not None:
                here = yield from self._try(here, thought)
            elif width > 1:
                here = yield from self._fork(here, width)
            else:
                here = yield from self._take_draw(here)

    def _take_draw(self, here: Position) -> Generator[Want, Any, Position]:
        """Commit the token that was drawn at a position."""
        reading = here.reading
        self._commit(reading, Origin.SAMPLED)
        if not self._writer.finished:
            here = yield Follow(reading.token, reading.logprob, self._then())
        return here

    def _put(
        self, here: Position, tokens: Sequence[int], origin: Origin, **told: Any
    ) -> Generator[Want, Any, Position]:
        """Commit given tokens, the first of them in the place of one that was drawn.

        What else its step tells is as for `Writer.write`.
        """
        for number, token in enumerate(tokens):
            (reading,) = here.given([token])
            self._commit(reading, origin, rolled_back=int(number == 0), **told)
            told = {}  # it is of the first token
            if self._over:
                break
            following = tokens[number + 1] if number + 1 < len(tokens) else DRAWN
            here = yield Follow(token, reading.logprob, self._then(following))
        return here

    def _quote(self, here: Position, passage: Lookup) -> Generator[Want, Any, Position]:
        """Commit a passage that was looked up."""
        _, source, wish, dropped = passage
        return (
            yield from self._put(
                here,
                passage.tokens,
                Origin.RETRIEVED,
                source=source,
                triggered_at=wish,
                dropped=dropped,
            )
        )

    def _draft(self, here: Position, retrieving: Retrieving) -> Generator[Want, Any, Position]:
        """Follow the sentence that starts here, and commit it unless a passage takes its place.

        It is followed as far as nothing else is wanted: a fork is not part of it.
        """
        index, draft, after = self._writer.index, list[Reading](), here
        while (
            retrieving.goes_on(draft, after.reading)
            and self._branching.width(index + len(draft), after.reading) == 1
            and len(draft) < self._context_room
            and not self._cancelled()
        ):
            reading = after.reading.without_thinking()
            if not draft:
                yield Split(1)
            draft.append(reading)
            (after,) = yield Roll((0,), (reading.token,), (reading.logprob,))
        room = self._context_room
        passage = None
        if not self._cancelled():
            passage = retrieving.instead(index, draft, after.reading, here.reading, room)
        if draft and passage is None and not self._cancelled():
            return (yield from self._keep_draft(draft, here, after))
        if draft:
            yield Keep(0, ())
        return here if passage is None else (yield from self._quote(here, passage))

    def _keep_draft(
        self, draft: list[Reading], here: Position, after: Position
    ) -> Generator[Want, Any, Position]:
        """Commit a draft as far as the answer may grow."""
        tokens = []
        for reading in draft:
            self._commit(reading, Origin.SAMPLED)
            tokens.append(reading.token)
            if self._over:
                yield Keep(0, tuple(tokens[:-1]))
                return here
        yield Keep(0, tuple(tokens))
        return after

    def _try(self, here: Position, insertion: Insertion) -> Generator[Want, Any, Position]:
        """Follow a text that is to be inserted, and perhaps the answer without it; commit one."""
        trial = self._thinking.begin(insertion, here)
        yield Split(trial.last + 1)
        while trial.growing and not self._cancelled():
            trial.grow((yield trial.wanted()))
        if self._cancelled():
            yield Keep(0, ())
            return here
        dropped = self._thinking.judge(trial)
        if dropped is not None:
            committed = self._commit_usual(trial, dropped)
            yield Keep(trial.last, tuple(reading.token for reading in committed[:-1]))
        else:
            committed = self._commit_trial(trial)
            yield Keep(TRIED, tuple(reading.token for reading in committed[:-1]))
        if not self._writer.finished:
            last = committed[-1]
            here = yield Follow(last.token, last.logprob, self._then())
        return here

    def _commit_trial(self, trial: Trial) -> list[Reading]:
        """Commit an insertion and what follows it as far as the answer may grow; return that."""
        for number, reading in enumerate(trial.readings):
            first = number == 0
            about = {"triggered_at": trial.insertion.wish, "dropped": trial.left()} if first else {}
            self._commit(reading, trial.origin(number), rolled_back=int(first), **about)
            if self._over:
                return trial.readings[: number + 1]
        return trial.readings

    def _commit_usual(self, trial: Trial, dropped: Dropped) -> list[Reading]:
        """Commit what was drawn without an insertion, up to where something else is wanted."""
        for number, reading in enumerate(trial.usual):
            if number and not self._only_draws(reading):
                return trial.usual[:number]
            self._commit(reading, Origin.SAMPLED, dropped=None if number else dropped)
            if self._over:
                return trial.usual[: number + 1]
        return trial.usual

    def _only_draws(self, reading: Reading) -> bool:
        """Tell whether nothing but its draw is wanted at the answer's next position."""
        if self._retrieving is not None:
            return False  # to find out would use up its wish
        index = self._writer.index
        thought = self._thinking.due(index, reading, self._context_room)
        return thought is None and self._branching.width(index, reading) == 1

    def _fork(self, here: Position, width: int) -> Generator[Want, Any, Position]:
        """Follow several ways at once, compare them, and commit the best one."""
        drafts = self._branching.begin(
            here.given(here.openings(width)), self._tail, self._context_room
        )
        yield Split(width)
        self._branching.tell(self._writer.index, drafts)
        while drafts.growing and not self._cancelled():
            positions = yield _grow(drafts)
            drafts.grow([position.reading.without_thinking() for position in positions])
            self._branching.tell(self._writer.index, drafts)
        fork = yield from self._second_opinion(drafts)
        if self._asks and drafts.close(fork) and not self._cancelled():
            asked = yield Ask(fork)
            fork = fork if self._cancelled() else asked
        committed = self._commit_winner(drafts.readings(fork.winner), fork)
        yield Keep(fork.winner, tuple(reading.token for reading in committed[:-1]))
        if self._writer.finished:
            return here
        last = committed[-1]
        here = yield Follow(last.token, last.logprob, self._then())
        return here

    def _second_opinion(self, drafts: Drafts) -> Generator[Want, Any, Fork]:
        """Compare rollouts; before another than the first wins, ask the model, if that is set."""
        wanted = None if self._cancelled() else drafts.second_opinion()
        if wanted is not None:
            positions = yield Read(*wanted)
            drafts.judge([position.given(drafts.answers) for position in positions])
        return drafts.compare()

    def _commit_winner(self, readings: list[Reading], fork: Fork) -> list[Reading]:
        """Commit a rollout's tokens as far as the answer may grow; return what was committed."""
        origin = Origin.CHOSEN if fork.chosen_by is ChosenBy.USER else Origin.BRANCH
        for number, reading in enumerate(readings):
            first = number == 0
            self._commit(reading, origin, fork=fork if first else None, rolled_back=int(first))
            if self._over:
                return readings[: number + 1]
        return readings

    def _commit(self, reading: Reading, origin: Origin, **told: Any) -> None:
        """Commit a token; what else its step tells is as for `Writer.write`."""
        step = self._writer.write(reading.without_thinking(), origin, **told)
        self._context_room -= 1
        self._observe(step)
        self._tail.append(step.token)
        self.steps.append(step)

    def _observe(self, step: Step) -> None:
        self._thinking.observe(step)
        self._branching.observe(step)
        if self._retrieving is not None:
            self._retrieving.observe(step)

    @property
    def _over(self) -> bool:
        return self._writer.finished or self._cancelled()

    def _then(self, token: int = DRAWN) -> int:
        """Return what comes after the token that is followed now, given its successor."""
        return NOTHING if self._writer.room == 1 else token


def _grow(drafts: Drafts) -> Roll:
    last = [drafts.readings(branch)[-1] for branch in drafts.living]
    return Roll(
        drafts.living,
        tuple(reading.token for reading in last),
        tuple(reading.logprob for reading in last),
        NOTHING if drafts.at_last else DRAWN,
    )
