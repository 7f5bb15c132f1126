"""`entropix extract --review`: the unsure fields, one after the other, beside their documents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.coordinate import Coordinate
from textual.filter import LineFilter
from textual.widgets import DataTable, Footer, Input, Label, Static

from entropix_mlx.errors import OutputError
from entropix_mlx.extraction.review import Doubt, How, Review

from .styles import ReadableColours, grade
from .terminal import follow_terminal, take_any_bytes
from .transcript.form import shortened, value_line

MARKS = {How.ACCEPTED: "✓", How.TYPED: "✎", None: " "}
MOST_SHOWN = 20_000
"""Characters of a document that are shown."""
BEFORE = 400
"""Characters of a long document that are shown before the passage."""


class ReviewApp(App[None]):
    """A list of doubts, the document of the one that is pointed at, and a line for its value."""

    CSS = """
    DataTable { width: 1fr; min-width: 36; height: 1fr; }
    #beside { width: 1fr; height: 1fr; }
    Screen.-slim > Horizontal { layout: vertical; }
    Screen.-slim #document { border: none; }
    #document { height: 1fr; padding: 0 1; border: round $surface-lighten-2; }
    #about { padding: 0 1; height: auto; }
    #done { padding: 0 1; color: $text-muted; }
    """
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-slim"), (72, "-beside")]  # noqa: RUF012 - as Textual types it
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "accept", "Accept", priority=True),
        Binding("e", "edit", "Edit"),
        Binding("u", "undo", "Undo"),
        Binding("escape", "leave", "Back", show=False),
        Binding("q", "quit", "Quit"),  # Ctrl+Q is Textual's, also in a dialog
        *(Binding(str(key), f"candidate({key})", show=False) for key in range(1, 10)),
    ]

    def __init__(self, review: Review) -> None:
        super().__init__()
        take_any_bytes()
        self._readable = ReadableColours()
        self._review = review
        self._doubts = review.doubts

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield DataTable(cursor_type="row", zebra_stripes=True)
            with Vertical(id="beside"):
                with VerticalScroll(id="document"):
                    yield Static(id="text")
                yield Static(id="about")
                yield Input(compact=True, disabled=True, select_on_focus=False)
        yield Label(id="done")
        yield Footer()

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [self._readable, *super().get_line_filters()]

    def on_mount(self) -> None:
        follow_terminal(self)
        table = self._table
        table.add_columns("", "confidence", "field", "value", "document")
        for _ in self._doubts:
            table.add_row("", "", "", "", "")
        for number in range(len(self._doubts)):
            self._show_row(number)
        table.focus()
        first = next((n for n, one in enumerate(self._doubts) if not self._review.decision(one)), 0)
        table.move_cursor(row=first)
        self._show_doubt()

    def on_data_table_row_highlighted(self) -> None:
        self._show_doubt()

    def action_accept(self) -> None:
        field = self.query_one(Input)
        if self._doubt is None:
            return
        value = self._doubt.value if field.disabled else typed(field.value, self._doubt.value)
        self._decide(self._doubt, value)

    def action_edit(self) -> None:
        if self._doubt is not None:
            self._begin_typing(shown(self._doubt.value))

    def action_candidate(self, number: int) -> None:
        if self._doubt is not None and number <= len(self._doubt.candidates):
            self._begin_typing(self._doubt.candidates[number - 1].strip('"'))

    def action_leave(self) -> None:
        self._end_typing()

    def action_undo(self) -> None:
        undone = self._review.undo()
        if undone is None:
            return
        for number, doubt in enumerate(self._doubts):
            if (self._review.document(doubt), doubt.field) == (undone.document, undone.field):
                self._show_row(number)
                self._table.move_cursor(row=number)

    def _decide(self, doubt: Doubt, value: Any) -> None:
        try:
            self._review.decide(doubt, value)
        except OutputError as error:
            self.notify(str(error), severity="error")
            return
        self._end_typing()
        self._show_row(self._table.cursor_row)
        self._table.move_cursor(row=self._table.cursor_row + 1)
        self._show_doubt()

    def _begin_typing(self, text: str) -> None:
        field = self.query_one(Input)
        field.disabled, field.value = False, text
        field.focus()
        field.action_end()

    def _end_typing(self) -> None:
        field = self.query_one(Input)
        field.disabled, field.value = True, ""
        self._table.focus()

    @property
    def _table(self) -> DataTable[Any]:
        return self.query_one(DataTable)

    @property
    def _doubt(self) -> Doubt | None:
        row = self._table.cursor_row
        return self._doubts[row] if row < len(self._doubts) else None

    def _show_row(self, number: int) -> None:
        doubt = self._doubts[number]
        decision = self._review.decision(doubt)
        value = shown(decision.value if decision else doubt.value)
        mark = MARKS[decision.how if decision else None]
        sign, style = grade(doubt.confidence)
        confidence = Text(f"{sign} {doubt.confidence:.1%}", style.rich_style)
        texts = (mark, doubt.field, value, self._review.document(doubt))
        cells = [Text(text) for text in texts]
        cells.insert(1, confidence)
        for column, cell in enumerate(cells):
            self._table.update_cell_at(Coordinate(number, column), cell, update_width=True)

    def _show_doubt(self) -> None:
        doubt = self._doubt
        done = sum(self._review.decision(one) is not None for one in self._doubts)
        self.query_one("#done", Label).update(f"{done} of {len(self._doubts)} fields decided")
        if doubt is None:
            self.query_one("#text", Static).update("No field is unsure.")
            return
        self.query_one("#text", Static).update(around(self._review.text(doubt), doubt.passage))
        about = value_line(doubt.field, doubt.value, doubt.confidence)
        if doubt.copied:
            about = Content.assemble(about, "\ncopied from a worked example")
        if doubt.candidates:
            others = (f"{n} {shortened(text)}" for n, text in enumerate(doubt.candidates[:9], 1))
            about = Content.assemble(about, "\nit could have begun: ", "  ".join(others))
        self.query_one("#about", Static).update(about)


def around(text: str, passage: tuple[int, int] | None) -> Text:
    """Return a document with a passage marked; of a long one, what surrounds it."""
    begin = max(0, passage[0] - BEFORE) if passage else 0
    found = Text(text[begin : begin + MOST_SHOWN])
    if passage:
        found.stylize("bold reverse", passage[0] - begin, passage[1] - begin)
    return found


def shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def typed(text: str, value: Any) -> Any:
    """Return what was typed in place of a value: text for a text, otherwise JSON if it is any."""
    if isinstance(value, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
