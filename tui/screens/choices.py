"""What the lists of the chat show: answers, branches of a fork, saved chats, models."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from entropix_mlx.chat.conversation import Reply, Turn
from entropix_mlx.chat.store import Card, Store
from entropix_mlx.errors import SessionError
from entropix_mlx.profiles.confidence import (
    CHOICE_SCORE,
    DEFAULT_SCORE,
    AnswerMetrics,
    score_of,
)
from entropix_mlx.records import printable
from entropix_mlx.step import Fork
from entropix_mlx.traces.explain import standing

from ..drawing import DIM, bar
from ..styles import graded
from ..transcript.form import shortened
from .dialogs import ConfirmDialog, TextDialog
from .picker import Picker, PickerOption

if TYPE_CHECKING:
    from entropix_mlx.checkpoints.local import LocalModel

NAME_CHARACTERS = 60
SCORE_CELLS = 12
LINE = 200
"""Characters of the text before a fork that are shown."""


def pick_answer(turn: Turn) -> Picker:
    choices = (
        PickerOption(n, _answer_line(n, reply, turn)) for n, reply in enumerate(turn.answers)
    )
    hint = "Enter takes one · Esc keeps this one"
    return Picker(f"{len(turn.answers)} answers", choices, hint, highlighted=turn.selected)


def _answer_line(number: int, reply: Reply, turn: Turn) -> Content:
    chosen = "▸" if number == turn.selected else " "
    metrics = AnswerMetrics.of(reply.steps)
    lowest = f"lowest log p {score_of(CHOICE_SCORE, metrics):.2f} nats/token"
    about = Content.styled(f"\n   {lowest} · {len(reply.steps)} tokens", DIM)
    confidence = graded(math.exp(score_of(DEFAULT_SCORE, metrics)))
    line = Content.assemble(f"{chosen}{number + 1} ", confidence, " ")
    return line + Content(shortened(reply.text)) + about


def pick_branch(fork: Fork, before: str = "") -> Picker:
    """Return the list of the branches of a fork whose best ones score alike, by index."""
    line = printable(before).rpartition("\n")[2][-LINE:]
    title = f"{line} …\nThe branches of this fork score alike. Which one?"
    choices = (PickerOption(n, _branch_line(n, fork)) for n in range(len(fork.branches)))
    hint = "A number or Enter chooses one, Esc the best (✓)"
    return Picker(title, choices, hint, highlighted=fork.winner)


def _branch_line(index: int, fork: Fork) -> Content:
    branch = fork.branches[index]
    best = "✓" if index == fork.winner else " "
    text = printable(branch.text).replace("\n", "⏎")
    first = branch.first_logprob
    begins = "" if first is None else f"begins with p {math.exp(first):.2f}  "
    drawn = bar(math.exp(min(0.0, branch.mean_logprob)), 1.0, SCORE_CELLS)
    score = standing(branch) if index else "the first"
    measured = f"log p {branch.mean_logprob:.2f} nats/token, H {branch.mean_entropy:.2f} bits"
    return Content(f"{index + 1} {best} {text}\n    {begins}{score}  {drawn} {measured}")


def models_found(models: Sequence[LocalModel]) -> list[PickerOption]:
    """Return the models on this machine, by name; those that do not run cannot be chosen."""
    return [PickerOption(m.name, _model_line(m), m.fault is not None) for m in models]


def _model_line(model: LocalModel) -> Content:
    name = model.name if len(model.name) <= NAME_CHARACTERS else f"…{model.name[-NAME_CHARACTERS:]}"
    context = f"context {model.context or '?'} tokens"
    details = f"{model.nbytes / 1e9:.2f} GB, {model.precision or '?'}, {context}"
    fault = "" if model.fault is None else f" · does not run: {model.fault}"
    return Content.styled(printable(name), "bold") + Content(f"\n  {details}{printable(fault)}")


class ChatList(Picker):
    """The saved chats: search, open, rename, delete. Returns the id of a chat, or a path."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+e", "rename", "Rename", priority=True),
        Binding("ctrl+d", "delete", "Delete", priority=True),
    ]

    def __init__(self, store: Store | None, current: str) -> None:
        """Prepare the list; the current chat can be neither renamed nor deleted."""
        hint = "Enter opens, Ctrl+E renames, Ctrl+D deletes, Esc closes"
        super().__init__("Saved chats", hint=hint, field="search, or the path of a saved chat")
        self._store = store
        self._current = current

    async def on_mount(self) -> None:
        await self._read()

    async def action_rename(self) -> None:
        card = self._changeable()
        if card is None:
            return

        async def rename(title: str | None) -> None:
            if title is not None and self._store is not None:
                await self._change(self._store.rename, card.id, title.strip() or None)

        await self.app.push_screen(TextDialog("Title", card.name), rename)

    async def action_delete(self) -> None:
        card = self._changeable()
        if card is None:
            return

        async def delete(yes: bool | None) -> None:
            if yes and self._store is not None:
                await self._change(self._store.delete, card.id)

        question = f"Delete “{printable(card.name)}” for good?"
        await self.app.push_screen(ConfirmDialog(question, "deletes it"), delete)

    def _changeable(self) -> Card | None:
        card = None if self.choice is None else self._cards[self.choice.value]
        if card is not None and card.id == self._current:
            self.notify("this chat is open: leave it by Ctrl+N first", severity="warning")
            return None
        return card

    async def _change(self, change: Callable[..., None], *arguments: str | None) -> None:
        try:
            await asyncio.to_thread(change, *arguments)
        except SessionError as error:
            self.notify(str(error), severity="error", markup=False)
        await self._read()

    async def _read(self) -> None:
        cards = await asyncio.to_thread(self._store.cards) if self._store else []
        self._cards = {card.id: card for card in cards}
        lines = ((card, _card_line(card, card.id == self._current)) for card in cards)
        self.show([PickerOption(card.id, line, words=card.text) for card, line in lines])


def _card_line(card: Card, is_open: bool) -> Content:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(card.changed))
    turns = "1 question" if card.turns == 1 else f"{card.turns} questions"
    here = " · open now" if is_open else ""
    name = Content.styled(printable(card.name), "bold")
    return name + Content(f"\n  {when} · {turns}{here}")
