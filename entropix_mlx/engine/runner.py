"""The runner: who is admitted, what prompts share, and what becomes of the texts afterwards.

Every answer of the program goes through a `Runner`: a single one, a batch, those of a server, those
of a calibration.

    add ──→ waiting ──→ slot of the scheduler ──→ ended
                │                                    │
                └─ the cached text that begins       its text joins the prompt cache ─┐
                   most alike serves its prompt ←─────────────────────────────────────┘

1. `add` checks all that can be wrong with an answer, before any pass, and puts it into the queue.
2. An answer is admitted when fewer than `batch` run and the memory holds it beside them; one alone
   always is. A place goes to the client, then to the request, that has the fewest. A request that
   has none takes that of an answer which can spare it; that one sits out until a place is free.
3. Waiting answers to the same prompt share what is cached of it. Where there is a prompt cache, a
   prompt takes what it has in common with a text of the cache, or with one that is in use.
4. `advance` runs one turn of the scheduler and returns the steps that were committed.
5. What has ended leaves: its text is shortened to what was committed, and joins the prompt cache.
6. Where there are several answers to one prompt (`several.py`), others are added or ended now.
   Their steps are kept back, and those of the chosen one returned when it is chosen.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Generator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.answer import Answer
from ..answer.hooks import Hooks
from ..answer.interventions.base import Intervention
from ..answer.interventions.forks import Forks
from ..answer.interventions.reasoning import ReasoningBudget
from ..answer.interventions.retrieval import Retrieval
from ..answer.interventions.thinking import Thinking
from ..answer.loops import LoopDetector
from ..answer.writer import Clock, Writer
from ..errors import ContextLengthError, PromptError
from ..models.base import LanguageModel
from ..models.memory import cache_tokens, wired_memory
from ..profiles.sections import MODE_TEXT
from ..settings import ResolvedSettings, Settings, draw_seed
from ..step import Origin, Step
from .cached_text import CachedText, Prompt
from .constrained import ConstrainedText, constrained_text
from .prompt_cache import PromptCache
from .sampler_state import SamplerStates, check_biased, first_state
from .scheduler import Scheduler
from .several import Beginning, Several
from .slot import Slot
from .speculation.speculation import speculation_for

LEAST_TURN = 8
"""Turns after which an answer gives way to one that had to sit out."""
RESOLVED = 16
"""Settings whose samplers are cached: slots that share a sampler are measured together."""
_NOT_DECIDING: dict[str, Any] = {
    "seed": 0,
    "max_tokens": 0,
    "attention_layers": "last",
    "top_logprobs": 0,
    "speculation": "off",
    "stop": (),
    "loops": "allow",
    "constraint": None,
    "thinking_budget": None,
    "answers": 1,
}
"""Fields of `Settings` that no sampler reads."""


class Runner:
    """Answers on one model. It belongs on the thread that loaded the model.

    Use it as a context manager: it holds the memory that Metal wires, and ends all answers when it
    is left.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: TokenizerWrapper,
        *,
        batch: int = 1,
        cache: PromptCache | None = None,
        pipelined: bool = True,
        steady: bool = False,
    ) -> None:
        """Begin without answers.

        Args:
            model, tokenizer: from `load`.
            batch: the most answers that run at once.
            cache: texts for prompts that begin as they do; None shares only equal prompts.
            pipelined, steady: as for `Scheduler`.
        """
        self._model = model
        self._tokenizer = tokenizer
        self._batch = batch
        self._cache = cache
        self._scheduler = Scheduler(model, pipelined=pipelined, steady=steady)
        self._waiting: deque[Slot] = deque()
        self._admitted: list[Slot] = []
        self._turn = 0
        self._since: dict[Slot, int] = {}
        self._taken: dict[Slot, int] = {}
        self._several: dict[Slot, Several] = {}
        """By each of their slots."""
        self._resolved: deque[tuple[Settings, ResolvedSettings]] = deque(maxlen=RESOLVED)
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Runner:
        self._open.enter_context(wired_memory.raised())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._open.close()

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._admitted) - self.running

    @property
    def running(self) -> int:
        return len(self._placed)

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._admitted)

    def capacity(self, slots: Collection[Slot]) -> int:
        """Return how many of some answers run at once, if all become as long as they may."""
        longest = max((self._held(slot) for slot in slots), default=1)
        most = sum(slot.resolved.most_answers for slot in slots)
        return max(1, min(self._batch, most, self._cache_tokens // longest))

    def resolve(self, settings: Settings) -> ResolvedSettings:
        """Return settings as `Settings.resolved` does; those that decide alike share a sampler.

        Raises:
            ProfileError, SamplerError: the settings do not fit.
        """
        alike = replace(settings, **_NOT_DECIDING)
        known = next((resolved for other, resolved in self._resolved if other == alike), None)
        if known is None:
            known = alike.resolved(self._model.config)
            self._resolved.append((alike, known))
        own = replace(settings, profile=known.profile, changes={})
        return replace(known, settings=own).with_seed(draw_seed() if own.seed is None else own.seed)

    def add(
        self,
        prompt: Sequence[int],
        resolved: ResolvedSettings,
        hooks: Hooks | None = None,
        *,
        answered: Sequence[Step] = (),
        forced: Sequence[int] = (),
        text: CachedText | None = None,
        scored: int | None = None,
        client: str | None = None,
        beside: Slot | None = None,
    ) -> Slot:
        """Put an answer into the queue.

        Args:
            prompt: token ids; at least one.
            resolved: its settings. Where they ask for several answers, the slot is that of the
                first one; one that is continued, forced or scored is the only one.
            hooks: the caller's.
            answered: the steps of an answer that is continued; the prompt ends with their tokens.
            forced: tokens to commit first, whatever is drawn; the user's choice.
            text: what is in the cache already, updated in place. When the answer ends, however it
                does, it holds the tokens of the prompt and of the answer but the last.
            scored: as in `Prompt`; nothing of the prompt is taken from the cache then.
            client: who asks. One who has no answer yet takes the place of an answer that can spare
                it; None waits for a free one.
            beside: a complete answer that begins as this one does. `forced` is no choice of a
                person then, and what is cached of that answer is copied.

        Raises:
            PromptError: the prompt is empty, or holds a token that the model does not have.
            ContextLengthError: the prompt leaves no room in the context.
            ProfileError: the thinking text does not fit the tokenizer.
            SamplerError: a bias is of a token that the model does not have.
            ConstraintError: the constraint cannot be compiled, or does not allow what is answered.
            TokenizerError: the draft model reads other tokens.
            UnsupportedModelError: speculation was asked for, and the model cannot take tokens back.
        """
        # 1. What cannot be answered is refused.
        base = text.base if text is not None else 0
        context_room = self._context_room([*prompt], forced, base)
        check_biased(resolved.sampler, self._model.config.vocab_size)
        # 2. The answer: its rules and its text.
        resolved, hooks = _with_alternatives(resolved), hooks or Hooks()
        before, clock = list(prompt[: len(prompt) - len(answered)]), Clock()
        answer = self._answer(before, answered, resolved, hooks, clock, context_room)
        # 3. Its place in the batch.
        slot = Slot(
            answer,
            self._prompt(prompt, text, scored, beside),
            resolved,
            forced=forced,
            forced_origin=Origin.CHOSEN if beside is None else Origin.BRANCH,
            hooks=hooks,
            client=client,
            clock=clock,
            states=self._states(before, answered, resolved),
            speculation=speculation_for(
                self._model, self._tokenizer, resolved, hooks.draft_model, base
            ),
            constraint=self._constraint(before, answered, resolved.settings),
        )
        if resolved.settings.max_tokens == 0 and scored is None:
            slot.end()
        self._waiting.append(slot)
        # 4. Others to the same prompt.
        single = answered or forced or scored is not None
        if resolved.settings.answers != 1 and not single:
            several = Several(slot, partial(self._add_beside, slot, text))
            self._several |= dict.fromkeys(several.slots, several)
        return slot

    def advance(self) -> list[tuple[Slot, Step]]:
        """Admit what has room, run one pass, and return the steps that were committed.

        Of several answers to one prompt, those of the chosen one are returned, as steps of the
        first, when it is chosen. Slots of which no more steps come are `done`, and have an `error`
        if that was not their own end; the others are not touched by it.
        """
        steps = self._run_turn()
        shown = [(slot, step) for slot, step in steps if slot not in self._several]
        for several in dict.fromkeys(self._several.values()):
            if several.first.done:
                shown += [(several.first, step) for step in several.selection.chosen.steps]
                for slot in several.slots:
                    del self._several[slot]
        return shown

    def _run_turn(self) -> list[tuple[Slot, Step]]:
        """Run one pass, and return the steps of all answers."""
        self._turn += 1
        self._admit()
        steps = self._scheduler.advance()
        for slot, _ in steps:
            self._taken[slot] += 1
        self._retire()
        committed = {slot for slot, _ in steps}
        concerned = [
            each for slot, each in self._several.items() if slot.ended or slot in committed
        ]
        for several in dict.fromkeys(concerned):
            several.proceed(steps)
            self._several |= dict.fromkeys(several.slots, several)
        return steps

    def stream(self, slot: Slot) -> Generator[Step, None, None]:
        """Yield the steps of the answer to the runner's only prompt, and end it when the generator
        is left.

        Raises:
            NonFiniteLogitsError: the model computed NaN or infinite logits.
        """
        taken = 0
        try:
            with self:
                while not slot.done:
                    for _, step in self.advance():
                        taken += 1
                        yield step
                        if step.finish_reason or slot.cancelled:
                            return
                    slot.ask()
            if slot.error is not None:
                raise slot.error
        finally:
            slot.settle(taken)

    def stream_all(self, slot: Slot) -> Generator[tuple[int, Step], None, None]:
        """Yield the steps of several answers as they come, each with the number of its answer.

        Raises:
            NonFiniteLogitsError: the model computed NaN or infinite logits.
        """
        several = self._several[slot]
        with self:
            while not slot.done:
                for committed, step in self._run_turn():
                    yield several.slots.index(committed), step
                slot.ask()
        if slot.error is not None:
            raise slot.error

    def drop_waiting(self) -> list[Slot]:
        """End the answers that have no slot yet, and return them."""
        dropped = [*self._waiting]
        for slot in dropped:
            slot.end()
        self._waiting.clear()
        return dropped

    def close(self) -> None:
        self.drop_waiting()
        self._several.clear()
        self._scheduler.close()
        self._retire()

    # ── Making a slot ───────────────────────────────────────────────────────────────────────────

    def _answer(
        self,
        prompt: Sequence[int],
        answered: Sequence[Step],
        resolved: ResolvedSettings,
        hooks: Hooks,
        clock: Clock,
        context_room: int,
    ) -> Answer:
        settings, decode = resolved.settings, self._tokenizer.decode
        room = context_room if settings.max_tokens < 0 else min(settings.max_tokens, context_room)
        ends_loops = settings.loops == "stop" and settings.constraint is None
        writer = Writer(
            self._tokenizer,
            resolved.profile.position_score,
            len(answered) + room,
            settings.stop,
            clock,
            prompt,
            LoopDetector(decode) if ends_loops else None,
        )
        interventions = self._interventions(resolved, hooks, prompt)
        answer = Answer(writer, interventions, context_room=context_room, cancelled=hooks.cancelled)
        answer.resume(answered)
        return answer

    def _states(
        self, prompt: Sequence[int], answered: Sequence[Step], resolved: ResolvedSettings
    ) -> SamplerStates | None:
        """Return what a sampler with a memory remembers of the text so far."""
        sampler = resolved.sampler
        if sampler.remembered is None:
            return None
        vocab_size = self._model.config.vocab_size
        state = first_state(sampler, self._tokenizer, vocab_size, prompt, answered)
        return SamplerStates(sampler.remembered, state)

    def _constraint(
        self, prompt: Sequence[int], answered: Sequence[Step], settings: Settings
    ) -> ConstrainedText | None:
        if (constraint := settings.constraint) is None:
            return None
        return constrained_text(
            constraint,
            self._tokenizer,
            self._model.config.vocab_size,
            prompt,
            [step.token for step in answered],
            closes=constraint.is_json,
        )

    def _add_beside(
        self,
        first: Slot,
        text: CachedText | None,
        settings: Settings,
        hooks: Hooks,
        beginning: Beginning | None,
    ) -> Slot:
        """Add another answer to the prompt of a first one, which may have ended."""
        prompt, resolved = first.prompt, self.resolve(settings)
        add = partial(self.add, resolved=resolved, hooks=hooks, client=first.client)
        if beginning is None:
            if first.ended and self._cache is None:
                text = prompt.text
            slot = add(prompt.tokens, text=text)
        else:
            steps = beginning.steps
            slot = add(
                [*prompt.tokens, *(step.token for step in steps)],
                answered=steps,
                forced=[beginning.token],
                text=text,
                beside=beginning.slot,
            )
        if first.ended:  # its prompt takes memory already, unlike those of others that wait
            self._waiting.rotate(1)
        return slot

    def _prompt(
        self,
        tokens: Sequence[int],
        text: CachedText | None,
        scored: int | None,
        beside: Slot | None,
    ) -> Prompt:
        if beside is not None:
            known = beside.text or beside.prompt.text
            return Prompt(tokens, lambda prompt: known.copy(known.common(prompt[:-1])))
        if text is not None:
            return Prompt(tokens, text.found)
        if scored is not None:  # every token must be computed
            return Prompt(tokens, lambda _: CachedText.empty(self._model), scored=scored)
        return Prompt(tokens, self._find_text, joins=self._cache is not None)

    def _context_room(self, prompt: list[int], forced: Sequence[int], base: int) -> int:
        if not prompt:
            raise PromptError("the prompt is empty: give at least one token")
        check_tokens([*prompt, *forced], self._model.config.vocab_size)
        context, length = self._model.config.max_position_embeddings, base + len(prompt)
        if length >= context:
            raise ContextLengthError(
                f"the prompt has {length} tokens, and the model's context holds {context}, the"
                " answer included: shorten the prompt"
            )
        return context - length

    def _interventions(
        self, resolved: ResolvedSettings, hooks: Hooks, prompt: Sequence[int]
    ) -> list[Intervention]:
        """Return what may be done in place of committing the drawn token, first things first.

        Nothing is inserted under a constraint.
        """
        tokenizer, sampler = self._tokenizer, resolved.sampler
        rule, vocab_size = sampler.profile.think, self._model.config.vocab_size
        thinking = Thinking(rule, tokenizer, vocab_size, prompt, resolved.seed)
        forks = Forks(
            sampler.fork_rule,
            tokenizer,
            hooks.on_fork,
            seed=resolved.seed,
            prompt=prompt,
            stops=resolved.settings.stop,
            asks=hooks.choose is not None,
        )
        budget = resolved.settings.thinking_budget
        first = [] if budget is None else [ReasoningBudget(budget, tokenizer, prompt)]
        if resolved.settings.constraint is not None:
            return [*first, forks]
        if hooks.retrieve is None:
            return [*first, thinking, forks]
        notes = resolved.profile.notes
        retrieval = Retrieval(notes, tokenizer, hooks.retrieve, forks.due)
        return [*first, retrieval, thinking, forks]

    # ── Admission ───────────────────────────────────────────────────────────────────────────────

    def _admit(self) -> None:
        for slot in [slot for slot in self._waiting if slot.cancelled or slot.ended]:
            slot.end()
            self._waiting.remove(slot)
            self._keep_text(slot)
        for slot in self._placed:
            if slot.unread:
                self._set_out(slot)
        # 1. Free places: those that sit out before those that have waited for less.
        while self.running < self._batch and (ready := [*self._returning, *self._waiting]):
            if not self._fits(slot := min(ready, key=self._share)):
                if not (ready := self._returning):
                    return
                slot = min(ready, key=self._share)
            self._place(slot)
        # 2. Places that others can spare.
        while claims := self._claims():
            slot, others = claims
            other = max(others, key=lambda other: (*self._share(other), self._had(other)))
            self._set_out(other)
            self._place(slot)

    def _claims(self) -> tuple[Slot, list[Slot]] | None:
        """Return an answer that may take another's place, and who can spare one for it."""
        first = [slot for slot in self._waiting if self._is_first(slot) and self._fits(slot)]
        for slot in [*sorted(first, key=self._share), *self._returning]:
            if others := [other for other in self._placed if self._spares(other, slot)]:
                return slot, others
        return None

    def _spares(self, other: Slot, slot: Slot) -> bool:
        """Tell whether an answer gives way to another: its client has two places more, or no fewer
        and its own request has two, or it has had its own for some time."""
        (client, request), (own, _) = self._share(other), self._share(slot)
        if client >= own + 2:
            return True
        if slot.client is None or (client <= own and other.client != slot.client):
            return False
        if slot in self._waiting:  # for its first token
            return request >= 2 or self._had(other) > 0
        return self._had(other) >= LEAST_TURN

    def _had(self, slot: Slot) -> int:
        """Return for how many turns an answer has its place, the first token apart."""
        return self._turn - self._since[slot] if self._taken[slot] else 0

    def _set_out(self, slot: Slot) -> None:
        slot.sits_out = True
        self._since[slot] = self._turn

    def _place(self, slot: Slot) -> None:
        self._since[slot] = self._turn
        slot.sits_out = False
        if slot in self._waiting:
            self._waiting.remove(slot)
            self._share_prompt(slot)
            self._admitted.append(slot)
            self._taken[slot] = 0
            self._scheduler.add(slot)

    @property
    def _placed(self) -> list[Slot]:
        return [slot for slot in self._admitted if not slot.sits_out]

    @property
    def _returning(self) -> list[Slot]:
        found = [slot for slot in self._admitted if slot.sits_out and not slot.unread]
        return sorted(found, key=self._since.__getitem__)

    def _share(self, slot: Slot) -> tuple[int, int]:
        """Return how many places the client has that asks for an answer, and how many the answers
        to the same request have: those that share its hooks."""
        placed = [other for other in self._placed if other.client == slot.client]
        return len(placed), sum(other.hooks is slot.hooks for other in placed)

    def _is_first(self, slot: Slot) -> bool:
        begun = any(other.hooks is slot.hooks for other in self._admitted)
        return slot.client is not None and not begun

    def _fits(self, slot: Slot) -> bool:
        """Tell whether the memory holds an answer beside those that run; one alone always may."""
        if not self._admitted or slot in self._admitted:
            return True
        return sum(map(self._held, (slot, *self._admitted))) <= self._cache_tokens

    def _held(self, slot: Slot) -> int:
        return int(min(slot.longest, self._model.config.max_position_embeddings))

    @cached_property
    def _cache_tokens(self) -> int:
        return cache_tokens(self._model)

    def _share_prompt(self, slot: Slot) -> None:
        prompt = slot.prompt
        for other in self._waiting:
            if other.prompt.is_like(prompt):
                prompt.shared = True
                other.prompt = prompt

    def _find_text(self, prompt: Sequence[int]) -> CachedText:
        found = None
        if self._cache is not None:
            used = [slot.text or slot.prompt.text for slot in self._admitted if slot.prompt.opened]
            found = self._cache.take(prompt[:-1], used)
        return found or CachedText.empty(self._model)

    # ── The end ─────────────────────────────────────────────────────────────────────────────────

    def _retire(self) -> None:
        for slot in [slot for slot in self._admitted if slot.ended]:
            self._admitted.remove(slot)
            del self._since[slot]
            slot.settle(self._taken.pop(slot))
            self._keep_text(slot)

    def _keep_text(self, slot: Slot) -> None:
        """Put the text of an answer into the prompt cache, or of the last one that shared it."""
        prompt = slot.prompt
        others = (*self._waiting, *self._admitted)
        if self._cache is None or not prompt.opened:
            return
        if prompt.shared and any(other.prompt is prompt for other in others):
            return
        if slot.error is None or prompt.shared:  # what its cache holds may be the reason
            self._cache.give(prompt.text)


def _with_alternatives(resolved: ResolvedSettings) -> ResolvedSettings:
    """Return settings with the alternatives of each token that a tree of answers begins with."""
    settings, forks = resolved.settings, resolved.sampler.fork_rule
    if settings.answers == 1 or forks.mode == MODE_TEXT:
        return resolved
    most = max(settings.top_logprobs, forks.width)
    return replace(resolved, settings=replace(settings, top_logprobs=most))


def check_tokens(tokens: Sequence[int], vocab_size: int) -> None:
    """Check that a model has some tokens.

    Raises:
        PromptError: it does not.
    """
    # MLX reads beyond an embedding without a word.
    if beyond := [token for token in tokens if not 0 <= token < vocab_size]:
        raise PromptError(
            f"there is no token {beyond[0]} in this model, which has {vocab_size}: leave that text"
            " out, or use the tokenizer that the model was trained with"
        )
