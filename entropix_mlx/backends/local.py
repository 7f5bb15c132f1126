"""A model of this process, as a backend."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from ..errors import SessionError
from ..settings import Settings
from ..step import Fork, Step
from ..traces.trace import Header, TraceFolder
from .events import Duel, DuelBegan, DuelForkGrew, DuelStepsArrived, Report, batches, explain

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..api.batch import Batch
    from ..chat.session import Session
    from ..checkpoints.inventory import LocalModel
    from ..engine.speculation.draft_model import DraftModel
    from ..models.base import LanguageModel
    from ..notes.notes import Notes

    Loaded = tuple[LanguageModel, TokenizerWrapper]
    LoadDraft = Callable[[LanguageModel, TokenizerWrapper], DraftModel | None]


@dataclass
class LocalBackend:
    """A model of this process; see `Backend`."""

    model: str
    load: Callable[[], Loaded]
    """Returns the model and its tokenizer; called on the backend's thread."""
    settings: Settings
    system_prompt: str | None = None
    ask: bool = False
    traces: TraceFolder | None = None
    """Where each answer is recorded."""
    load_named: Callable[[str], Loaded] | None = None
    """Loads another model, by its name or path; None if there is no choice."""
    notes: Notes | None = None
    """Where passages are retrieved from."""
    load_draft: LoadDraft | None = None
    """Loads a model that proposes tokens for the first one; not for others."""
    refusals: Mapping[str, str] = field(default_factory=dict, init=False)
    _loaded: Loaded | None = field(default=None, init=False)

    def open(self, model: str | None = None) -> Session:
        from ..chat.session import Session

        name, load, load_draft = self.model, self.load, self.load_draft
        if model is not None:
            if self.load_named is None:
                raise SessionError("there is no other model to choose")
            name, load, load_draft = model, partial(self.load_named, model), None
        self._loaded = None  # room for the other one
        loaded = load()
        session = Session(
            *loaded, self.settings, system_prompt=self.system_prompt, traces=self.traces
        )
        session.notes = self.notes
        if load_draft is not None:
            session.draft_model = load_draft(*loaded)
        self._loaded = loaded
        self.model, self.load, self.load_draft = name, load, load_draft
        return session

    def models(self) -> Sequence[LocalModel]:
        from ..checkpoints.inventory import inventory

        return list(inventory())

    def duel(self, duel: Duel, report: Report) -> None:
        with contextlib.closing(self._both(duel, report)) as batch:
            running = [0, 1]
            for found in batches(batch):
                for side in list(running):
                    arrived = _of_side(side, found, batch, duel)
                    if arrived.steps or arrived.ended:
                        report(arrived)
                    if arrived.ended:
                        running.remove(side)
            for side in running if not duel.cancel.is_set() else ():
                report(replace(_of_side(side, [], batch, duel), ended=True))

    def _both(self, duel: Duel, report: Report) -> Batch:
        from ..answer.hooks import Hooks
        from ..api.batch import batch_generate
        from ..chat.session import Context

        if self._loaded is None:
            raise SessionError("no model is loaded: choose one")
        model, tokenizer = self._loaded
        conversation, length = duel.with_question, model.config.max_position_embeddings
        sides = [settings.resolved(model.config) for settings in duel.sides]
        context = Context(tokenizer, length)
        prompts = [context.fit(conversation, settings.max_tokens) for settings in duel.sides]

        def grown(side: int, _: int, fork: Fork) -> None:
            report(DuelForkGrew(duel.cancel, side, fork))

        hooks = [Hooks(duel.cancel, on_fork=partial(grown, side)) for side in (0, 1)]
        own = [side.settings for side in sides]
        batch = batch_generate(model, tokenizer, prompts, own, hooks=hooks, steady=True)
        headers = (
            Header(
                model=self.model,
                sampler=side.settings.sampler,
                profile=side.profile,
                seed=side.seed,
                messages=conversation.prompt_messages,
                context_length=length,
                prompt_tokens=answer.prompt_tokens,
            )
            if answer.error is None
            else None
            for side, answer in zip(sides, batch.answers, strict=True)
        )
        report(DuelBegan(duel.cancel, tuple(headers)))
        return batch


def _of_side(
    side: int, found: Sequence[tuple[int, Step]], batch: Batch, duel: Duel
) -> DuelStepsArrived:
    steps = [step for index, step in found if index == side]
    fault = batch.answers[side].error
    error = None if fault is None else explain(fault)
    ended = fault is not None or bool(steps and steps[-1].finish_reason)
    return DuelStepsArrived(duel.cancel, side, steps, ended, error)
