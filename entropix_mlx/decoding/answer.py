"""The life of one answer: what it wants to know next, and what became of it.

An `Answer` is a coroutine. It yields *wants*, and whoever runs it sends back what was found out:

    yields                                     is sent
    Follow   this token joins the text         the Position after it
    Split    rollouts begin here               nothing
    Roll     each rollout grows by a token     a Position for each of them
    Read     a side text after the rollouts    a Position for each of them, after it
    Unread   tokens to be forgotten again      nothing
    Keep     a rollout becomes the text        nothing
    Ask      a person is to choose a rollout   the Branch as it was chosen

It knows no MLX, no clock and no thread, so every course of an answer can be tested with positions
that a test makes up. `Scheduler` runs the answers of a model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from ..step import Branch, ChosenBy, Dropped, Origin, Step
from .branching import Branching, Drafts
from .placement import Insertion, Trial
from .reading import Reading
from .thinking import Thinking
from .writer import Writer

TAIL = 8
"""Tokens before a branch point that tell whether a full stop stands inside a number."""
DRAWN, NOTHING = -1, -2
"""What is expected to come after a want: the token that will be drawn, or nothing at all."""


class Follow(NamedTuple):
    """This token joins the text: what may come next?"""

    token: int
    logprob: float | None
    """Its log probability where it stands; None for the last token of the prompt."""
    then: int = DRAWN
    """What to queue after it ahead of time: a token that is known, `DRAWN`, or `NOTHING`."""
    side: bool = False
    """Whether it is part of a side text, which leaves no trace."""


class Split(NamedTuple):
    """From here on there are so many rollouts, numbered from 0, until one of them is kept."""

    rollouts: int


class Roll(NamedTuple):
    """These rollouts grow by a token each: what may come next in each? The others have stopped."""

    rollouts: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    """Of those tokens; None for those of a side text."""
    then: int = DRAWN

    @property
    def side(self) -> bool:
        """Whether they are part of a side text, which leaves no trace."""
        return self.logprobs is None


class Read(NamedTuple):
    """A side text is put after every rollout, or after the text where there are none.

    What may come after it is measured, and then it is forgotten."""

    tokens: tuple[int, ...]
    after: tuple[int, ...] = ()
    """The last token of each rollout: it is not in the cache yet."""


class Unread(NamedTuple):
    """The last tokens of every rollout, or of the text where there are none, are forgotten."""

    length: int


class Keep(NamedTuple):
    """The first tokens of a rollout, perhaps none, join the text; no rollout is left."""

    rollout: int
    tokens: tuple[int, ...]


class Ask(NamedTuple):
    """A person is to choose among the rollouts."""

    branch: Branch


Want = Follow | Split | Roll | Read | Unread | Keep | Ask
Life = Generator[Want, Any, None]


class Position(Protocol):
    """What is known about the place after a token."""

    @property
    def reading(self) -> Reading:
        """What was measured, decided and drawn there."""

    def given(self, tokens: Sequence[int]) -> list[Reading]:
        """Return the reading with each of some tokens in place of the one that was drawn."""

    def openings(self, count: int) -> list[int]:
        """Return different tokens that may stand here, the most probable one first."""


class Answer:
    """One answer: `live` is its course, `steps` what it has committed and nobody has taken yet."""

    def __init__(
        self,
        writer: Writer,
        thinking: Thinking,
        branching: Branching,
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
            thought = self._thinking.due(index, reading, self._context_room)
            width = self._branching.width(index, reading)
            if thought is not None:
                here = yield from self._try(here, thought)
            elif width > 1:
                here = yield from self._fork(here, width)
            else:
                here = yield from self._take_draw(here)

    def _take_draw(
        self, here: Position, dropped: Dropped | None = None
    ) -> Generator[Want, Any, Position]:
        """Commit the token that was drawn.

        Args:
            here: where it stands.
            dropped: what was tried there before.
        """
        reading = here.reading
        self._commit(reading, Origin.SAMPLED, dropped=dropped)
        if not self._writer.finished:
            here = yield Follow(reading.token, reading.logprob, self._then())
        return here

    def _put(
        self, here: Position, tokens: Sequence[int], origin: Origin
    ) -> Generator[Want, Any, Position]:
        """Commit given tokens, the first of them in the place of one that was drawn."""
        for number, token in enumerate(tokens):
            (reading,) = here.given([token])
            self._commit(reading, origin, rolled_back=int(number == 0))
            if self._over:
                break
            following = tokens[number + 1] if number + 1 < len(tokens) else DRAWN
            here = yield Follow(token, reading.logprob, self._then(following))
        return here

    def _try(self, here: Position, insertion: Insertion) -> Generator[Want, Any, Position]:
        """Insert a text, follow what comes after it, and commit both, or neither of them."""
        trial = self._thinking.begin(insertion, here)
        yield Split(1)
        while trial.growing and not self._cancelled():
            (after,) = yield _grow_trial(trial)
            trial.grow(after)
        if self._cancelled():
            yield Keep(0, ())
            return here
        dropped = self._thinking.judge(trial)
        if dropped is not None:
            yield Keep(0, ())
            return (yield from self._take_draw(here, dropped))
        committed = self._commit_trial(trial)
        yield Keep(0, tuple(reading.token for reading in committed[:-1]))
        if not self._writer.finished:
            last = committed[-1]
            here = yield Follow(last.token, last.logprob, self._then())
        return here

    def _commit_trial(self, trial: Trial) -> list[Reading]:
        """Commit an insertion and what follows it as far as the answer may grow; return that."""
        for number, reading in enumerate(trial.readings):
            first = number == 0
            wish = trial.insertion.wish if first else None
            self._commit(reading, trial.origin(number), rolled_back=int(first), wish=wish)
            if self._over:
                return trial.readings[: number + 1]
        return trial.readings

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
        branch = drafts.compare()
        if self._asks and drafts.close(branch) and not self._cancelled():
            asked = yield Ask(branch)
            branch = branch if self._cancelled() else asked
        committed = self._commit_winner(drafts.readings(branch.winner), branch)
        yield Keep(branch.winner, tuple(reading.token for reading in committed[:-1]))
        if self._writer.finished:
            return here
        last = committed[-1]
        here = yield Follow(last.token, last.logprob, self._then())
        return here

    def _commit_winner(self, readings: list[Reading], branch: Branch) -> list[Reading]:
        """Commit a rollout's tokens as far as the answer may grow; return what was committed."""
        origin = Origin.CHOSEN if branch.chosen_by is ChosenBy.USER else Origin.BRANCH
        for number, reading in enumerate(readings):
            first = number == 0
            self._commit(reading, origin, branch=branch if first else None, rolled_back=int(first))
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

    @property
    def _over(self) -> bool:
        return self._writer.finished or self._cancelled()

    def _then(self, token: int = DRAWN) -> int:
        """Return what comes after the token that is followed now, given its successor."""
        return NOTHING if self._writer.room == 1 else token


def _grow_trial(trial: Trial) -> Roll:
    last, following = trial.readings[-1], trial.forced
    then = NOTHING if trial.at_last else DRAWN if following is None else following
    return Roll((0,), (last.token,), (last.logprob,), then)


def _grow(drafts: Drafts) -> Roll:
    last = [drafts.readings(rollout)[-1] for rollout in drafts.living]
    return Roll(
        drafts.living,
        tuple(reading.token for reading in last),
        tuple(reading.logprob for reading in last),
        NOTHING if drafts.at_last else DRAWN,
    )


def without_reads(life: Life) -> Life:
    """Return the same life with each `Read` spelt out: its tokens one by one, then `Unread`."""
    sent: Any = None
    while True:
        try:
            want = life.send(sent)
        except StopIteration:
            return
        sent = (yield from _read(want)) if isinstance(want, Read) else (yield want)


def _read(want: Read) -> Generator[Want, Any, Any]:
    rollouts = tuple(range(len(want.after)))
    rows = [want.after] if want.after else []
    rows += [(token,) * max(1, len(rollouts)) for token in want.tokens]
    found: Any = None
    for number, row in enumerate(rows):
        then = want.tokens[number + 1 - bool(rollouts)] if number + 1 < len(rows) else NOTHING
        if rollouts:
            found = yield Roll(rollouts, row, None, then)
        else:
            found = yield Follow(row[0], None, then, side=True)
    yield Unread(len(rows))
    return found
