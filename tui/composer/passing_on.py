"""A widget whose keys are letters, beside a field: a sentence that is typed there is no key."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.widget import Widget
from textual.widgets import TextArea


class PassesOn(Widget):
    """Passes on to a field what is typed or pasted here and is no key of the screen.

    To be mixed in after another widget's class: Textual looks for styles along the first base.
    """

    WORD_SECONDS: ClassVar[float] = 0.8
    """Letters that follow one another so soon are of one word."""

    field: TextArea | None = None
    """Where texts are typed, if there is such a place."""
    _word = ""  # the letters that have followed one another
    _typed_at = 0.0  # the last of them

    def on_key(self, event: events.Key) -> None:
        """Let a word go on in the field from the first letter that is no key here.

        The letters before it in the word go there as well, though each of them was taken for a key.
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
            self._pass_on(character if _hops(self._word[:-1]) else self._word)

    def on_paste(self, event: events.Paste) -> None:
        """Let what is pasted here go into the field."""
        if self.field is not None:
            event.stop()
            self._pass_on(event.text)

    def _pass_on(self, text: str) -> None:
        """Put a text where the cursor of the field is, and go there."""
        self._word = ""
        if self.field is not None:
            start, end = self.field.selection
            self.field.replace(text, start, end, maintain_selection_offset=False)
            self.screen.set_focus(self.field)


def _hops(letters: str) -> bool:
    """Tell whether one letter was pressed again and again, which is no word."""
    return len(letters) > 1 and len(set(letters)) == 1
