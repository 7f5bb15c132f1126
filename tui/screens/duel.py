"""Two samplers, side by side: the same prompt and seed, and where the answers part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Label, Select, Static

from entropix_mlx.palette import printable
from entropix_mlx.policies.registry import POLICIES
from entropix_mlx.serving.events import DuelStepsArrived, Question, Token
from entropix_mlx.settings import Settings
from entropix_mlx.step import first_divergence

from ..widgets.answer import AnswerView

Start = Callable[[Question, tuple[Settings, Settings], Token], None]


class DuelScreen(Screen[None]):
    """Shows a duel while it is fought, first the left side, then the right."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Back", id="duel.close"),
        Binding("ctrl+r", "again", "Once more", id="duel.again"),
    ]

    def __init__(self, question: Question, settings: Settings, seed: int, start: Start) -> None:
        """Prepare a duel.

        Args:
            question: what both sides answer.
            settings: those of the chat, for both but for the sampler.
            seed: for both.
            start: begins a duel; its steps come through `receive`.
        """
        super().__init__()
        self._question = question
        self._settings = replace(settings, seed=seed)
        self._start = start
        self._cancel = Token()  # that of the running duel
        self._ended = 0
        self._samplers: tuple[str, ...] = ()

    def compose(self) -> ComposeResult:
        """Make the two sides."""
        options = [(name, name) for name in POLICIES]
        left = self._settings.sampler
        right = "greedy" if left != "greedy" else "entropix"
        yield Static(Content(f"❯ {printable(self._question.text)}"), classes="question")
        with Horizontal():
            for side, sampler in enumerate((left, right)):
                with Vertical(classes="side"):
                    yield Select(options, value=sampler, allow_blank=False, id=f"sampler-{side}")
                    yield VerticalScroll(AnswerView(), id=f"side-{side}")
        yield Label("", id="divergence")
        yield Footer()

    async def on_mount(self) -> None:
        """Begin."""
        self.query_one("#side-0").focus()
        await self.action_again()

    async def on_select_changed(self) -> None:
        """Begin again with other samplers; also called for the first ones."""
        if self._chosen() != self._samplers:
            await self.action_again()

    async def action_again(self) -> None:
        """Begin again."""
        self._cancel.set()
        cancel = self._cancel = (
            Token()
        )  # first: `receive` must drop what the duel before still sends
        for side in (0, 1):
            container = self.query_one(f"#side-{side}", VerticalScroll)
            await container.remove_children()
            await container.mount(AnswerView())
        if cancel is not self._cancel:
            return  # another one began meanwhile
        self._ended = 0
        self._samplers = self._chosen()
        self.query_one("#divergence", Label).update("…")
        left, right = (POLICIES[name].fitting(self._settings) for name in self._samplers)
        self._start(self._question, (left, right), cancel)

    def receive(self, event: DuelStepsArrived) -> None:
        """Show the next steps of a side; at the end mark where the sides part."""
        if event.cancel is not self._cancel:
            return
        self._answer(event.side).append(event.steps)
        self._ended += event.ended
        if self._ended == 2:
            self._mark_divergence()

    def action_close(self) -> None:
        """Stop the duel, and go back to the chat."""
        self._cancel.set()
        self.dismiss(None)

    def _chosen(self) -> tuple[str, ...]:
        return tuple(str(self.query_one(f"#sampler-{n}", Select).value) for n in (0, 1))

    def _mark_divergence(self) -> None:
        answers = self._answer(0), self._answer(1)
        index = first_divergence(answers[0].steps, answers[1].steps)
        told = "the same text" if index is None else f"the answers part at token {index}"
        self.query_one("#divergence", Label).update(Content(told))
        for answer in answers:
            if index is not None and index < len(answer.steps):
                answer.point(index)

    def _answer(self, side: int) -> AnswerView:
        return self.query_one(f"#side-{side}").query_one(AnswerView)
