"""The conversation: questions and answers, and a cursor over the tokens of the answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Static, TextArea

from entropix_mlx.chat.conversation import Conversation, Turn
from entropix_mlx.palette import printable
from entropix_mlx.step import AttentionMap, Step

from ..containers import AutoScroll, Column
from ..help_text import Welcome
from ..styles import Colouring, looked_at, notable
from .answer import AnswerView
from .form import form


class TurnView(Column):
    """A question and the answer that is selected."""

    DEFAULT_CSS = """
    TurnView { height: auto; max-width: 102; padding: 0 1 1 1; }
    TurnView .question { color: $text; text-style: bold; padding-bottom: 1; }
    TurnView .siblings { color: $text-muted; }
    TurnView .form { padding-top: 1; }
    """

    def __init__(self, turn: Turn, marks: bool, colouring: Colouring) -> None:
        super().__init__()
        self.turn = turn
        self.answer = AnswerView(turn.answer.steps if turn.answers else (), marks, colouring)
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
        """Show the fields of a structured answer that has ended."""
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
            alike = len(self.turn.agreeing)
            agree = f", {alike} agree" if alike > 1 else ""
            which = f"answer {number} of {count}{agree}: [ and ] switch, F8 lists them"
            yield Static(Content(which), classes="siblings")

    def shows(self, turn: Turn) -> bool:
        mine = (self.turn.question, self.turn.selected, len(self.turn.answers))
        steps = turn.answer.steps if turn.answers else []
        return (
            mine == (turn.question, turn.selected, len(turn.answers)) and self.answer.steps == steps
        )


class ForwardsTyping(Widget):
    """Forwards text that is typed or pasted here to a field, unless it is a key of the screen.

    To be mixed in after another widget's class: Textual looks for styles along the first base.
    """

    WORD_SECONDS: ClassVar[float] = 0.8
    """Letters that follow one another so soon are of one word."""

    field: TextArea | None = None
    """Takes the text, if there is such a widget."""
    _word = ""  # the letters that have followed one another
    _typed_at = 0.0  # the last of them

    def on_key(self, event: events.Key) -> None:
        """Move a word to the field at its first letter that is no key here.

        The letters before it in the word go there as well, though each of them was a key.
        """
        character = event.character
        if self.field is None or character is None or not event.is_printable:
            self._word = ""
            return
        goes_on = event.time - self._typed_at < self.WORD_SECONDS
        self._word = (self._word if goes_on else "") + character
        self._typed_at = event.time
        key = self.screen.active_bindings.get(event.key)
        # Several keys may have come before the field had the focus.
        if key is None or not key.enabled or not self.has_focus:
            event.stop()
            event.prevent_default()
            self._forward(character if _repeated(self._word[:-1]) else self._word)

    def on_paste(self, event: events.Paste) -> None:
        if self.field is not None:
            event.stop()
            self._forward(event.text)

    def _forward(self, text: str) -> None:
        self._word = ""
        if self.field is not None:
            start, end = self.field.selection
            self.field.replace(text, start, end, maintain_selection_offset=False)
            self.screen.set_focus(self.field)


def _repeated(letters: str) -> bool:
    """Return whether one letter was pressed again and again, which is no word."""
    return len(letters) > 1 and len(set(letters)) == 1


class Newest(Static):
    """The last line of a text that was scrolled up: the newest token is below."""

    DEFAULT_CSS = """
    Newest { dock: bottom; height: 1; padding: 0 1; display: none; background: $panel;
        text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def on_click(self) -> None:
        if isinstance(self.parent, Transcript):
            self.parent.go_to_end()


class Transcript(AutoScroll, ForwardsTyping, can_focus=True):
    """The conversation; the cursor keys go from token to token."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "left", "move(-1)", "Move", id="transcript.left", key_display="← →",
            tooltip="Another token",
        ),
        Binding("right", "move(1)", "Next token", id="transcript.right", show=False),
        Binding("home", "move(-100000)", "First token", id="transcript.first", show=False),
        Binding("end", "move(100000)", "Last token", id="transcript.last", show=False),
        Binding(
            "up", "alternative(-1)", "Choose", id="transcript.up", key_display="↑ ↓",
            tooltip="Another alternative",
        ),
        Binding("down", "alternative(1)", "Next", id="transcript.down", show=False),
        Binding(
            "less_than_sign", "panel(-1)", "Scroll panel", id="transcript.panelup", show=False,
            key_display="< >", tooltip="Scroll the side panel",
        ),
        Binding(
            "greater_than_sign", "panel(1)", "Panel down", id="transcript.paneldown", show=False
        ),
        Binding(
            "tab", "app.leave_tokens", "Go back", id="transcript.leave",
            tooltip="Back to the question",
        ),
        Binding(
            "n", "mark(1)", "Next fork", id="transcript.next_mark", key_display="n N",
            tooltip="Next or previous fork, thought or resampled token",
        ),
        Binding("N", "mark(-1)", "Previous fork", id="transcript.previous_mark", show=False),
        Binding(
            "f,enter", "app.fork", "Continue from here", id="transcript.fork", key_display="f",
            tooltip="Continue from here with the alternative",
        ),
        Binding(
            "b", "app.distribution", "Show draw", id="transcript.distribution",
            tooltip="Draw: probabilities before and after the sampler's steps",
        ),
        Binding(
            "v", "app.attention", "Show attention", id="transcript.attention",
            tooltip="Attention: what the token looked at, in question and answer",
        ),
        Binding(
            "right_curly_bracket", "app.turn_attention(1, 0)", "Layer", show=False,
            id="transcript.layer", key_display="{ }", tooltip="Attention of one layer, or of all",
        ),
        Binding(
            "left_curly_bracket", "app.turn_attention(-1, 0)", "Layer", show=False,
            id="transcript.layer_before",
        ),
        Binding(
            "right_parenthesis", "app.turn_attention(0, 1)", "Head", show=False,
            id="transcript.head", key_display="( )", tooltip="Attention of one head, or of all",
        ),
        Binding(
            "left_parenthesis", "app.turn_attention(0, -1)", "Head", show=False,
            id="transcript.head_before",
        ),
        Binding(
            "left_square_bracket", "app.sibling(-1)", "Switch answer", id="transcript.previous",
            key_display="[ ]", tooltip="Another of the answers",
        ),
        Binding(
            "right_square_bracket", "app.sibling(1)", "Next", id="transcript.next", show=False
        ),
        Binding(
            "g", "marks", "Show glyphs", id="transcript.marks",
            tooltip="Glyphs: a glyph before each token",
        ),
        Binding(
            "c", "colours", "Change colours", id="transcript.colours",
            tooltip="Colours: of the strategy, of the surprise, or none",
        ),
        Binding(
            "ctrl+u", "app.unsure", "List least sure", id="transcript.unsure",
            tooltip="Least sure: the tokens with the lowest probability; Enter goes there",
        ),
        Binding(
            "t", "reasoning", "Unfold reasoning", id="transcript.reasoning",
            tooltip="Reasoning: unfold the reasoning of a model",
        ),
        Binding("y", "copy", "Copy", id="transcript.copy", tooltip="Copy answer: the last answer"),
    ]  # fmt: skip

    @dataclass
    class CursorMoved(Message):
        """Another token is under the cursor, or none."""

        step: Step | None

    @dataclass
    class AlternativeMoved(Message):
        """The user selects another alternative."""

        by: int

    @dataclass
    class PageTurned(Message):
        """The user turns the page of the inspector."""

        by: int

    class ColouringChanged(Message):
        """The colours of tokens show something else."""

    colouring: reactive[Colouring] = reactive(Colouring.STRATEGY, init=False)
    """What the user wants colours to show."""
    focus_mode: reactive[bool] = reactive(False, init=False)
    """No colours, but H as an underline."""
    _left_end = False  # the user has scrolled up

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._turns: list[TurnView] = []
        self._marks = False
        self._markdown = False
        self.cursor: int | None = None
        self._turn: int | None = None  # that of the cursor
        self._shaded: TurnView | None = None
        self._newest = Newest("↓ newer text below · Ctrl+End goes there")
        self.welcome: Welcome | None = None
        """Shown while there is no turn; to be set before this is on the screen."""

    def compose(self) -> ComposeResult:
        yield self._newest
        if self.welcome is not None:
            yield self.welcome

    def on_resize(self) -> None:
        self.mark_newest()

    @property
    def follows_end(self) -> bool:
        """Whether there is a conversation: the card of an empty chat stands at its top."""
        return bool(self._turns)

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
        """The steps of the answer in which the cursor is, or else of the last one."""
        return self.answer.steps if self.answer is not None else []

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
        looks = self._marks, self.shown_colouring
        new = [TurnView(turn, *looks) for turn in conversation.turns[common:]]
        self._turns = self._turns[:common] + new
        await self.mount_all(new)
        if new and self.show_vertical_scrollbar:  # wherever the user had scrolled to
            self.anchor()
        if self._markdown:
            await self.show_markdown(True)

    @property
    def has_notable(self) -> bool:
        return any(notable(turn.answer.steps) for turn in self._turns)

    def append(self, steps: list[Step]) -> None:
        if self.last_answer is not None:
            self.last_answer.append(steps)
            self._turns[-1].show_form()

    async def show_markdown(self, shown: bool) -> None:
        self._markdown = shown
        for turn in self._turns:
            await turn.answer.show_markdown(shown)

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

    def action_move(self, by: int) -> None:
        """Move the cursor by some tokens, also to other answers; at first it marks the last one."""
        if self.cursor is None:
            turns = [n for n, view in enumerate(self._turns) if view.answer.steps]
            if turns:
                self.point(len(self._turns[turns[-1]].answer.steps) - 1, True, turns[-1])
            if self.cursor is None or abs(by) == 1:
                return
        target, step = self.cursor + by, 1 if by > 0 else -1
        beyond = self.answer is not None and not 0 <= target < len(self.answer.steps)
        if beyond and abs(by) == 1:
            others = range(self.turn + step, len(self._turns) if step > 0 else -1, step)
            for turn in others:
                if self._turns[turn].answer.steps:
                    self.point(0 if step > 0 else 10**9, True, turn)
                    return
        self.point(target, follow=True)

    def action_mark(self, by: int) -> None:
        """Go to the next token that stands out, or to the one before; at the end, begin again."""
        marks = [
            (turn, index)
            for turn, view in enumerate(self._turns)
            for index in notable(view.answer.steps)
        ]
        here = (self.turn, len(self.answer.steps) if self.answer else 0)
        if self.cursor is not None:
            here = (self.turn, self.cursor)
        ahead = [mark for mark in marks if (mark > here if by > 0 else mark < here)]
        around = [mark for mark in marks if mark[0] == self.turn]
        if not ahead and not around:
            self.notify("no fork, thought or resampled token here")
            return
        turn, index = (ahead or around)[0 if by > 0 else -1]
        self.point(index, True, turn)

    def action_alternative(self, by: int) -> None:
        """Move over the alternatives, or scroll while there is no cursor."""
        if self.cursor is None:
            self.scroll_relative(y=by, animate=False)
        else:
            self.post_message(self.AlternativeMoved(by))

    def action_panel(self, by: int) -> None:
        self.post_message(self.PageTurned(by))

    def page(self, by: int) -> None:
        """Scroll by a page; at the end, follow the text again."""
        if by < 0:
            self.release_anchor()
        self.scroll_relative(y=by * max(1, self.size.height - 1), animate=False)

    def go_to_end(self) -> None:
        self.anchor(self.show_vertical_scrollbar)

    def release_anchor(self) -> None:
        super().release_anchor()
        self._left_end = True

    @property
    def text_height(self) -> int:
        """The lines that the conversation takes; 0 without an answer."""
        answered = self._turns and self._turns[-1].answer.steps
        return self._turns[-1].virtual_region.bottom + self.gutter.height if answered else 0

    def mark_newest(self) -> None:
        """Say that there is text below where the user has scrolled up."""
        below = self.max_scroll_y - self.scroll_y
        self._left_end = self._left_end and below > 0
        self._newest.display = self._left_end and below > 1

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.mark_newest()

    def action_marks(self) -> None:
        self._marks = not self._marks
        for turn in self._turns:
            turn.answer.show_marks(self._marks)

    @property
    def shown_colouring(self) -> Colouring:
        return Colouring.UNDERLINE if self.focus_mode else self.colouring

    def action_colours(self) -> None:
        if self.focus_mode:
            self.notify("the focus mode shows no colours: Ctrl+B leaves it")
        else:
            self.colouring = self.colouring.following

    def watch_colouring(self) -> None:
        for turn in self._turns:
            turn.answer.show_colouring(self.shown_colouring)
        self.post_message(self.ColouringChanged())

    watch_focus_mode = watch_colouring

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
