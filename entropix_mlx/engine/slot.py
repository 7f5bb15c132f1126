"""A slot: the place of one answer in the batch, and its rows in the passes that are in flight.

The pipeline of a slot is optimistic. Between two passes it has either a *request* that nobody has
queued yet, or a *flight*: rows that were queued in the last pass, and that are read while the next
one runs. Each turn of the scheduler calls, in this order:

1. `queue`: rows for the next pass. With a request, they take its tokens. With a flight, they take
   the tokens that are expected to follow it (drawn on the device, unknown to the host): unconfirmed
   ones.
2. `queued`: where those rows are in the pass.
3. `receive`: the flight is read, the answer goes on from its positions and asks for something. If
   that is what was queued ahead, those rows are the next flight and nothing was lost. If not, they
   are taken back from the cache, and the request is queued in the next turn: the slot sits out one
   pass.

    turn       1           2             3               4
    queue      the         [sky] ahead   [is] ahead      Wait            ("is" was taken back)
    receive                after "the"   after "sky":    –
                           → sky         → insert "Wait"
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import mlx.core as mx

from ..answer.answer import Answer
from ..answer.hooks import Choose, Hooks
from ..answer.interventions.forks import chosen
from ..answer.position import Position
from ..answer.requests import DRAWN, NOTHING, TEXT, Advance, Ask, Keep, Split
from ..answer.selection import AnswerSelection
from ..answer.writer import Clock
from ..errors import ConstraintError
from ..settings import ResolvedSettings
from ..step import Fork, Origin, Step
from .cached_text import BranchCaches, BranchGroup, CachedText, Prompt
from .constrained import ConstrainedText
from .forward import Pass, SlotRows
from .sampler_state import SamplerStates
from .speculation.speculation import Speculation


class _Flight(NamedTuple):
    """Rows of a pass that was queued and not read yet."""

    request: Advance
    """What they serve."""
    branches: BranchCaches | None
    """The branches that they belong to; None for the text."""
    places: dict[int, int]
    """Where the text, or each branch, is among the rows of the pass."""
    block: tuple[int, ...] = ()
    """Tokens that were proposed to follow the text's; their rows follow its own."""


class Slot:
    """One answer in the batch: its rules, its text in the cache, and the rows in flight."""

    def __init__(
        self,
        answer: Answer,
        prompt: Prompt,
        resolved: ResolvedSettings,
        *,
        forced: Sequence[int] = (),
        forced_origin: Origin = Origin.CHOSEN,
        hooks: Hooks | None = None,
        client: str | None = None,
        clock: Clock | None = None,
        states: SamplerStates | None = None,
        speculation: Speculation | None = None,
        constraint: ConstrainedText | None = None,
    ) -> None:
        """Prepare an answer, which starts when its prompt is in the cache.

        Args:
            forced: tokens to commit first, of that origin.
            client: who asks, if others may: they share the places for answers.
            clock: stands still while a person chooses.
            states: None where the sampler does not remember the text.
            speculation: None where nothing is proposed.
            constraint: None where every token is allowed.
        """
        self.prompt = prompt
        self.resolved = resolved
        self.error: Exception | None = None
        """What ended the answer, if it was not its own end."""
        self.ended = False
        self.undecided: Fork | None = None
        """The fork that a person is to decide; see `reply`."""
        self.unread = False
        """Whether whoever asks takes nothing more of the answer for now."""
        self.sits_out = False
        """Whether it has given up its place for now; it keeps what was computed."""
        self.client = client
        self.selection: AnswerSelection | None = None
        """Where this is the first of several answers to its prompt: all of them."""
        self.text: CachedText | None = None  # until the prompt is in the cache
        self._answer = answer
        self._requests = answer.live(prompt.tokens[-1], forced, forced_origin)
        self.hooks = hooks or Hooks()
        self._clock = clock or Clock()
        self._states = states
        self._speculation = speculation
        self._constraint = constraint
        self._takes_blocks = True
        self._alone = True
        self._chosen: Fork | None = None
        self._branches: BranchCaches | None = None
        self._request: Advance | None = None
        self._flight: _Flight | None = None
        self._members: list[int] = []
        self._places: dict[int, int] = {}
        self._block: tuple[int, ...] = ()
        self._prefilled = False
        self.spoke = 0.0
        """When it had its last step, or its prompt."""

    @property
    def is_new(self) -> bool:
        """Whether none of its rows was in a pass yet."""
        return not self._prefilled

    def is_silent(self, since: float) -> bool:
        """Tell whether whoever asks has waited for a step since before then."""
        waits = self.client is not None and not self.sits_out and self.undecided is None
        return waits and self.spoke < since

    @property
    def width(self) -> int:
        """How many rows it asks for, as far as that is known."""
        return 0 if self._request is None else len(self._request.tokens)

    @property
    def done(self) -> bool:
        """Whether no more steps come; behind the first of several answers, when one is chosen."""
        return self.ended and (self.selection is None or self.selection.done)

    @property
    def cancelled(self) -> bool:
        return self.hooks.cancelled()

    @property
    def choose(self) -> Choose | None:
        return self.hooks.choose

    @property
    def longest(self) -> float:
        most = self.resolved.settings.max_tokens
        return math.inf if most < 0 else len(self.prompt.tokens) + most

    def report_prefill(self, done: int, total: int) -> None:
        if self.hooks.on_prefill is None:
            return
        try:
            self.hooks.on_prefill(done, total)
        except Exception as error:  # this answer's alone: the others go on
            self.end(error)

    def take_steps(self) -> list[Step]:
        steps = list(self._answer.steps)
        self._answer.steps.clear()
        if steps:
            self.spoke = time.perf_counter()
        return steps

    def start(self) -> None:
        self.text = self.prompt.take()
        self.spoke = time.perf_counter()
        self._takes_blocks = self.text.takes_blocks(self.resolved.settings.attention_layers)
        if not self._takes_blocks:
            self._speculation = None
        if self._answer.room:
            self._go_on(None)
        else:
            self.end()

    def end(self, error: Exception | None = None) -> None:
        """Stop here; `settle` removes from the cache what nobody took."""
        if self.ended:
            return
        self._requests.close()
        self.error = error
        self.ended = True
        self.undecided = None
        self._branches = self._request = self._flight = None
        if self._speculation is not None:
            self._speculation.close()

    def settle(self, taken: int) -> None:
        """Shorten the text to the steps that were taken, all but the last, and before a stop
        string."""
        if self.text is not None:
            start = len(self.prompt.tokens)
            self.text.shorten(start + min(taken - 1, self._answer.committed))

    def reply(self, branch: int) -> None:
        """Go on with the branch that a person chose.

        Raises:
            ValueError: there is no such branch.
        """
        if self.undecided is not None:
            self._chosen = chosen(self.undecided, branch)
            self.undecided = None
            self._clock.go_on()

    def ask(self) -> None:
        """Ask the caller's function for a branch, where one is to be chosen, and go on with it."""
        if self.undecided is not None and self.choose is not None:
            self.reply(self.choose(self.undecided))

    # ── 1. Queue ────────────────────────────────────────────────────────────────────────────────

    def skip(self) -> None:
        """Have no rows in the next pass."""
        self._members, self._places, self._block = [], {}, ()

    def queue(self, last: Pass | None, alone: bool = True) -> list[SlotRows]:
        """Return the rows of this slot in the next pass, behind its flight in the last one."""
        self._alone = alone
        self.skip()
        if self._chosen is not None:
            fork, self._chosen = self._chosen, None
            try:
                self._go_on(fork)
            except Exception as error:  # this answer's alone: the others go on
                self.end(error)
        if self._request is not None:
            request = self._request
            try:
                return [self._known(request, holder) for holder in self._holders(request)]
            except ConstraintError as error:
                self.end(error)
                return []
        flight = self._flight
        if flight is None or last is None or flight.request.then == NOTHING:
            return []
        if self._constraint is not None:
            return []  # what is allowed next depends on a token that is not known yet
        speculation = self._speculation if flight.branches is None else None
        if flight.block or (speculation is not None and speculation.waits(flight.request)):
            return []  # how it goes on depends on what is not known yet
        return [self._ahead(flight, holder, last) for holder in self._holders(flight.request)]

    def _known(self, request: Advance, holder: CachedText | BranchGroup) -> SlotRows:
        members = list(holder.members)
        self._members += members
        ids = [request.tokens[member] for member in members]
        holder.confirm(ids)
        state = self._states.after(request, members) if self._states else ()
        constraint = self._constraint
        if constraint is not None:
            constraint.follow(request, members)
        self._block = self._propose(request)
        mask = None if constraint is None else constraint.mask(members, self._block)
        tokens = mx.array([*ids, *self._block])
        return SlotRows(holder.layers, tokens, self.resolved, state, bool(self._block), mask)

    def _ahead(self, flight: _Flight, holder: CachedText | BranchGroup, last: Pass) -> SlotRows:
        """Return the rows that take the tokens which are expected to follow a flight."""
        members, then = list(holder.members), flight.request.then
        self._members += members
        places = [flight.places[member] for member in members]
        tokens = last.drawn(places) if then == DRAWN else mx.full(len(places), then)
        state = self._states.ahead(then, last, places) if self._states else ()
        self._block = self._propose(flight.request, ahead=1)
        if self._block:
            tokens = mx.concatenate([tokens.astype(mx.uint32), mx.array(self._block, mx.uint32)])
        return SlotRows(holder.layers, tokens, self.resolved, state, bool(self._block))

    def _propose(self, request: Advance, ahead: int = 0) -> tuple[int, ...]:
        if not self._takes_blocks or self._branches is not None:
            return ()
        proposed: tuple[int, ...] = ()
        if self._speculation is not None:
            ids = self._known_text.ids
            proposed = self._speculation.propose(request, ids, ahead=ahead, alone=self._alone)
        return proposed if self._constraint is None else self._constraint.block(proposed)

    def queued(self, first: int) -> None:
        """Note where the rows of `queue` are in the pass: there, and in order."""
        self._places = {member: first + n for n, member in enumerate(self._members)}
        if not self._prefilled and self._places:
            self._prefilled = True
            self.report_prefill(self.prompt.total, self.prompt.total)

    # ── 2. Receive ──────────────────────────────────────────────────────────────────────────────

    def receive(self, last: Pass | None) -> None:
        """Read the flight and go on from it; without one, what was queued now is the flight."""
        flight = self._flight
        if flight is None or last is None:
            if self._request is not None and self._places:
                self._take_off(self._request)
            return
        self._flight = None
        try:
            positions = {member: last.position(place) for member, place in flight.places.items()}
            if self._states is not None:
                self._states.receive(last, flight.places)
            if flight.block:
                self._accept(flight, last)
            else:
                self._go_on([positions[member] for member in flight.request.tokens])
        except Exception as error:  # this answer's alone: the others go on
            self.end(error)
        else:
            self._check_ahead(flight, positions)

    def _accept(self, flight: _Flight, last: Pass) -> None:
        """Go on from one position of a block after the other, while its tokens are asked for."""
        first, block, steps = flight.places[TEXT], flight.block, self._answer.steps
        for number in range(len(block) + 1):
            # 1. The answer goes on from the position before a proposed token, or behind the last.
            before = len(steps)
            self._go_on([last.position(first + number)])
            if len(steps) > before:
                proposed = 0 if number else len(block)
                steps[before] = replace(steps[before], proposed=proposed, accepted=int(number > 0))
            # 2. Where it asks for another token, or for branches, the rest is rejected.
            following = list(block[number : number + 1])
            if not following or self._branches is not None or self._request is None:
                break
            if list(self._request.tokens.values()) != following:
                break
            # 3. Otherwise the token is part of the text, and was computed already.
            self._known_text.confirm(following)
            if self._constraint is not None:
                self._constraint.add(following[0])
            if self._states is not None:
                self._states.receive(last, {TEXT: first + number + 1})
            self._request = None
        if not self.ended:
            self._known_text.take_back()

    def _check_ahead(self, served: _Flight, positions: dict[int, Position]) -> None:
        """Take what was queued behind a flight for the next one if it is what is asked for now."""
        if not self._places:
            return
        request, then = self._request, served.request.then
        # 1. Which tokens were queued is known now that their positions have been read.
        queued = {
            member: position.token if then == DRAWN else then
            for member, position in positions.items()
        }
        if (
            request is not None
            and self._branches is served.branches
            and all(queued.get(member) == token for member, token in request.tokens.items())
        ):
            # 2. They are asked for: they belong to the text, and nothing was lost. Branches that
            #    have stopped lose theirs in `select`.
            for holder in self._holders(request):
                holder.confirm([request.tokens[member] for member in holder.members])
            self._take_off(request)
        # 3. They are not: they leave the caches, and the request waits for the next turn.
        elif served.branches is not None and self._branches is not None:
            self._branches.take_back()
        elif self.text is not None:
            self.text.take_back()

    def _take_off(self, request: Advance) -> None:
        places = {member: self._places[member] for member in request.tokens}
        self._flight = _Flight(request, self._branches, places, self._block)
        self._request = None

    def _go_on(self, sent: list[Position] | Fork | None) -> None:
        """Send the answer what was found, until it asks for a pass, or a person, or nothing."""
        try:
            request = self._requests.send(sent)
            while isinstance(request, Split | Keep):
                self._serve(request)
                request = self._requests.send(None)
        except StopIteration:
            self.end()
            return
        if isinstance(request, Ask):
            self.undecided = request.fork
            self._clock.stop()
        else:
            self._request = request

    def _serve(self, request: Split | Keep) -> None:
        text = self._known_text
        if isinstance(request, Split):
            text.take_back()
            self._branches = BranchCaches(text, request.branches)
            for follower in self._followers:
                follower.split(request.branches)
            return
        if self._branches is not None:
            self._branches.commit(request.branch, request.tokens)
        self._branches = None
        for follower in self._followers:
            follower.keep(request.branch, len(request.tokens))

    @property
    def _followers(self) -> list[SamplerStates | ConstrainedText]:
        """What follows the text and its branches, beside the cache."""
        return [one for one in (self._states, self._constraint) if one is not None]

    def _holders(self, request: Advance) -> Sequence[CachedText | BranchGroup]:
        if self._branches is None:
            return [self._known_text]
        return self._branches.select(request.tokens)

    @property
    def _known_text(self) -> CachedText:
        if self.text is None:
            raise RuntimeError("an answer was run before its prompt was computed")
        return self.text
