"""An answer on its way through the passes: what it wants, and where its rows are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import mlx.core as mx

from ..answer.answer import Answer
from ..answer.clock import Clock
from ..answer.hooks import Choose, Hooks
from ..answer.interventions.forks import chosen
from ..answer.requests import (
    DRAWN,
    NOTHING,
    Ask,
    Follow,
    Keep,
    Roll,
    Split,
    Unread,
)
from ..answer.side_texts import without_reads
from ..step import Fork, Step
from .cached_text import (
    TEXT,
    BranchCaches,
    BranchGroup,
    CachedText,
    Prompt,
)
from .forward import Pass, Sampling, SlotRows
from .sampler_state import Remembering
from .speculation.proposer import Guesser


class _Flight(NamedTuple):
    """A position that was queued and not read yet."""

    want: Follow | Roll
    """What it serves."""
    places: dict[int, int]
    """Where the text, or each rollout, is among the rows of the pass."""
    run: tuple[int, ...] = ()
    """Tokens that were guessed to follow the text's; they have the rows after its own."""


class Slot:
    """One answer: its life, its text in the cache, and the position that is being computed.

    Between two passes a row has either a *want* that nobody has queued yet, or a *flight*: a
    position that was queued in the last pass and will be read in the next. Where it has a flight,
    `queue` also starts what is expected to follow it (a guess); `receive` finds out whether the
    guess was right.
    """

    def __init__(
        self,
        answer: Answer,
        prompt: Prompt,
        last: int,
        sampling: Sampling,
        *,
        forced: Sequence[int] = (),
        hooks: Hooks | None = None,
        clock: Clock | None = None,
        remembering: Remembering | None = None,
    ) -> None:
        """Prepare an answer; it starts when its prompt is in the cache.

        Args:
            answer: what it wants.
            prompt: what precedes it, without its last token.
            last: that token.
            sampling: how its tokens are measured and drawn.
            forced: tokens to commit first.
            hooks: whom to tell.
            clock: stands still while a person chooses.
            remembering: what the sampler remembers of its text.
        """
        self.prompt = prompt
        self.sampling = sampling
        self.error: Exception | None = None
        self.ended = False
        self.asked: Fork | None = None
        """The rollouts among which a person is to choose; see `reply`."""
        self.text: CachedText | None = None  # until the prompt is in the cache
        self._answer = answer
        self._start = len(prompt.text.ids) + len(prompt.unread) + 1
        self._life = without_reads(answer.live(last, forced))
        self._hooks = hooks or Hooks()
        self._clock = clock or Clock()
        self._remembering = remembering
        self._branches: BranchCaches | None = None
        self._want: Follow | Roll | None = None
        self._flight: _Flight | None = None
        self._members: list[int] = []
        self._places: dict[int, int] = {}
        self._run: tuple[int, ...] = ()
        self._guesser, self._alone = sampling.guesser, True
        self._told = False

    @property
    def cancelled(self) -> bool:
        """Whether the answer is to stop."""
        return self._hooks.cancelled()

    @property
    def choose(self) -> Choose | None:
        """Whom to ask where rollouts score alike."""
        return self._hooks.choose

    def tell_prefill(self, done: int, total: int) -> None:
        """Tell how much of the prompt is computed."""
        if self._hooks.on_prefill is None:
            return
        try:
            self._hooks.on_prefill(done, total)
        except Exception as error:  # this answer's alone: the others go on
            self.end(error)

    def take_steps(self) -> list[Step]:
        """Return the steps that were committed since the last call."""
        steps = list(self._answer.steps)
        self._answer.steps.clear()
        return steps

    def start(self) -> None:
        """Begin the answer; its prompt is in the cache."""
        self.text = self.prompt.take()
        if not self.text.takes_runs(self.sampling.attention_layers):
            self._guesser = None
        self._go_on(None)

    def end(self, error: Exception | None = None) -> None:
        """Stop here; the cache holds what was committed, all but the last token."""
        self._life.close()
        self.error = error
        self.ended = True
        self.asked = None
        self._branches = self._want = self._flight = None
        if self._guesser is not None:
            self._guesser.close()
        if self.text is not None:
            self.text.take_back()

    def settle(self, taken: int) -> None:
        """Shorten the text to the steps that somebody took, all but the last of them.

        Where a stop string ended the answer, its tokens leave the text, too.

        Args:
            taken: the number of those steps.
        """
        if self.text is not None:
            self.text.shorten(self._start + min(taken - 1, self._answer.kept))

    def reply(self, branch: int) -> None:
        """Go on with the rollout that a person chose.

        Raises:
            ValueError: there is no such rollout.
        """
        if self.asked is not None:
            fork = chosen(self.asked, branch)
            self.asked = None
            self._clock.go_on()
            self._go_on(fork)

    def queue(self, last: Pass | None, alone: bool = True) -> list[SlotRows]:
        """Return the rows that this answer has in the next pass.

        Args:
            last: the pass before, in which this answer may have a flight.
            alone: whether no other answer runs.
        """
        self._alone = alone
        self._members, self._places, self._run = [], {}, ()
        if self._want is not None:
            return [self._certain(self._want, holder) for holder in self._holders(self._want)]
        if self._flight is None or last is None or self._flight.want.then == NOTHING:
            return []
        want, places, run = self._flight
        guesser = self._guesser_of(want)
        if run or (guesser is not None and not guesser.looks_ahead):
            return []  # how it goes on depends on what is not known yet
        return [self._guessed(want, holder, last, places) for holder in self._holders(want)]

    def _certain(self, want: Follow | Roll, holder: CachedText | BranchGroup) -> SlotRows:
        """Return the rows that take tokens which are known."""
        members = list(holder.members)
        self._members += members
        tokens = want.taken
        ids = [tokens[member] for member in members]
        if want.side:
            holder.hold()
        holder.confirm(ids)
        state = self._remembering.wanted(want, members) if self._remembering else ()
        self._run = self._guess(want)
        taken = mx.array([*ids, *self._run])
        return SlotRows(holder.layers, taken, self.sampling, state, bool(self._run))

    def _guessed(
        self, want: Follow | Roll, holder: CachedText | BranchGroup, last: Pass, at: dict[int, int]
    ) -> SlotRows:
        """Return the rows that take the tokens which probably follow a want."""
        self._members += (members := list(holder.members))
        places = [at[member] for member in members]
        drawn = last.drawn(places) if want.then == DRAWN else mx.full(len(places), want.then)
        holder.guessed = 1
        memory = self._remembering
        state = memory.guessed(want, members, last, places) if memory else ()
        self._run = self._guess(want, ahead=1)
        if self._run:
            drawn = mx.concatenate([drawn.astype(mx.uint32), mx.array(self._run, mx.uint32)])
        return SlotRows(holder.layers, drawn, self.sampling, state, bool(self._run))

    def _guess(self, want: Follow | Roll, ahead: int = 0) -> tuple[int, ...]:
        """Return what probably follows a want and `ahead` unknown tokens, by the text so far."""
        guesser = self._guesser_of(want)
        return tuple(guesser.guess(self._known_text.ids, ahead, self._alone)) if guesser else ()

    def _guesser_of(self, want: Follow | Roll) -> Guesser | None:
        """Return what guesses the tokens after a want; None where nobody does."""
        if isinstance(want, Roll) or want.side or want.then != DRAWN:
            return None
        return self._guesser

    def queued(self, first: int) -> None:
        """Note where the rows of `queue` are in the pass: there, and in order."""
        self._places = {member: first + n for n, member in enumerate(self._members)}
        if not self._told and self._places:
            self._told = True
            self.tell_prefill(self.prompt.total, self.prompt.total)

    def receive(self, last: Pass | None) -> None:
        """Read the flight and go on from it; without one, what was queued now is the flight."""
        if self._flight is None or last is None:
            if self._want is not None and self._places:
                self._flight = _Flight(self._want, self._places, self._run)
                self._want = None
            return
        want, places, run = self._flight
        self._flight = None
        try:
            positions = {member: last.position(place) for member, place in places.items()}
            expected = {
                member: position.reading.token if want.then == DRAWN else want.then
                for member, position in positions.items()
            }
            if self._remembering is not None:
                self._remembering.received(want, last, places)
            found = [positions[member] for member in want.taken]
            if run:
                self._go_through(last, places[TEXT], run)
            else:
                self._go_on(found if isinstance(want, Roll) else found[0])
        except Exception as error:  # this answer's alone: the others go on
            self.end(error)
        else:
            self._check_guess(expected, want)

    def _go_through(self, last: Pass, first: int, run: tuple[int, ...]) -> None:
        """Go on from one position of a run after the other, as long as its tokens are wanted.

        Args:
            last: the pass that was read.
            first: the place of the position after the want, of which the state is kept already.
            run: the tokens that were guessed.
        """
        for number in range(len(run) + 1):
            steps, before = self._answer.steps, len(self._answer.steps)
            self._go_on(last.position(first + number))
            if len(steps) > before:
                guessed = 0 if number else len(run)
                steps[before] = replace(steps[before], proposed=guessed, accepted=int(number > 0))
            want = self._want
            if not isinstance(want, Follow) or want.side or (want.token,) != run[number:][:1]:
                break
            self._known_text.confirm([want.token])
            if self._remembering is not None:
                self._remembering.received(want, last, {TEXT: first + number + 1})
            self._want = None
        if not self.ended:
            self._known_text.take_back()

    def _check_guess(self, expected: dict[int, int], served: Follow | Roll) -> None:
        """Take what was queued ahead for the next flight if it is what is wanted now.

        Args:
            expected: the token that was queued for the text, or for each rollout.
            served: the want that the guess was to follow.
        """
        want, places, rolled = self._want, self._places, isinstance(served, Roll)
        if not places:
            return
        right = (
            want is not None
            and isinstance(want, Roll) is rolled
            and want.side is served.side
            and all(expected.get(member) == token for member, token in want.taken.items())
        )
        if right and want is not None:
            tokens = want.taken
            for holder in self._holders(want):
                holder.confirm([tokens[member] for member in holder.members])
            places = {member: places[member] for member in tokens}
            self._flight = _Flight(want, places, self._run)
            self._want = None
        elif rolled and self._branches is not None:
            self._branches.take_back()
        elif self.text is not None:
            self.text.take_back()

    def _go_on(self, sent: object) -> None:
        """Send the answer what it wants, until it wants a pass, or a person, or nothing more."""
        try:
            want = self._life.send(sent)
            while isinstance(want, Split | Keep | Unread):
                self._serve(want)
                want = self._life.send(None)
        except StopIteration:
            self.end()
            return
        if isinstance(want, Ask):
            self.asked = want.fork
            self._clock.stop()
        elif isinstance(want, Follow | Roll):
            self._want = want

    def _serve(self, want: Split | Keep | Unread) -> None:
        """Do what needs no pass."""
        text = self._known_text
        if isinstance(want, Split):
            text.take_back()
            self._branches = BranchCaches(text, want.branches)
            if self._remembering is not None:
                self._remembering.split(want.branches)
        elif isinstance(want, Keep):
            if self._branches is not None:
                self._branches.commit(want.branch, want.tokens)
            self._branches = None
            if self._remembering is not None:
                self._remembering.keep(want.branch, len(want.tokens))
        elif self._branches is not None:
            self._branches.shorten(want.branches, want.length)
        else:
            text.shorten(len(text.ids) - want.length)

    def _holders(self, want: Follow | Roll) -> Sequence[CachedText | BranchGroup]:
        """Return whose caches the rows of a want are in."""
        if isinstance(want, Follow):
            return [self._known_text]
        if self._branches is None:
            raise RuntimeError("rollouts were wanted where none began")
        return self._branches.select(want.branches)

    @property
    def _known_text(self) -> CachedText:
        if self.text is None:
            raise RuntimeError("an answer was run before its prompt was computed")
        return self.text
