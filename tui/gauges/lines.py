"""The gauges that are one line below the text: the newest values, and the whole answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.message import Message
from textual.style import Style

from entropix_mlx.step import Strategy

from ..answer import Answer
from ..drawing import HEIGHTS, runs, scales
from ..styles import COLOURS
from .drawn import Drawn

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
_POINTED = {strategy: colour + Style(reverse=True) for strategy, colour in COLOURS.items()}


class Strip(Drawn):
    """The whole answer in a line: its height is H, its colour the strategy."""

    @dataclass
    class Clicked(Message):
        """The user asks for a token."""

        index: int

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._cells = Cells(0)
        self._of: Answer | None = None  # what the cells show

    def on_click(self, event: events.Click) -> None:
        """Report the token where the user clicked: of several, the first."""
        offset = event.get_content_offset(self)
        if offset is not None and 0 <= offset.x < len(self._cells.heights):
            self.post_message(self.Clicked(offset.x * self._cells.size))

    def draw(self) -> None:
        answer, width = self.answer, self.content_size.width
        if answer is None or width <= 0:
            return
        if answer is not self._of or width != self._cells.width:
            self._of, self._cells = answer, Cells(width)
        new = slice(self._cells.tokens, None)
        entropies = (step.entropy for step in answer.steps[new])
        self._cells.add(zip(entropies, answer.strategies[new], strict=True))
        most = scales(answer.profile)["entropy"].most
        self.draw_content(draw_strip(self._cells, most, answer.cursor))


class Cells:
    """An answer in at most so many cells, each of as many tokens as that takes.

    Tokens can be added without looking at those before, until a cell must hold more of them.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._tokens: list[tuple[float, Strategy]] = []
        self.size = 1
        """Tokens of a cell."""
        self.heights: list[float] = []
        """The highest H of each cell, in bits."""
        self.strategies: list[Strategy] = []
        """The most notable strategy of each cell."""

    @property
    def tokens(self) -> int:
        return len(self._tokens)

    def add(self, tokens: Iterable[tuple[float, Strategy]]) -> None:
        first = len(self._tokens)
        self._tokens += tokens
        size = max(1, -(-len(self._tokens) // self.width))
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
    """Return an answer in a line; `most` is the H of a full cell, in bits."""
    at = None if cursor is None else cursor // cells.size
    return runs(
        (
            HEIGHTS[min(8, max(1, round(height / most * 8)))],
            _POINTED[strategy] if cell == at else COLOURS[strategy],
        )
        for cell, (height, strategy) in enumerate(zip(cells.heights, cells.strategies, strict=True))
    )
