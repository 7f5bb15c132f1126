"""An answer: its tokens, coloured by strategy, in blocks; or as Markdown.

The reasoning of a model is folded into one line, until it is clicked or the cursor is in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import events
from textual.app import ComposeResult
from textual.content import Content
from textual.geometry import Region
from textual.message import Message
from textual.style import Style
from textual.widgets import Static

from entropix_mlx.chat.finding import CLOSING, Reasoning, find_reasoning, quoted
from entropix_mlx.palette import SWATCHES, printable
from entropix_mlx.step import Step, Strategy

from ..containers import Column
from ..styles import CHANGED, CURSOR, REASONING, Colouring, marked, token_style

if TYPE_CHECKING:
    from textual.widgets import Markdown

BLOCK_TOKENS = 60
"""A block ends with the first line that ends after so many tokens: only the last one is redrawn."""
LONGEST_BLOCK = 400
"""Where no line ends, a block ends after so many."""
EMPTY = Content()
RESERVED = 4
"""A block that grows takes so many lines at once: layout costs more than drawing a token."""


class AnswerView(Column):
    """The tokens of an answer."""

    @dataclass
    class TokenPointed(Message):
        """The user points at a token, or clicks on it."""

        answer: AnswerView
        index: int
        clicked: bool

    DEFAULT_CSS = "AnswerView, AnswerView TokenBlock, AnswerView Markdown { height: auto; }"

    def __init__(
        self,
        steps: Iterable[Step] = (),
        marks: bool = False,
        colouring: Colouring = Colouring.STRATEGY,
    ) -> None:
        """Show some steps; with `marks`, also each token's glyph."""
        super().__init__()
        self.steps: list[Step] = list(steps)
        self.strategies: list[Strategy] = [step.strategy for step in self.steps]
        self._marks = marks
        self._colouring = colouring
        self._previewed = False  # the strategies of a profile are tried out
        self.cursor: int | None = None
        """The token that is highlighted."""
        self._shades: Sequence[Style] = ()  # what a token looked at
        self._growing = False  # more steps are on their way
        self._starts: list[int] = []  # the first step of each block
        self._blocks: list[TokenBlock] = []
        self._markdown: Markdown | None = None
        self._markdown_text = ""  # what it shows
        self._drawn: dict[int, tuple[str, Style]] = {}  # tokens of the last block
        self._reasoning = find_reasoning(step.text for step in self.steps)
        self._unfolded: set[int] = set()  # spans of reasoning, by their first steps

    def compose(self) -> ComposeResult:
        self._divide(0)
        for number in range(len(self._starts)):
            self._blocks.append(TokenBlock(self._draw(number)))
            self._blocks[number].display = self._is_shown(number)
        yield from self._blocks

    @property
    def text(self) -> str:
        return "".join(step.text for step in self.steps)

    def append(self, steps: Iterable[Step]) -> None:
        """Add steps, and draw the last block and what comes after it."""
        new = list(steps)
        self.strategies += [step.strategy for step in new]
        self.steps += new
        self._growing = bool(new) and new[-1].finish_reason is None
        last = max(0, len(self._starts) - 1)
        self._divide(last)
        known = self._reasoning
        self._follow_reasoning(new)
        for number in range(last, len(self._starts)):
            if number == len(self._blocks):
                grows = self._growing and number == len(self._starts) - 1
                self._blocks.append(TokenBlock(grows=grows))
                self.mount(self._blocks[number])
            self._redraw([number])
        for span in set(self._reasoning) - set(known):
            # Of one that was there, only the line with its length changes.
            there = any(span.start == other.start for other in known)
            touched = {self._block_of(span.start)} if there else self._blocks_of(span)
            self._redraw(number for number in touched if number < last)
        self._draw_markdown()

    def settle(self) -> None:
        """Remove the empty lines that were reserved for more tokens."""
        if self._growing:
            self._growing = False
            self._redraw([len(self._starts) - 1])

    def on_mouse_move(self, event: events.MouseMove) -> None:
        self._report_token(event, clicked=False)

    def on_click(self, event: events.Click) -> None:
        start = event.style.meta.get("reasoning")
        span = None if start is None else self._span_at(start)
        if span is None:
            self._report_token(event, clicked=True)
        else:
            self._fold(span, not self._is_folded(span))

    @property
    def has_reasoning(self) -> bool:
        return bool(self._reasoning)

    @property
    def shows_reasoning(self) -> bool:
        return bool(self._unfolded)

    def fold(self, folded: bool) -> None:
        for span in self._reasoning:
            self._fold(span, folded)

    def point(self, cursor: int | None) -> None:
        ends = [i for i in (self.cursor, cursor) if i is not None]
        touched = {self._block_of(i) for i in ends}
        spans = {self._span_at(i) for i in ends}
        if len(ends) == 1 or len(spans) > 1:  # the cursor enters reasoning, or leaves it
            touched |= {number for span in spans if span for number in self._blocks_of(span)}
        self.cursor = cursor
        self._redraw(touched)

    def line_of(self, index: int) -> int:
        """Return the line on which a token ends; its word may go on in the next one."""
        number = self._block_of(index)
        block = self._blocks[number]
        steps = range(self._starts[number], index + 1)
        before = Content.assemble(*(part for step in steps for part in self._draw_step(step)))
        return block.virtual_region.y + len(before.wrap(max(1, block.content_size.width))) - 1

    def preview(self, strategies: Sequence[Strategy] | None) -> None:
        """Colour the tokens by the strategies of other thresholds, None for those that decided."""
        before, previewed = self.strategies, strategies is not None
        self.strategies = list(strategies or (step.strategy for step in self.steps))
        if self._colouring is not Colouring.STRATEGY and self._previewed is not previewed:
            touched = set(range(len(self._blocks)))
        else:
            changes = enumerate(zip(before, self.strategies, strict=True))
            touched = {self._block_of(i) for i, (old, new) in changes if old is not new}
        self._previewed = previewed
        self._redraw(touched)

    def show_colouring(self, colouring: Colouring) -> None:
        self._colouring = colouring
        self._redraw(range(len(self._blocks)))

    def shade(self, shades: Sequence[Style]) -> None:
        """Show the first tokens in other styles than their own; () shows these again."""
        if shades or self._shades:
            self._shades = shades
            self._redraw(range(len(self._blocks)))

    def show_marks(self, marks: bool) -> None:
        self._marks = marks
        self._redraw(range(len(self._blocks)))

    async def show_markdown(self, shown: bool) -> None:
        """Show the text as Markdown instead of its tokens, or the tokens again."""
        if self._markdown is not None:
            await self._markdown.remove()
            self._markdown = None
        if shown:
            from textual.widgets import Markdown  # slow to import, and seldom used

            self._markdown_text = self._as_markdown()
            self._markdown = Markdown(self._markdown_text)
            await self.mount(self._markdown)
        for number, block in enumerate(self._blocks):
            block.display = self._is_shown(number)

    def _draw_markdown(self) -> None:
        """Bring the Markdown up to date: a text that is only longer is not parsed again."""
        if self._markdown is None:
            return
        known, self._markdown_text = self._markdown_text, self._as_markdown()
        if not self._markdown_text.startswith(known):
            self._markdown.update(self._markdown_text)
        elif len(self._markdown_text) > len(known):
            self._markdown.append(self._markdown_text[len(known) :])

    def _as_markdown(self) -> str:
        """Return the text, with a line for reasoning; unfolded, it is a quotation."""
        parts, place = [], 0
        for span in self._reasoning:
            parts += [step.text for step in self.steps[place : span.start]]
            folded = span.start not in self._unfolded
            parts.append(f"*{self._headline(span, folded).strip()}*\n\n")
            if not folded:
                text = "".join(step.text for step in self.steps[span.start : span.end])
                parts.append(quoted(text))
            place = span.end
        parts += [step.text for step in self.steps[place:]]
        return printable("".join(parts))

    def _report_token(self, event: events.MouseEvent, clicked: bool) -> None:
        index = event.style.meta.get("step")
        if index is not None:
            self.post_message(self.TokenPointed(self, index, clicked))

    def _divide(self, block: int) -> None:
        """Find the first step of each block, from one of them on."""
        if not self.steps:
            return
        self._starts = self._starts[: block + 1] or [0]
        start = self._starts[-1]
        for index in range(start, len(self.steps) - 1):
            length = index + 1 - start
            ends = length >= BLOCK_TOKENS and self.steps[index].text.endswith("\n")
            if ends or length >= LONGEST_BLOCK:
                start = index + 1
                self._starts.append(start)

    def _block_of(self, index: int) -> int:
        return next(n for n in reversed(range(len(self._starts))) if self._starts[n] <= index)

    def _redraw(self, blocks: Iterable[int]) -> None:
        for number in blocks:
            if number < len(self._blocks):
                grows = self._growing and number == len(self._starts) - 1
                self._blocks[number].show(self._draw(number), grows)
                self._blocks[number].display = self._is_shown(number)

    def _follow_reasoning(self, new: Iterable[Step]) -> None:
        """Find reasoning again where new steps may change it: both tags end with `>`."""
        open_ = bool(self._reasoning) and not self._reasoning[-1].closed
        if open_ or any(CLOSING[-1] in step.text for step in new):
            self._reasoning = find_reasoning(step.text for step in self.steps)

    def _span_at(self, index: int) -> Reasoning | None:
        return next((span for span in self._reasoning if span.start <= index < span.end), None)

    def _blocks_of(self, span: Reasoning) -> set[int]:
        return set(range(self._block_of(span.start), self._block_of(span.end - 1) + 1))

    def _is_folded(self, span: Reasoning) -> bool:
        within = self.cursor is not None and span.start <= self.cursor < span.end
        return span.start not in self._unfolded and not within

    def _fold(self, span: Reasoning, folded: bool) -> None:
        if folded:
            self._unfolded.discard(span.start)
        else:
            self._unfolded.add(span.start)
        self._redraw(self._blocks_of(span))
        self._draw_markdown()

    def _is_shown(self, number: int) -> bool:
        """Return whether something of a block is visible: not all of it is folded."""
        start, end = [*self._starts, len(self.steps)][number : number + 2]
        span = self._span_at(start)
        folded = span is not None and span.start < start and end <= span.end
        return self._markdown is None and not (folded and span and self._is_folded(span))

    def _draw(self, number: int) -> Content:
        start, end = [*self._starts, len(self.steps)][number : number + 2]
        parts = (part for index in range(start, end) for part in self._draw_step(index))
        content = Content.assemble(*parts)
        last_block = number == len(self._starts) - 1
        return content if last_block else content.rstrip("\n")

    def _draw_step(self, index: int) -> Iterator[tuple[str, Style]]:
        """Yield a token; those of reasoning are dim or nothing, with a line before the first."""
        span = self._span_at(index)
        if span is None:
            yield self._draw_token(index)
            return
        folded = self._is_folded(span)
        if index == span.start:
            yield self._headline(span, folded), REASONING + Style.from_meta({"reasoning": index})
        if not folded:
            text, style = self._draw_token(index)
            yield text, style + REASONING

    def _headline(self, span: Reasoning, folded: bool) -> str:
        count = span.end - span.start
        name = "reasoning:" if span.closed else "reasoning …"
        line = f"{'▸' if folded else '▾'} {name} {count} token{'s' if count > 1 else ''}"
        following = self._neighbour(span.end)
        breaks = folded and following is not None and following.text.startswith("\n")
        return line if breaks else f"{line}\n"

    def _draw_token(self, index: int) -> tuple[str, Style]:
        step, strategy = self.steps[index], self.strategies[index]
        previous, following = self._neighbour(index - 1), self._neighbour(index + 1)
        colouring = Colouring.STRATEGY if self._previewed else self._colouring
        shaded = index < len(self._shades)
        style = self._shades[index] if shaded else token_style(step, strategy, colouring)
        style += Style.from_meta({"step": index})
        if strategy is not step.strategy:
            style += CHANGED
        glyph = SWATCHES[strategy].glyph if self._marks else ""
        text = marked(printable(step.text), step, previous, following, glyph)
        if index == self.cursor:
            return (text or "∅", style + CURSOR)
        return (text, style)

    def _neighbour(self, index: int) -> Step | None:
        return self.steps[index] if 0 <= index < len(self.steps) else None


class TokenBlock(Static):
    """Some lines of an answer, of which only those that change are drawn again."""

    def __init__(self, content: Content = EMPTY, grows: bool = False) -> None:
        super().__init__()
        self._content = content
        self._lines: list[Content] = []
        if grows:
            self.styles.min_height = RESERVED

    @property
    def visual(self) -> Content:
        return self._content

    def render(self) -> Content:
        return self._content

    def show(self, content: Content, grows: bool = False) -> None:
        """Show other content; the screen is laid out again only for another number of lines.

        Content that grows may end with empty lines, reserved for more tokens.
        """
        width, height = self.content_size.width, self.content_size.height
        known, self._lines = self._lines, content.wrap(width) if width else []
        self._content = content
        lines = len(self._lines)
        if grows and lines > 1 and not self._lines[-1]:
            lines -= 1  # a line has just ended; whether there is another one is not known yet
        room = -(-lines // RESERVED) * RESERVED if grows else lines
        if not width or height != room:
            self.styles.min_height = room if room > lines else None
            self.refresh(layout=True)
            return
        pairs = itertools.zip_longest(self._lines, known)
        changed = [
            y for y, (new, old) in enumerate(pairs) if not (new and old and new.is_same(old))
        ]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))
