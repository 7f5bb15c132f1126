"""One text: what it is generated from, how, and what it takes from each row of the batch.

After each pass, the batch shows a sequence the row at its end, and is told what comes next:

    take(row) →  a token      the drawn one, or another that an intervention or the user wants
                 a ForkTrial  branches to follow; the text waits until one of them becomes its end
                 None         nothing: the sequence has ended

The committed tokens become `Step`s, which `Batch.step` returns.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence as Tokens
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.forks import Forks, ForkTrial
from ..answer.hooks import Hooks
from ..answer.interventions import Insertion, Intervention
from ..answer.loops import LoopDetector
from ..answer.reasoning import ReasoningBudget
from ..answer.retrieval import Retrieval
from ..answer.sentences import Lines
from ..answer.thinking import Thinking
from ..answer.writer import Clock, Writer
from ..errors import ContextLengthError, PromptError
from ..models.base import LanguageModel
from ..samplers.row import Row
from ..settings import ResolvedSettings
from ..step import ChosenBy, Fork, Origin, Step
from .constrained import Constrained, constrained
from .prompts import Likelihood


class Sequence:
    """One answer, from its prompt to its end."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: TokenizerWrapper,
        prompt: Tokens[int],
        resolved: ResolvedSettings,
        hooks: Hooks | None = None,
        *,
        answered: Tokens[Step] = (),
        forced: Tokens[int] = (),
        cache: list[Any] | None = None,
        scored: int | None = None,
    ) -> None:
        """Check all that can be wrong with an answer.

        Args:
            model, tokenizer: from `load`.
            prompt: token ids; at least one.
            resolved, hooks: its settings, and the caller's functions.
            answered: the steps of an answer that is continued; the prompt ends with their tokens.
            forced: tokens to commit first, whatever is drawn; the user's choice.
            cache: what precedes the prompt. When the answer ends, however it does, it holds the
                tokens of the prompt and of the answer but the last.
            scored: tokens to list beside the likelihood of each token of the prompt; None for none.

        Raises:
            PromptError, ContextLengthError: as of `context_room`.
            ProfileError: the thinking text does not fit the tokenizer.
            SamplerError: a bias is of a token that the model does not have.
            ConstraintError: the constraint cannot be compiled, or does not allow what is answered.
        """
        settings, vocab_size = resolved.settings, model.config.vocab_size
        self.base = 0 if cache is None else cached_tokens(cache)
        check_tokens(forced, vocab_size)
        self.room = context_room(model, prompt, self.base)
        if resolved.sampler.penalties is not None:
            resolved.sampler.penalties.check(vocab_size)
        self.tokenizer = tokenizer
        self.resolved = resolved
        self.hooks = hooks or Hooks()
        self.prompt: list[int] = list(prompt[: len(prompt) - len(answered)])
        self.tokens: list[int] = []  # of the answer
        self.text = ""
        self.lines = Lines()
        self.cache = cache
        self.scored = scored
        self.likelihoods: list[Likelihood] = []  # of the prompt's tokens but the first
        self.cached = 0  # tokens of the prompt that were in the cache before
        self.begun = self.prefilled = False  # whether its prompt is being read, or was
        self.steps: deque[Step] = deque()  # committed, and not returned by the batch yet
        self.error: Exception | None = None  # what ended the answer, if it was not its own end
        self.ended = False
        self.trial: ForkTrial | None = None
        self.undecided: Fork | None = None  # what a person is to decide; see `reply`
        self.constraint: Constrained | None = None
        if settings.constraint is not None:
            self.constraint = constrained(settings.constraint, tokenizer, vocab_size, self.prompt)
        self.interventions = self._interventions(vocab_size)
        self._forced = deque(forced)
        self._inserted = Insertion((), Origin.CHOSEN)  # what the forced tokens are
        self._clock = Clock()
        limit = self.room if settings.max_tokens < 0 else min(settings.max_tokens, self.room)
        loops = settings.loops == "stop" and settings.constraint is None
        self._writer = Writer(
            tokenizer,
            resolved.profile.position_score,
            len(answered) + limit,
            settings.stop,
            self._clock,
            self.prompt,
            LoopDetector(tokenizer.decode) if loops else None,
        )
        for step in answered:
            self._observe(step)
            self._writer.skip(step)
            if self.constraint is not None:
                self.constraint.add(step.token)
        self.continued = len(answered)  # tokens of the answer that were given

    @property
    def index(self) -> int:
        """Of the next step."""
        return self._writer.index

    @property
    def length(self) -> int:
        """Tokens of the text, those before the prompt included."""
        return self.base + len(self.prompt) + len(self.tokens)

    @property
    def longest(self) -> float:
        """How long the text may become."""
        most = self.resolved.settings.max_tokens
        return math.inf if most < 0 else self.base + len(self.prompt) + self.continued + most

    @property
    def committed(self) -> int:
        """New tokens whose whole text is part of the answer: not those of a stop string."""
        return self._writer.complete - self.continued

    @property
    def cancelled(self) -> bool:
        return self.hooks.cancelled()

    @property
    def certain(self) -> bool:
        """Whether the drawn token is certain to be the next one, unless the answer ends."""
        return not self._forced and not any(each.active for each in self.interventions)

    @property
    def ends_next(self) -> bool:
        """Whether nothing can follow the next token."""
        return self._writer.room <= 1

    def expected(self) -> int | None:
        """Return the token that will follow the next one; None where it will be drawn."""
        return self._forced[1] if len(self._forced) > 1 else None

    def take(self, row: Row) -> int | ForkTrial | None:
        """Take the row at the end of the text: see the module. Raises `EntropixError` if this
        answer cannot go on."""
        row = row.checked()
        if self.cancelled:
            return None
        if not self._forced:
            found = self._intervened(row)
            if isinstance(found, ForkTrial):
                self.trial = found
                return found
            if found is not None:
                self._forced, self._inserted = deque(found.tokens), found
        if self._forced:
            (row,) = row.given([self._forced.popleft()])
            self._commit(row, self._inserted.origin, rolled_back=1, **self._inserted.about)
            self._inserted = self._inserted._replace(about={})
        else:
            self._commit(row, Origin.SAMPLED)
        return None if self.over else row.token

    def _intervened(self, row: Row) -> Insertion | ForkTrial | None:
        for intervention in self.interventions:
            found = intervention(self, row)
            if found is not None:
                return found
        return None

    def end_fork(self) -> int:
        """Commit the branch that won; return how many of its tokens the answer took."""
        trial, self.trial = self.trial, None
        assert trial is not None
        fork = trial.fork()
        origin = Origin.CHOSEN if fork.chosen_by is ChosenBy.USER else Origin.BRANCH
        for number, row in enumerate(trial.branches[fork.winner].rows):
            self._commit(row, origin, **({} if number else {"fork": fork, "rolled_back": 1}))
            if self.over:
                return number + 1
        return len(trial.branches[fork.winner].rows)

    @property
    def over(self) -> bool:
        return self._writer.finished or self.cancelled

    def end(self, error: Exception | None = None) -> None:
        if not self.ended:
            self.ended, self.error = True, error
            self.trial = self.undecided = None

    def ask_person(self) -> None:
        """Wait until a person has decided the fork."""
        assert self.trial is not None
        self.undecided = self.trial.undecided
        if self.undecided is not None:
            self._clock.stop()

    def reply(self, branch: int) -> None:
        """Go on with the branch that a person chose. Raises `ValueError` if there is no such
        branch."""
        if self.trial is not None and self.undecided is not None:
            self.trial.choose(branch)
            self.undecided = None
            self._clock.go_on()

    def ask(self) -> None:
        """Ask the caller's function for a branch, where one is to be chosen, and go on with it."""
        if self.undecided is not None and self.hooks.choose is not None:
            self.reply(self.hooks.choose(self.undecided))

    def report_prefill(self, done: int) -> None:
        """Tell the caller how much of the prompt was computed."""
        if self.hooks.on_prefill is not None:
            total = len(self.prompt) + self.continued - self.cached
            self.hooks.on_prefill(min(done, total), total)

    def _commit(self, row: Row, origin: Origin, **about: Any) -> None:
        step = self._writer.write(row.sampled(), origin, **about)
        self.room -= 1
        self._observe(step)
        self.steps.append(step)
        if self.constraint is not None and not self.over:
            self.constraint.add(step.token)

    def _observe(self, step: Step) -> None:
        self.tokens.append(step.token)
        self.text += step.text
        self.lines.add(step.text)
        for intervention in self.interventions:
            intervention.observe(step)

    def _interventions(self, vocab_size: int) -> list[Intervention]:
        """Return the interventions, first things first; nothing is inserted under a constraint."""
        settings, profile, hooks = self.resolved.settings, self.resolved.profile, self.hooks
        tokenizer, turn = self.tokenizer, self.resolved.seed + sum(self.prompt)
        thinking = Thinking(profile.think, tokenizer, vocab_size, turn)
        asks = hooks.choose is not None
        forks = Forks(profile.branch, hooks.on_fork, stops=settings.stop, asks=asks)
        found: list[Intervention] = []
        if settings.thinking_budget is not None:
            found.append(ReasoningBudget(settings.thinking_budget, tokenizer, self.prompt))
        if settings.constraint is None:
            if hooks.retrieve is not None:
                found.append(Retrieval(profile.notes, tokenizer, hooks.retrieve))
            found.append(thinking)
        return [*found, forks]


def context_room(model: LanguageModel, prompt: Tokens[int], base: int = 0) -> int:
    """Return how many tokens the model's context holds after a prompt. Raises `PromptError` if
    that is empty or holds an unknown token, `ContextLengthError` if it leaves no room."""
    if not prompt:
        raise PromptError("the prompt is empty: give at least one token")
    check_tokens(prompt, model.config.vocab_size)
    context, length = model.config.max_position_embeddings, base + len(prompt)
    if length >= context:
        raise ContextLengthError(
            f"the prompt has {length} tokens, and the model's context holds {context}, the"
            " answer included: shorten the prompt"
        )
    return context - length


def check_tokens(tokens: Tokens[int], vocab_size: int) -> None:
    """Check that a model has some tokens. Raises `PromptError` if it does not."""
    # MLX reads beyond an embedding without a word.
    if beyond := [token for token in tokens if not 0 <= token < vocab_size]:
        raise PromptError(
            f"there is no token {beyond[0]} in this model, which has {vocab_size}: leave that text"
            " out, or use the tokenizer that the model was trained with"
        )


def cached_tokens(cache: list[Any]) -> int:
    """Return how many tokens the cache of one sequence holds."""
    return max((int(getattr(layer, "offset", 0)) for layer in cache), default=0)
