"""Answers that only rank 0 is asked for, as a server's are: it tells the other ranks of each."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from threading import Event
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.hooks import Hooks
from ..engine.prompts import PromptCache
from ..engine.sequence import Sequence as TextSequence
from ..models.base import LanguageModel
from ..models.ranks import share
from ..settings import ResolvedSettings
from ..step import Step
from .runner import Runner


class SharedRunner(Runner):
    """The runner of rank 0. An answer begins and is cancelled between two passes, on all ranks."""

    def __enter__(self) -> Runner:
        share(True, self.batch.model.group)
        self._added: list[tuple[Any, ...]] = []
        self._cancels: list[tuple[Hooks, Event]] = []
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        share(None, self.batch.model.group)
        super().__exit__()

    def add(
        self,
        prompt: Sequence[int],
        resolved: ResolvedSettings,
        hooks: Hooks | None = None,
        **options: Any,
    ) -> TextSequence:
        hooks, cancel = hooks or Hooks(), Event()
        sequence = super().add(prompt, resolved, replace(hooks, cancel=cancel), **options)
        settings = replace(resolved.settings, seed=resolved.seed)
        self._added.append((list(prompt), settings, options))
        self._cancels.append((hooks, cancel))
        return sequence

    def advance(self) -> list[tuple[TextSequence, Step]]:
        cancelled = [at for at, (hooks, _) in enumerate(self._cancels) if hooks.cancelled()]
        added, self._added = self._added, []
        share((added, cancelled), self.batch.model.group)
        for at in cancelled:
            self._cancels[at][1].set()
        return super().advance()


def follow(model: LanguageModel, tokenizer: TokenizerWrapper, size: int, cache_bytes: int) -> None:
    """Compute what rank 0's runners do, until it calls `share(None)` outside of them."""
    while share(None, model.group):
        cancels: list[Event] = []
        with Runner(model, tokenizer, size=size, cache=PromptCache(cache_bytes)) as runner:
            while (news := share(None, model.group)) is not None:
                added, cancelled = news
                for prompt, settings, options in added:
                    cancels.append(Event())
                    hooks = Hooks(cancel=cancels[-1])
                    runner.add(prompt, runner.resolve(settings), hooks, **options)
                for at in cancelled:
                    cancels[at].set()
                with contextlib.suppress(Exception):  # which rank 0 reports
                    runner.advance()
