"""Two samplers, side by side: the same prompt and seed, and where the answers part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Label, Static

from entropix_mlx.backends.events import (
    CancelToken,
    DuelBegan,
    DuelEvent,
    DuelForkGrew,
    DuelStepsArrived,
    UserMessage,
)
from entropix_mlx.errors import EntropixError
from entropix_mlx.palette import printable
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.samplers.registry import SAMPLERS
from entropix_mlx.settings import Settings
from entropix_mlx.step import Step, first_divergence
from entropix_mlx.summary import COLUMNS, Result, Sample, summarize, to_table
from entropix_mlx.traces.trace import Header, TraceWriter

from ..composer.key_bar import KeyBar
from ..transcript.answer import AnswerView
from .duel_side import DuelSide

Start = Callable[[UserMessage, tuple[Settings, Settings], CancelToken], None]

DRAW_SECONDS = 1 / 5
"""How often the gauges are drawn while the sides answer."""
_LEFT_OUT = ("answers", "distinct", "perplexity")
KEY_ORDER = ("duel.left", "duel.right", "duel.again", "duel.save", "duel.close", "app.help")
"""The bindings that the last line names."""
VERDICT = {name: form for name, form in COLUMNS.items() if name not in _LEFT_OUT}
"""The columns of the verdict, which fit into 80 cells: there is one answer of each sampler."""
LEAST = ("repetition", "mean log p", "tokens/s", "insertions")
"""Those that are left out on a narrower screen, in this order."""


@dataclass(frozen=True)
class Kept:
    """The side of a duel that is to be part of the conversation."""

    question: UserMessage
    seed: int
    steps: Sequence[Step]


class DuelScreen(Screen[Kept | None]):
    """Shows a duel while both sides answer at the same time."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Back", id="duel.close"),
        Binding("ctrl+r", "again", "Once more", id="duel.again"),
        Binding("1", "keep(0)", "Keep left", tooltip="Make it the answer", id="duel.left"),
        Binding("2", "keep(1)", "Keep right", tooltip="Make it the answer", id="duel.right"),
        Binding("t", "save", "Traces", tooltip="Write a trace of each side", id="duel.save"),
    ]

    def __init__(
        self, question: UserMessage, settings: Settings, seed: int, start: Start, profile: Profile
    ) -> None:
        """Prepare a duel.

        Args:
            question: what both sides answer.
            settings: those of the chat, for both but for the sampler.
            seed: for both.
            start: begins a duel; its events come through `receive`.
            profile: the one that the settings mean.
        """
        super().__init__()
        self._question = question
        self._settings = replace(settings, seed=seed)
        self._start = start
        self._cancel = CancelToken()  # that of the running duel
        self._headers: tuple[Header | None, ...] = ()
        self._ended: dict[int, str | None] = {}  # the sides that have ended, and why they failed
        self._samplers: tuple[str, ...] = ()
        self._parted: int | None = None  # the first token that the sides do not share
        left = settings.sampler
        right = "greedy" if left != "greedy" else "entropix"
        self._sides = [DuelSide(n, name, profile) for n, name in enumerate((left, right))]

    def compose(self) -> ComposeResult:
        """Make the two sides."""
        yield Static(Content(f"❯ {printable(self._question.text)}"), classes="question")
        with Horizontal():
            yield from self._sides
        yield Label("", id="divergence")
        yield KeyBar(KEY_ORDER, self._useful_keys)

    async def on_mount(self) -> None:
        """Begin."""
        self.query_one("#side-0").focus()
        self.set_interval(DRAW_SECONDS, self._draw_sides)
        await self.action_again()

    async def on_select_changed(self) -> None:
        """Begin again with other samplers; also called for the first ones."""
        if self._chosen() != self._samplers:
            await self.action_again()

    async def action_again(self) -> None:
        """Begin again."""
        self._cancel.set()
        # Made before anything waits: `receive` must drop what the duel before still sends.
        cancel = self._cancel = CancelToken()
        for side in self._sides:
            await side.clear()
        if cancel is not self._cancel:
            return  # another one began meanwhile
        self._ended, self._headers, self._parted = {}, (), None
        self._samplers = self._chosen()
        self._tell("the same text so far …")
        left, right = (SAMPLERS[name].fitting(self._settings) for name in self._samplers)
        self._start(self._question, (left, right), cancel)

    def receive(self, event: DuelEvent) -> None:
        """Show how a side goes on, mark where the sides part; at the end tell the verdict."""
        ending = not self.query(AnswerView)  # the app leaves while the model still reports
        if event.cancel is not self._cancel or ending:
            return
        if isinstance(event, DuelBegan):
            self._headers = event.headers
        elif isinstance(event, DuelForkGrew):
            self._sides[event.side].race(event.fork)
        else:
            self._grow(event)

    def _grow(self, event: DuelStepsArrived) -> None:
        if not self._sides[event.side].steps:
            self.refresh_bindings()  # there is something to keep now
        self._sides[event.side].add(event.steps)
        self._mark_parting()
        if event.ended:
            self._ended[event.side] = event.error
        if len(self._ended) == len(self._sides):
            self._draw_sides()
            self._tell(self._verdict())

    def action_close(self) -> None:
        """Stop the duel, and go back to the chat."""
        self._cancel.set()
        self.dismiss(None)

    def action_keep(self, side: int) -> None:
        """Stop the duel, and make one of its answers, as far as it has come, the chat's."""
        steps = self._sides[side].steps
        if not steps:
            self.notify("there is no answer on this side yet", severity="warning")
            return
        self._cancel.set()
        self.dismiss(Kept(self._question, self._settings.seed or 0, list(steps)))

    def action_save(self) -> None:
        """Write a trace of each side into the current folder."""
        names = []
        for side, header in zip(self._sides, self._headers, strict=False):
            if header is None or not side.steps:
                continue
            path = Path(f"duel-{header.sampler}-{header.seed}.jsonl")
            try:
                with TraceWriter(path, header) as trace:
                    for step in side.steps:
                        trace.add(step)
            except EntropixError as error:
                self.notify(str(error), severity="error", markup=False)
                return
            names.append(str(path))
        told = f"saved {' and '.join(names)}" if names else "there is nothing to save yet"
        self.notify(told, markup=False)

    def _useful_keys(self) -> dict[str, bool]:
        """Return which keys would do something now."""
        left, right = (bool(side.steps) for side in self._sides)
        return {"duel.left": left, "duel.right": right, "duel.save": left or right}

    def _chosen(self) -> tuple[str, ...]:
        return tuple(side.sampler for side in self._sides)

    def _draw_sides(self) -> None:
        for side in self._sides:
            side.draw()

    def _mark_parting(self) -> None:
        """Mark the first token that differs, as soon as both sides have it."""
        left, right = (side.steps for side in self._sides)
        if self._parted is None:
            common = min(len(left), len(right))
            self._parted = first_divergence(left[:common], right[:common])
            if self._parted is not None:
                self._tell(f"the answers part at token {self._parted} …")
                for side in self._sides:
                    side.point(self._parted)

    def _tell(self, told: str | Content) -> None:
        self.query_one("#divergence", Label).update(told)

    def _verdict(self) -> Content:
        """Return where the answers part and what each amounts to, or why a side failed."""
        ended = sorted(self._ended.items())
        failures = [f"{self._samplers[side]} failed: {error}" for side, error in ended if error]
        if failures:
            return Content("\n".join(failures))
        left, right = (side.steps for side in self._sides)
        index = first_divergence(left, right)
        told = "the same text" if index is None else f"the answers part at token {index}"
        seed = self._settings.seed or 0
        sides = zip(self._samplers, (left, right), strict=True)
        samples = [Sample(name, seed, tuple(steps)) for name, steps in sides]
        results = [summarize([sample])[0] for sample in samples]
        return Content(f"{told}\n{_table(results, self.size.width - 2)}")


def _table(results: Sequence[Result], width: int) -> str:
    """Return the verdict's table, without the columns that matter least where there is no room."""
    columns = dict(VERDICT)
    table = to_table(results, columns)
    for name in LEAST:
        if len(table.partition("\n")[0]) > width:
            del columns[name]
            table = to_table(results, columns)
    return table.rstrip()
