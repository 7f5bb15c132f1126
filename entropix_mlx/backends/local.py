"""A model of this process, as a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ..errors import SessionError
from ..settings import Settings
from ..traces.trace import TraceFolder

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..chat.session import Session
    from ..checkpoints.local import LocalModel
    from ..models.base import LanguageModel
    from ..notes import Notes

    Loaded = tuple[LanguageModel, TokenizerWrapper]


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
    refusals: Mapping[str, str] = field(default_factory=dict, init=False)

    def open(self, model: str | None = None) -> Session:
        from ..chat.session import Session

        name, load = self.model, self.load
        if model is not None:
            if self.load_named is None:
                raise SessionError("there is no other model to choose")
            name, load = model, partial(self.load_named, model)
        loaded = load()
        session = Session(
            *loaded, self.settings, system_prompt=self.system_prompt, traces=self.traces
        )
        session.notes = self.notes
        self.model, self.load = name, load
        return session

    def models(self) -> Sequence[LocalModel]:
        from ..checkpoints.local import inventory

        return list(inventory())
