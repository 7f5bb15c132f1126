"""One answer: its text as it grows, and what is done at each position of it.

An `Answer` is a generator. It yields requests (`requests.py`), and whoever runs it sends back what
was found. It knows no MLX, no clock and no thread, so every course of an answer can be tested with
positions that a test makes up. `Scheduler` runs the answers of a model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from ..step import Origin, Step
from .interventions.base import Intervention, Outcome, Trial
from .position import Position
from .requests import DRAWN, NOTHING, TEXT, Advance, Ask, Keep, Request, Requests, Split
from .writer import NOTHING_ELSE, Record, Writer


class Answer:
    """One answer: `live` is its course, `steps` what it has committed and nobody has taken yet."""

    def __init__(
        self,
        writer: Writer,
        interventions: Sequence[Intervention],
        *,
        context_room: int,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare an answer.

        Args:
            writer: makes the steps.
            interventions: the first that proposes a trial at a position is followed there.
            context_room: tokens that the model's context holds after the prompt.
            cancelled: called before every token, in trials too.
        """
        self.steps: deque[Step] = deque()
        self._continued = 0
        self._writer = writer
        self._interventions = interventions
        self._context_room = context_room
        self._cancelled = cancelled

    @property
    def committed(self) -> int:
        """New tokens whose whole text is part of the answer: not those of a stop string."""
        return self._writer.complete - self._continued

    @property
    def room(self) -> int:
        return self._writer.room

    def resume(self, answered: Iterable[Step]) -> None:
        """Continue after the steps of an answer, whose tokens end the prompt."""
        for step in answered:
            self._observe(step)
            self._writer.skip(step)
            self._continued += 1

    def live(
        self, last: int, forced: Sequence[int] = (), forced_origin: Origin = Origin.CHOSEN
    ) -> Requests:
        """Run the answer until it ends.

        Args:
            last: the last token of the prompt, the rest of which is in the model's cache.
            forced: tokens to commit first, whatever is drawn.
            forced_origin: whose choice they are.
        """
        then = self._then(forced[0] if forced else DRAWN)
        (here,) = yield Advance({TEXT: last}, then=then)
        if self._cancelled():
            return
        here = yield from self._insert(here, forced, forced_origin)
        while not self._over:
            here = yield from self._go_on(here)

    def _go_on(self, here: Position) -> Generator[Request, Any, Position]:
        """Commit what an intervention decides on at a position, or else the drawn token."""
        index = self._writer.index
        for intervention in self._interventions:
            trial = intervention.propose(index, here, self._context_room)
            if trial is not None:
                here = yield from self._explore(here, trial)
                if self._writer.index > index or self._over:
                    return here
        self._commit(here, Origin.SAMPLED)
        return (yield from self._follow(here, here))

    def _explore(self, here: Position, trial: Trial) -> Generator[Request, Any, Position]:
        """Follow a trial until it is decided, and commit what it decided on.

        Returns:
            The position after what was committed; `here` where that is nothing.
        """
        # 1. Its branches begin with the first token that it asks for, and grow.
        split = False
        while not self._cancelled() and (request := trial.advance()) is not None:
            if isinstance(request, Ask):
                trial.choose((yield request))
                continue
            if not split:
                yield Split(trial.branches)
                split = True
            trial.extend((yield request))
        # 2. One of them is committed, as far as the answer may grow.
        outcome = trial.outcome(self._cancelled())
        committed = self._commit_branch(outcome)
        # 3. Its tokens become the text. The last one does so with the pass that reads it, unless
        #    the position after it is known already.
        known = outcome.after if committed == len(outcome.positions) and not self._over else None
        if split:
            length = committed if known is not None else max(0, committed - 1)
            tokens = tuple(position.token for position in outcome.positions[:length])
            yield Keep(outcome.branch, tokens)
        if known is not None:
            here = known
        elif committed:
            here = yield from self._follow(outcome.positions[committed - 1], here)
        # 4. What nobody followed is put after it.
        return (
            yield from self._insert(
                here, outcome.insertion, outcome.insertion_origin, outcome.record
            )
        )

    def _commit_branch(self, outcome: Outcome) -> int:
        """Commit the positions of a branch; return how many of them the answer took."""
        for number, (position, origin) in enumerate(
            zip(outcome.positions, outcome.origins, strict=True)
        ):
            if number and outcome.until_due and self._due(position):
                return number
            self._commit(position, origin, NOTHING_ELSE if number else outcome.record)
            if self._over:
                return number + 1
        return len(outcome.positions)

    def _insert(
        self,
        here: Position,
        tokens: Sequence[int],
        origin: Origin,
        record: Record = NOTHING_ELSE,
    ) -> Generator[Request, Any, Position]:
        first = record._replace(rolled_back=1)
        for number, token in enumerate(tokens):
            (position,) = here.given([token])
            self._commit(position, origin, NOTHING_ELSE if number else first)
            if self._over:
                break
            following = tokens[number + 1] if number + 1 < len(tokens) else DRAWN
            here = yield from self._follow(position, here, following)
        return here

    def _follow(
        self, last: Position, here: Position, then: int = DRAWN
    ) -> Generator[Request, Any, Position]:
        """Return the position after a committed one; `here` where the answer has ended."""
        if not self._writer.finished:
            (here,) = yield Advance.after({TEXT: last}, self._then(then))
        return here

    def _due(self, position: Position) -> bool:
        index, room = self._writer.index, self._context_room
        return any(each.due(index, position, room) for each in self._interventions)

    def _commit(self, position: Position, origin: Origin, record: Record = NOTHING_ELSE) -> None:
        step = self._writer.write(position.sampled(), origin, record)
        self._context_room -= 1
        self._observe(step)
        self.steps.append(step)

    def _observe(self, step: Step) -> None:
        for intervention in self._interventions:
            intervention.observe(step)

    @property
    def _over(self) -> bool:
        return self._writer.finished or self._cancelled()

    def _then(self, token: int) -> int:
        return NOTHING if self._writer.room == 1 else token
