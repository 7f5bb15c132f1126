"""The whole answer in a line under the text: its height is H, its colour the strategy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.message import Message
from textual.style import Style

from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Step, Strategy

from ..drawing import HEIGHTS, runs, scales
from ..styles import COLOURS
from .drawn import Drawn

_POINTED = {strategy: colour + Style(reverse=True) for strategy, colour in COLOURS.items()}
NOTABLE = (
    Strategy.BRANCH,
    Strategy.RESAMPLE,
    Strategy.THINK,
    Strategy.THINK_SAMPLE,
    Strategy.ADAPTIVE,
    Strategy.SAMPLE,
    Strategy.ARGMAX,
)
"""Where several tokens share a cell, its colour is that of the first of these among them."""


class Cells:
    """An answer in at most so many cells, each of as many tokens as that takes.

    Tokens can be added without looking at those before, until a cell must hold more of them.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._tokens: list[tuple[float, Strategy]] = []
        self.size = 1
        """Tokens of a cell."""
        self.heights: list[float] = []
        """The highest H of each cell, in bits."""
        self.strategies: list[Strategy] = []
        """The most notable strategy of each cell."""

    def add(self, tokens: Iterable[tuple[float, Strategy]]) -> None:
        """Add the H and the strategy of more tokens."""
        first = len(self._tokens)
        self._tokens += tokens
        size = max(1, -(-len(self._tokens) // self._width))
        if size != self.size:
            self.size, first = size, 0
            self.heights, self.strategies = [], []
        for index in range(first, len(self._tokens)):
            entropy, strategy = self._tokens[index]
            if index % self.size:
                self.heights[-1] = max(self.heights[-1], entropy)
                self.strategies[-1] = min(self.strategies[-1], strategy, key=NOTABLE.index)
            else:
                self.heights.append(entropy)
                self.strategies.append(strategy)


def draw_strip(cells: Cells, most: float, cursor: int | None = None) -> Content:
    """Return an answer in a line.

    Args:
        cells: of the answer.
        most: the H of a full cell, in bits.
        cursor: the token to highlight.
    """
    at = None if cursor is None else cursor // cells.size
    return runs(
        (
            HEIGHTS[min(8, max(1, round(height / most * 8)))],
            _POINTED[strategy] if cell == at else COLOURS[strategy],
        )
        for cell, (height, strategy) in enumerate(zip(cells.heights, cells.strategies, strict=True))
    )


class Strip(Drawn):
    """Follows the answer, and tells where it is clicked."""

    @dataclass
    class Clicked(Message):
        """The user wants to go to a token."""

        index: int

    def __init__(self, profile: Profile, *, id: str) -> None:
        super().__init__(id=id)
        self._profile = profile
        self._tokens: list[tuple[float, Strategy]] = []
        self._cells: Cells | None = None  # None where all is to be drawn anew
        self._pointed: int | None = None

    def show_answer(self, steps: Sequence[Step], profile: Profile) -> None:
        """Show an answer."""
        self._profile = profile
        self.show_strategies(steps, [step.strategy for step in steps])

    def show_strategies(self, steps: Sequence[Step], strategies: Sequence[Strategy]) -> None:
        """Show an answer in the colours of other strategies than those that were decided."""
        entropies = [step.entropy for step in steps]
        self._tokens = list(zip(entropies, strategies, strict=True))
        self._cells = None
        self.draw()

    def add_steps(self, steps: Sequence[Step]) -> None:
        """Take more steps of the answer, which the next `draw` shows."""
        new = [(step.entropy, step.strategy) for step in steps]
        self._tokens += new
        if self._cells is not None:
            self._cells.add(new)

    def point(self, index: int | None) -> None:
        """Highlight a token, or none."""
        self._pointed = index
        self.draw()

    def on_resize(self) -> None:
        """Draw for the new width."""
        self._cells = None
        self.draw()

    def on_click(self, event: events.Click) -> None:
        """Tell which token is shown where the user clicked: of several, the first."""
        offset = event.get_content_offset(self)
        if offset is None or self._cells is None:
            return
        index = offset.x * self._cells.size
        if index < len(self._tokens):
            self.post_message(self.Clicked(index))

    def draw(self) -> None:
        """Draw everything that was added."""
        width = self.content_size.width
        if not width:
            return
        if self._cells is None:
            self._cells = Cells(width)
            self._cells.add(self._tokens)
        most = scales(self._profile)["entropy"].most
        self.draw_content(draw_strip(self._cells, most, self._pointed))
