"""An answer: its tokens, coloured by strategy, in blocks; or as Markdown.

The reasoning of a model is folded into one line, until it is clicked or the cursor is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import events
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.style import Style

from entropix_mlx.chat.finding import CLOSING, Reasoning, find_reasoning, quoted
from entropix_mlx.palette import SWATCHES
from entropix_mlx.records import printable
from entropix_mlx.step import Step, Strategy

from ..drawing import Drawn
from ..styles import CHANGED, CURSOR, REASONING, Colouring, marked, token_style

if TYPE_CHECKING:
    from textual.widgets import Markdown

BLOCK_TOKENS = 60
"""A block ends with the first line that ends after so many tokens: only the last one is redrawn."""
LONGEST_BLOCK = 400
"""Where no line ends, a block ends after so many."""
RESERVED = 4
"""A block that grows takes so many lines at once: layout costs more than drawing a token."""


class AnswerView(Vertical):
    """The tokens of an answer."""

    @dataclass
    class TokenPointed(Message):
        """The user points at a token, or clicks on it."""

        answer: AnswerView
        index: int
        clicked: bool

    DEFAULT_CSS = "AnswerView, AnswerView Markdown { height: auto; }"

    def __init__(self, steps: Iterable[Step], colouring: Colouring) -> None:
        super().__init__()
        self.steps: list[Step] = list(steps)
        self.strategies: list[Strategy] = [step.strategy for step in self.steps]
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
        self.reasoning = find_reasoning(step.text for step in self.steps)
        self._unfolded: set[int] = set()  # spans of reasoning, by their first steps

    def on_mount(self) -> None:
        self._draw_from(0)

    @property
    def text(self) -> str:
        return "".join(step.text for step in self.steps)

    def append(self, steps: Iterable[Step]) -> None:
        """Add steps, and draw the last block and what comes after it."""
        new = list(steps)
        self.strategies += [step.strategy for step in new]
        self.steps += new
        self._growing = bool(new) and new[-1].finish_reason is None
        known = self.reasoning
        self._follow_reasoning(new)
        begun = [span.start for span in self.reasoning] != [span.start for span in known]
        self._draw_from(0 if begun else max(0, len(self._starts) - 1))
        if self.reasoning != known:  # the line above it counts its tokens
            self._redraw([self._block_of(self.reasoning[-1].start)])
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
    def shows_reasoning(self) -> bool:
        return bool(self._unfolded)

    def fold(self, folded: bool) -> None:
        for span in self.reasoning:
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
        before = self._content(self._starts[number], index + 1)
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

    async def show_markdown(self, shown: bool) -> None:
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
        for span in self.reasoning:
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

    def _draw_from(self, block: int) -> None:
        """Divide the steps into blocks again, from one of them on, and draw these."""
        self._starts = [*self._starts[: block + 1], *self._later_starts(block)]
        for surplus in self._blocks[len(self._starts) :]:
            surplus.remove()
        missing = [TokenBlock() for _ in self._starts[len(self._blocks) :]]
        self._blocks = self._blocks[: len(self._starts)] + missing
        self.mount_all(missing)
        self._redraw(range(block, len(self._starts)))

    def _later_starts(self, block: int) -> Iterator[int]:
        """Yield the first step of each block after this one; none crosses a border of reasoning."""
        borders = {border for span in self.reasoning for border in (span.start, span.end)}
        start = self._starts[block] if self._starts else 0
        if self.steps and not self._starts:
            yield 0
        for index in range(start + 1, len(self.steps)):
            length = index - start
            ends = length >= BLOCK_TOKENS and self.steps[index - 1].text.endswith("\n")
            if index in borders or ends or length >= LONGEST_BLOCK:
                start = index
                yield start

    def _block_of(self, index: int) -> int:
        return next(n for n in reversed(range(len(self._starts))) if self._starts[n] <= index)

    def _redraw(self, blocks: Iterable[int]) -> None:
        for number in blocks:
            grows = self._growing and number == len(self._starts) - 1
            self._blocks[number].show(self._draw(number), RESERVED if grows else 1)
            self._blocks[number].display = self._is_shown(number)

    def _follow_reasoning(self, new: Iterable[Step]) -> None:
        """Find reasoning again where new steps may change it: both tags end with `>`."""
        open_ = bool(self.reasoning) and not self.reasoning[-1].closed
        if open_ or any(CLOSING[-1] in step.text for step in new):
            self.reasoning = find_reasoning(step.text for step in self.steps)

    def _span_at(self, index: int) -> Reasoning | None:
        return next((span for span in self.reasoning if span.start <= index < span.end), None)

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
        """Return whether something of a block is visible: of folded reasoning, the first one."""
        start = self._starts[number]
        span = self._span_at(start)
        hidden = span is not None and start > span.start and self._is_folded(span)
        return self._markdown is None and not hidden

    def _draw(self, number: int) -> Content:
        start, end = [*self._starts, len(self.steps)][number : number + 2]
        last = number == len(self._starts) - 1
        content = self._content(start, end)
        return content if last else content.rstrip("\n")

    def _content(self, start: int, end: int) -> Content:
        """Return the tokens of a block; those of reasoning are dim or nothing, below a line."""
        span, parts = self._span_at(start), [self._draw_token(n) for n in range(start, end)]
        if span is not None:
            folded = self._is_folded(span)
            parts = [] if folded else [(text, style + REASONING) for text, style in parts]
            if start == span.start:
                style = REASONING + Style.from_meta({"reasoning": start})
                parts.insert(0, (self._headline(span, folded), style))
        elif start and parts and self._span_at(start - 1):  # on a line of its own anyway
            parts[0] = parts[0][0].removeprefix("\n"), parts[0][1]
        return Content.assemble(*parts)

    def _headline(self, span: Reasoning, folded: bool) -> str:
        count = span.end - span.start
        name = "reasoning:" if span.closed else "reasoning …"
        line = f"{'▸' if folded else '▾'} {name} {count} token{'s' if count > 1 else ''}"
        return line if folded else f"{line}\n"

    def _draw_token(self, index: int) -> tuple[str, Style]:
        step, strategy = self.steps[index], self.strategies[index]
        previous, following = self._neighbour(index - 1), self._neighbour(index + 1)
        colouring = Colouring.STRATEGY if self._previewed else self._colouring
        shaded = index < len(self._shades)
        style = self._shades[index] if shaded else token_style(step, strategy, colouring)
        style += Style.from_meta({"step": index})
        if strategy is not step.strategy:
            style += CHANGED
        glyph = SWATCHES[strategy].glyph if colouring is Colouring.GLYPHS else ""
        text = marked(printable(step.text), step, previous, following, glyph)
        if index == self.cursor:
            return (text or "∅", style + CURSOR)
        return (text, style)

    def _neighbour(self, index: int) -> Step | None:
        return self.steps[index] if 0 <= index < len(self.steps) else None


class TokenBlock(Drawn):
    """Some lines of an answer."""

    ALLOW_SELECT = True
    DEFAULT_CSS = "TokenBlock { height: auto; text-wrap: wrap; text-overflow: fold; }"
