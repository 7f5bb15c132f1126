"""The conversation: questions and answers, and a cursor over the tokens of the answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.geometry import Region
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Static

from entropix_mlx.chat.conversation import Conversation, Turn
from entropix_mlx.records import printable
from entropix_mlx.step import AttentionMap, Step

from ..help_text import COLOURINGS, Welcome
from ..keys import bind
from ..styles import Colouring, least_sure, looked_at, notable
from .answer import AnswerView
from .form import form


class TurnView(Vertical):
    """A question and the answer that is selected."""

    DEFAULT_CSS = """
    TurnView { height: auto; max-width: 102; padding: 0 1 1 1; }
    TurnView .question { color: $text; text-style: bold; padding-bottom: 1; }
    TurnView .siblings { color: $text-muted; }
    TurnView .form { padding-top: 1; }
    """

    def __init__(self, turn: Turn, colouring: Colouring) -> None:
        super().__init__()
        self.turn = turn
        self.answer = AnswerView(turn.answer.steps if turn.answers else (), colouring)
        self._form = Static(classes="form")
        self._question = Static(classes="question")
        self.shade(None)

    def on_mount(self) -> None:
        self.show_form()

    def shade(self, attention: AttentionMap | None, shares: Sequence[float] = ()) -> None:
        """Shade question and answer by a token's shares of attention; None ends that."""
        self.answer.shade(looked_at(shares)[attention.prompt :] if attention else ())
        content = Content(f"❯ {printable(self.turn.question)}")
        asked = self.turn.question.strip()
        before = attention.texts[: attention.prompt] if attention else ()
        # As whole words: "a" is not the one in the template's "assistant".
        found = re.finditer(rf"(?<!\w){re.escape(asked)}(?!\w)", "".join(before))
        for last in [*found][-1:]:
            shift = content.plain.index(printable(asked)) - last.start()
            end = 0
            for text, style in zip(before, looked_at(shares), strict=False):
                begin, end = max(end, last.start()), end + len(text)
                if begin < min(end, last.end()):
                    content = content.stylize(style, begin + shift, min(end, last.end()) + shift)
        self._question.update(content)

    def show_form(self) -> None:
        content = form(self.answer.steps)
        if content or self._form.display:  # an update lays the screen out again
            self._form.update(content)
            self._form.display = bool(content)

    def compose(self) -> ComposeResult:
        yield self._question
        yield self.answer
        yield self._form
        if len(self.turn.answers) > 1:
            number, count = self.turn.selected + 1, len(self.turn.answers)
            which = f"answer {number} of {count}: [ and ] switch, a lists them"
            yield Static(Content(which), classes="siblings")

    def shows(self, turn: Turn) -> bool:
        mine = (self.turn.question, self.turn.selected, len(self.turn.answers))
        steps = turn.answer.steps if turn.answers else []
        return (
            mine == (turn.question, turn.selected, len(turn.answers)) and self.answer.steps == steps
        )


class Newest(Static):
    """The last line of a text that was scrolled up: the newest token is below."""

    DEFAULT_CSS = """
    Newest { dock: bottom; height: 1; padding: 0 1; display: none; background: $panel;
        text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def on_click(self) -> None:
        if isinstance(self.parent, Transcript):
            self.parent.go_to_end()


class Transcript(VerticalScroll, can_focus=True):
    """The conversation; the cursor keys go from token to token."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("transcript.leave", "tab", "app.focus('composer')", "Back", footer=True),
        bind("transcript.left", "left", "move(-1)", "Move", shown="← →", footer=True),
        bind("transcript.right", "right", "move(1)"),
        bind("transcript.up", "up", "app.alternative(-1)", "Choose", shown="↑ ↓", footer=True),
        bind("transcript.down", "down", "app.alternative(1)"),
        bind("transcript.fork", "enter", "app.fork", "Continue with it", footer=True),
        bind("transcript.next_mark", "n", "mark(1)", "Next unsure place",
             "a token that was hardly probable, a fork, a thought", shown="n N", footer=True),
        bind("transcript.previous_mark", "N", "mark(-1)"),
        bind("transcript.distribution", "b", "app.distribution", "Draw",
             "probabilities before and after the sampler's steps", footer=True),
        bind("transcript.attention", "v", "app.attention", "Attention",
             "what the token looked at, in question and answer", footer=True),
        bind("transcript.colours", "c", "colours", "Colours",
             "strategy, surprise, none, H as an underline, or glyphs", footer=True),
        bind("transcript.previous", "left_square_bracket", "app.sibling(-1)", "Other answer",
             shown="[ ]", footer=True),
        bind("transcript.next", "right_square_bracket", "app.sibling(1)"),
        bind("transcript.answers", "a", "app.answers", "All answers", "with their scores"),
        bind("transcript.reasoning", "t", "reasoning", "Reasoning", "fold or unfold", footer=True),
        bind("transcript.edit", "e", "app.edit", "Edit question", "change and resend the last one"),
        bind("transcript.markdown", "m", "markdown", "Markdown", "in place of the tokens"),
        bind("transcript.copy", "y", "copy", "Copy answer", "the one with the cursor"),
        bind("transcript.theme", "T", "app.change_theme", "Theme", "colours of the screen"),
        bind("transcript.first", "ctrl+a,home", "end(0)", "First, last token",
             shown="Ctrl+A E"),
        bind("transcript.last", "ctrl+e,end", "end(1000000000)"),
        bind("transcript.pageup", "u", "page(-1)", "Scroll the text", shown="u d"),
        bind("transcript.pagedown", "d", "page(1)"),
        bind("transcript.panelup", "less_than_sign", "app.scroll_panel(-1)", "Scroll the panel",
             shown="< >"),
        bind("transcript.paneldown", "greater_than_sign", "app.scroll_panel(1)"),
    ]  # fmt: skip

    @dataclass
    class CursorMoved(Message):
        """Another token is under the cursor, or none."""

        step: Step | None

    colouring: reactive[Colouring] = reactive(Colouring.STRATEGY, init=False)
    """What the user wants colours to show."""
    _left_end = False  # the user has scrolled up

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._turns: list[TurnView] = []
        self._markdown = False
        self.cursor: int | None = None
        self._turn: int | None = None  # that of the cursor
        self._shaded: TurnView | None = None
        self._newest = Newest("↓ newer text below · Tab, then Ctrl+E goes there")
        self.welcome: Welcome | None = None
        """Shown while there is no turn; to be set before this is on the screen."""

    def compose(self) -> ComposeResult:
        yield self._newest
        if self.welcome is not None:
            yield self.welcome

    def on_resize(self) -> None:
        self.mark_newest()

    @property
    def is_empty(self) -> bool:
        return not self._turns

    def watch_show_vertical_scrollbar(self, shown: bool) -> None:
        """Follow the end of a text that is too long; the card of an empty chat stays at its top."""
        self.anchor(shown and not self.is_empty)

    @property
    def last_answer(self) -> AnswerView | None:
        return self._turns[-1].answer if self._turns else None

    @property
    def turn(self) -> int:
        """The turn in whose answer the cursor is; the last one without a cursor; −1 for none."""
        last = len(self._turns) - 1
        return last if self._turn is None else min(self._turn, last)

    @property
    def answer(self) -> AnswerView | None:
        """The answer in which the cursor is; without a cursor the last one."""
        return self._turns[self.turn].answer if self._turns else None

    @property
    def steps(self) -> list[Step]:
        return self.answer.steps if self.answer is not None else []

    @property
    def seed(self) -> int | None:
        turn = self._turns[self.turn].turn if self._turns else None
        return turn.answer.seed if turn is not None and turn.answers else None

    async def show(self, conversation: Conversation) -> None:
        """Show a conversation; turns that are shown already stay."""
        if self.welcome is not None:
            self.welcome.display = not conversation.turns
        if self.last_answer is not None:
            self.last_answer.settle()
        common = 0
        for view, turn in zip(self._turns, conversation.turns, strict=False):
            if not view.shows(turn):
                break
            common += 1
        if self.turn >= common:
            self.point(None)
        for view in self._turns[common:]:
            # Textual keeps the drawn lines of a thousand widgets, also of those that are gone.
            view.query().refresh()
            await view.remove()
        new = [TurnView(turn, self.colouring) for turn in conversation.turns[common:]]
        self._turns = self._turns[:common] + new
        await self.mount_all(new)
        if new and self.show_vertical_scrollbar:  # wherever the user had scrolled to
            self.anchor()
        self.can_focus = bool(self._turns)  # or Tab would go to nothing
        if self._markdown:
            await self._show_markdown()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        match action:
            case "move" | "end" | "mark" | "colours" | "copy" | "markdown":
                return bool(self.steps)
            case "reasoning":
                return self.answer is not None and bool(self.answer.reasoning)
        return True

    def point_at_least_sure(self) -> None:
        place = least_sure(self.steps)
        self.point(len(self.steps) - 1 if place is None else place, follow=True)

    def append(self, steps: list[Step]) -> None:
        if self.last_answer is not None:
            self.last_answer.append(steps)
            self._turns[-1].show_form()

    async def action_markdown(self) -> None:
        self._markdown = not self._markdown
        await self._show_markdown()

    async def _show_markdown(self) -> None:
        for turn in self._turns:
            await turn.answer.show_markdown(self._markdown)

    def point(self, index: int | None, follow: bool = False, turn: int | None = None) -> None:
        """Put the cursor on a token of a turn, by default the cursor's; None removes the cursor."""
        target = self.turn if turn is None else turn
        if not 0 <= target < len(self._turns):
            return
        answer = self._turns[target].answer
        if index is not None:
            if not answer.steps:
                return
            index = min(max(index, 0), len(answer.steps) - 1)
        if (index, target) == (self.cursor, self.turn):
            return
        if self.answer is not None and self.answer is not answer:
            self.answer.point(None)
        self.cursor, self._turn = index, None if index is None else target
        answer.point(index)
        if follow and index is not None:
            if index < len(answer.steps) - 1:
                self.release_anchor()  # or what is laid out next would scroll to the end
            self.call_after_refresh(self._show_cursor)
        self.post_message(self.CursorMoved(None if index is None else answer.steps[index]))

    def _show_cursor(self) -> None:
        if self.is_attached and self.cursor is not None and self.answer is not None:
            top = self._turns[self.turn].virtual_region.y + self.answer.virtual_region.y
            place = Region(0, top + self.answer.line_of(self.cursor), 1, 2)
            self.scroll_to_region(place, animate=False)

    def shade(self, attention: AttentionMap | None, shares: Sequence[float] = ()) -> None:
        """Shade the turn with the cursor by a token's attention, and no other one."""
        shaded, self._shaded = self._shaded, self._turns[self.turn] if attention else None
        if shaded in self._turns and shaded is not None and shaded is not self._shaded:
            shaded.shade(None)
        if self._shaded is not None:
            self._shaded.shade(attention, shares)

    def turn_of(self, answer: AnswerView) -> int | None:
        return next((n for n, view in enumerate(self._turns) if view.answer is answer), None)

    def show_question(self, turn: int) -> None:
        self.scroll_to_widget(self._turns[turn], top=True, animate=False)

    def _places(self, select: Callable[[Sequence[Step]], Iterable[int]]) -> list[tuple[int, int]]:
        return [
            (turn, index)
            for turn, view in enumerate(self._turns)
            for index in select(view.answer.steps)
        ]

    def action_move(self, by: int) -> None:
        """Move the cursor by some tokens, also to other answers; at first it marks the last one."""
        places = self._places(lambda steps: range(len(steps)))
        if places:
            target = last = len(places) - 1
            if self.cursor is not None:
                target = places.index((self.turn, self.cursor)) + by
            turn, index = places[min(max(target, 0), last)]
            self.point(index, True, turn)

    def action_end(self, index: int) -> None:
        """Go to the first or the last token of an answer."""
        self.point(index, follow=True)

    def action_mark(self, by: int) -> None:
        """Go to the next unsure place, or to the one before; at the end, begin again."""
        marks = self._places(notable)
        end = len(self.answer.steps) if self.answer else 0
        here = (self.turn, end if self.cursor is None else self.cursor)
        ahead = [mark for mark in marks if (mark > here if by > 0 else mark < here)]
        around = [mark for mark in marks if mark[0] == self.turn]
        if not ahead and not around:
            self.notify("no unsure place here")
            return
        turn, index = (ahead or around)[0 if by > 0 else -1]
        self.point(index, True, turn)

    def action_page(self, by: int) -> None:
        """Scroll by a page; at the end, follow the text again."""
        if by < 0:
            self.release_anchor()
        self.scroll_relative(y=by * max(1, self.size.height - 1), animate=False)

    def go_to_end(self) -> None:
        self.anchor(self.show_vertical_scrollbar)

    def release_anchor(self) -> None:
        super().release_anchor()
        self._left_end = True

    def mark_newest(self) -> None:
        """Say that there is text below where the user has scrolled up."""
        below = self.max_scroll_y - self.scroll_y
        self._left_end = self._left_end and below > 0
        self._newest.display = self._left_end and below > 1

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.mark_newest()

    def action_colours(self) -> None:
        self.colouring = self.colouring.following
        self.notify(COLOURINGS[self.colouring], timeout=2)

    def watch_colouring(self) -> None:
        for turn in self._turns:
            turn.answer.show_colouring(self.colouring)

    def action_reasoning(self) -> None:
        """Unfold the reasoning of all answers, or fold it where some is unfolded."""
        answers = [turn.answer for turn in self._turns]
        folded = any(answer.shows_reasoning for answer in answers)
        for answer in answers:
            answer.fold(folded)

    def action_copy(self) -> None:
        if self.answer is not None:
            self.app.copy_to_clipboard(self.answer.text)
            self.notify("copied")
