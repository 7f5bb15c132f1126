"""Two samplers side by side: the same prompt and seed, and the first difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Label, Select, Static

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
from entropix_mlx.profiles.tree import TREE_SAMPLER
from entropix_mlx.samplers.registry import SAMPLERS
from entropix_mlx.settings import Settings
from entropix_mlx.step import Fork, Step, Strategy, first_divergence
from entropix_mlx.summary import COLUMNS, Result, Sample, summarize, to_table
from entropix_mlx.traces.share import share
from entropix_mlx.traces.trace import Header, Trace

from ..containers import AutoScroll
from ..gauges.gauges import ForkRace
from ..gauges.lines import Compact, Strip
from ..gauges.plane import Plane
from ..keys import KeyBar
from ..transcript.answer import AnswerView

Start = Callable[[UserMessage, tuple[Settings, Settings], CancelToken], None]

DRAW_SECONDS = 1 / 5
"""How often the gauges are drawn while the sides answer."""
_LEFT_OUT = ("answers", "distinct", "perplexity")
KEY_ORDER = ("duel.left", "duel.right", "duel.again", "duel.save", "duel.close", "app.help")
"""The bindings that the last line names."""
VERDICT = {name: form for name, form in COLUMNS.items() if name not in _LEFT_OUT}
"""The columns of the table, which fit into 80 cells: there is one answer of each sampler."""
LEAST = ("repetition", "mean log p", "tokens/s", "insertions")
"""Those that a narrower screen lacks, in this order."""


@dataclass(frozen=True)
class DuelChoice:
    """The side of a duel that becomes part of the conversation."""

    question: UserMessage
    seed: int
    steps: Sequence[Step]


class DuelScreen(Screen[DuelChoice | None]):
    """A duel; both sides answer at the same time."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Back", id="duel.close"),
        Binding("ctrl+r", "again", "Regenerate", id="duel.again"),
        Binding("1", "keep(0)", "Keep left", tooltip="Make it the answer", id="duel.left"),
        Binding("2", "keep(1)", "Keep right", tooltip="Make it the answer", id="duel.right"),
        Binding("t", "save", "Save traces", tooltip="Write a trace of each side", id="duel.save"),
    ]

    def __init__(
        self, question: UserMessage, settings: Settings, seed: int, start: Start, profile: Profile
    ) -> None:
        """Prepare a duel, which `start` begins; its events come through `receive`."""
        super().__init__()
        self._question = question
        self._settings = replace(settings, seed=seed)
        self._start = start
        self._cancel = CancelToken()  # that of the running duel
        self._headers: tuple[Header | None, ...] = ()
        self._ended: dict[int, str | None] = {}  # the sides that have ended, and why they failed
        self._samplers: tuple[str, ...] = ()
        self._difference: int | None = None  # the first token that the sides do not share
        left = settings.sampler
        right = "greedy" if left != "greedy" else "entropix"
        self._sides = [DuelSide(n, name, profile) for n, name in enumerate((left, right))]

    def compose(self) -> ComposeResult:
        yield Static(Content(f"❯ {printable(self._question.text)}"), classes="question")
        with Horizontal():
            yield from self._sides
        yield Label("", id="divergence")
        yield KeyBar(KEY_ORDER, self._useful_keys)

    async def on_mount(self) -> None:
        self.query_one("#side-0").focus()
        self.set_interval(DRAW_SECONDS, self._draw_sides)
        await self.action_again()

    async def on_select_changed(self) -> None:
        """Start again with other samplers; Textual also reports the first ones."""
        if self._chosen() != self._samplers:
            await self.action_again()

    async def action_again(self) -> None:
        self._cancel.set()
        # Made before anything waits: `receive` must drop the events of the previous duel.
        cancel = self._cancel = CancelToken()
        for side in self._sides:
            await side.clear()
        if cancel is not self._cancel:
            return  # another one began meanwhile
        self._ended, self._headers, self._difference = {}, (), None
        self._samplers = self._chosen()
        self._show_result("the same text so far …")
        left, right = (SAMPLERS[name].fitting(self._settings) for name in self._samplers)
        self._start(self._question, (left, right), cancel)

    def receive(self, event: DuelEvent) -> None:
        """Show more of a side, mark the first difference; at the end show the table."""
        ending = not self.query(AnswerView)  # the app leaves while the model still reports
        if event.cancel is not self._cancel or ending:
            return
        if isinstance(event, DuelBegan):
            self._headers = event.headers
        elif isinstance(event, DuelForkGrew):
            self._sides[event.side].show_fork(event.fork)
        else:
            self._grow(event)

    def _grow(self, event: DuelStepsArrived) -> None:
        if not self._sides[event.side].steps:
            self.refresh_bindings()  # this side can be kept now
        self._sides[event.side].append(event.steps)
        self._mark_difference()
        if event.ended:
            self._ended[event.side] = event.error
        if len(self._ended) == len(self._sides):
            self._draw_sides()
            self._show_result(self._result())

    def action_close(self) -> None:
        self._cancel.set()
        self.dismiss(None)

    def action_keep(self, side: int) -> None:
        """Stop the duel, and make one of its answers, as far as it has come, the chat's."""
        steps = self._sides[side].steps
        if not steps:
            self.notify("there is no answer on this side yet", severity="warning")
            return
        self._cancel.set()
        self.dismiss(DuelChoice(self._question, self._settings.seed or 0, list(steps)))

    def action_save(self) -> None:
        names = []
        for side, header in zip(self._sides, self._headers, strict=False):
            if header is None or not side.steps:
                continue
            path = Path(f"duel-{header.sampler}-{header.seed}.jsonl")
            try:
                share(Trace(header, side.steps, None), path)
            except EntropixError as error:
                self.notify(str(error), severity="error", markup=False)
                return
            names.append(str(path))
        message = f"saved {' and '.join(names)}" if names else "there is nothing to save yet"
        self.notify(message, markup=False)

    def _useful_keys(self) -> dict[str, bool]:
        left, right = (bool(side.steps) for side in self._sides)
        return {"duel.left": left, "duel.right": right, "duel.save": left or right}

    def _chosen(self) -> tuple[str, ...]:
        return tuple(side.sampler for side in self._sides)

    def _draw_sides(self) -> None:
        for side in self._sides:
            side.draw()

    def _mark_difference(self) -> None:
        """Mark the first token that differs, as soon as both sides have it."""
        left, right = (side.steps for side in self._sides)
        if self._difference is None:
            common = min(len(left), len(right))
            self._difference = first_divergence(left[:common], right[:common])
            if self._difference is not None:
                self._show_result(f"{_describe(self._difference)} …")
                for side in self._sides:
                    side.point(self._difference)

    def _show_result(self, result: str | Content) -> None:
        self.query_one("#divergence", Label).update(result)

    def _result(self) -> Content:
        """Return the first difference and a table of both sides, or why a side failed."""
        ended = sorted(self._ended.items())
        failures = [f"{self._samplers[side]} failed: {error}" for side, error in ended if error]
        if failures:
            return Content("\n".join(failures))
        left, right = (side.steps for side in self._sides)
        seed = self._settings.seed or 0
        sides = zip(self._samplers, (left, right), strict=True)
        samples = [Sample(name, seed, tuple(steps)) for name, steps in sides]
        results = [summarize([sample])[0] for sample in samples]
        difference = _describe(first_divergence(left, right))
        return Content(f"{difference}\n{_table(results, self.size.width - 2)}")


def _describe(difference: int | None) -> str:
    if difference is None:
        return "the same text"
    where = f"token {difference + 1} on" if difference else "the first token"
    return f"the answers differ from {where}"


class DuelSide(Vertical):
    """One side of a duel: its sampler, its answer, and small gauges that follow it."""

    def __init__(self, number: int, sampler: str, profile: Profile) -> None:
        super().__init__(classes="side")
        self._number = number
        self._first = sampler
        self._profile = profile
        self._race = ForkRace()
        self._steps: list[Step] = []
        self._compact = Compact(profile, id="compact")
        self._gauges = (self._compact, Strip(profile, id="strip"), Plane(profile))

    def compose(self) -> ComposeResult:
        options = [(name, name) for name in SAMPLERS]
        name = f"sampler-{self._number}"
        yield Select(options, value=self._first, allow_blank=False, compact=True, id=name)
        yield AutoScroll(AnswerView(), id=f"side-{self._number}")
        yield self._race
        yield from self._gauges

    @property
    def sampler(self) -> str:
        return str(self.query_one(Select).value)

    @property
    def steps(self) -> list[Step]:
        """The answer so far; none while another one begins."""
        return self._steps

    async def clear(self) -> None:
        container = self.query_one(f"#side-{self._number}", AutoScroll)
        await container.remove_children()
        await container.mount(AnswerView())
        self._steps = []
        self._race.show(None)
        self._compact.has_thresholds = self.sampler == TREE_SAMPLER
        for gauge in self._gauges:
            gauge.show_answer([], self._profile)

    def append(self, steps: Sequence[Step]) -> None:
        if not steps:
            return
        self._steps += steps
        if self.sampler != TREE_SAMPLER:  # its strategies say nothing of H and V
            steps = [replace(step, strategy=Strategy.SAMPLE) for step in steps]
        self._race.show(None)
        self.query_one(AnswerView).append(steps)
        for gauge in self._gauges:
            gauge.add_steps(steps)

    def show_fork(self, fork: Fork) -> None:
        self._race.show(fork)

    def point(self, index: int) -> None:
        if index < len(self.steps):
            self.query_one(AnswerView).point(index)
            self.query_one(Strip).point(index)

    def draw(self) -> None:
        self._race.draw()
        for gauge in self._gauges:
            gauge.draw()


def _table(results: Sequence[Result], width: int) -> str:
    """Return the table of both answers, without the columns for which there is no room."""
    columns = dict(VERDICT)
    table = to_table(results, columns).to_text()
    for name in LEAST:
        if len(table.partition("\n")[0]) > width:
            del columns[name]
            table = to_table(results, columns).to_text()
    return table.rstrip()
