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

from ..step import Branch, ChosenBy, Origin, Step, Strategy
from .branching import Branching
from .drafts import Drafts
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
    """A side text is put after rollouts, or after the text where there are none.

    What may come after it is measured, and then it is forgotten."""

    tokens: tuple[int, ...]
    after: tuple[int | None, ...] = ()
    """The last token of each rollout, which is not in the cache yet; None where it is."""
    rollouts: tuple[int, ...] = ()
    """Which ones; () for all of them, in order."""


class Unread(NamedTuple):
    """The last tokens of some rollouts, or of the text where there are none, are forgotten."""

    length: int
    rollouts: tuple[int, ...] = ()


class Keep(NamedTuple):
    """The first tokens of a rollout join the text; there are no rollouts any more."""

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
            thinking: says whether, and which, text may be inserted.
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
            reading = here.reading
            width = self._branching.width(self._writer.index, reading)
            if self._may_think and reading.decision.strategy is Strategy.THINK:
                here = yield from self._put(here, self._thinking.tokens(), Origin.INSERTED)
            elif width > 1:
                here = yield from self._fork(here, width)
            else:
                self._commit(reading, Origin.SAMPLED)
                if not self._writer.finished:
                    here = yield Follow(reading.token, reading.logprob, self._then())

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
        branch = yield from self._second_opinion(drafts)
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

    def _second_opinion(self, drafts: Drafts) -> Generator[Want, Any, Branch]:
        """Compare rollouts; before another than the first wins, ask the model, if that is set."""
        wanted = None if self._cancelled() else drafts.second_opinion()
        if wanted is not None:
            positions = yield Read(*wanted)
            drafts.judge([position.given(drafts.answers) for position in positions])
        return drafts.compare()

    def _commit_winner(self, readings: list[Reading], branch: Branch) -> list[Reading]:
        """Commit a rollout's tokens as far as the answer may grow; return what was committed."""
        origin = Origin.CHOSEN if branch.chosen_by is ChosenBy.USER else Origin.BRANCH
        for number, reading in enumerate(readings):
            first = number == 0
            self._commit(reading, origin, branch if first else None, rolled_back=int(first))
            if self._over:
                return readings[: number + 1]
        return readings

    def _commit(
        self, reading: Reading, origin: Origin, branch: Branch | None = None, rolled_back: int = 0
    ) -> None:
        if not self._may_think:
            reading = reading.without_thinking()
        step = self._writer.write(reading, origin, branch, rolled_back)
        self._context_room -= 1
        self._observe(step)
        self._tail.append(step.token)
        self.steps.append(step)

    def _observe(self, step: Step) -> None:
        self._thinking.observe(step)
        self._branching.observe(step)

    @property
    def _may_think(self) -> bool:
        return self._thinking.allowed(self._writer.index)

    @property
    def _over(self) -> bool:
        return self._writer.finished or self._cancelled()

    def _then(self, token: int = DRAWN) -> int:
        """Return what comes after the token that is followed now, given its successor."""
        return NOTHING if self._writer.room == 1 else token


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
    if not want.after:
        return (yield from _read_after_text(want.tokens))
    rollouts = want.rollouts or tuple(range(len(want.after)))
    last = dict(zip(rollouts, want.after, strict=True))
    unread = {rollout: token for rollout, token in last.items() if token is not None}
    if unread:
        # What follows is queued ahead only where it is the same rollouts that go on.
        then = want.tokens[0] if len(unread) == len(rollouts) else NOTHING
        yield Roll(tuple(unread), tuple(unread.values()), None, then)
    found: Any = None
    for number, token in enumerate(want.tokens):
        then = want.tokens[number + 1] if number + 1 < len(want.tokens) else NOTHING
        found = yield Roll(rollouts, (token,) * len(rollouts), None, then)
    yield Unread(len(want.tokens), rollouts)
    if unread:
        yield Unread(1, tuple(unread))
    return found


def _read_after_text(tokens: Sequence[int]) -> Generator[Want, Any, Any]:
    found: Any = None
    for number, token in enumerate(tokens):
        then = tokens[number + 1] if number + 1 < len(tokens) else NOTHING
        found = yield Follow(token, None, then, side=True)
    yield Unread(len(tokens))
    return found
