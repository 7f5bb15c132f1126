"""What may be meant by what is being typed: commands after a slash, files after an @."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from entropix_mlx.chat.attachments import matching
from entropix_mlx.chat.slash import completions

MOST_LINES = 8


def candidates(text: str) -> list[tuple[str, str]]:
    """Return what a text that is being typed could be continued to, each with its explanation."""
    if commands := completions(text):
        return [(command.name, f"{command.argument}  {command.help}") for command in commands]
    before, at, name = text.rpartition("@")
    if not at or any(c.isspace() for c in name) or (before and not before[-1].isspace()):
        return []
    return [(f"{before}@{path}", "") for path in matching(name)]


class Hints(Static):
    """Lists them above the field; hidden while there are none."""

    DEFAULT_CSS = """
    Hints { display: none; height: auto; padding: 0 2; background: $surface; color: $text-muted; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._found: list[tuple[str, str]] = []
        self._taken: str | None = None  # the candidate that stands in the field
        self._number = 0

    def follow(self, text: str) -> None:
        """List what a text may become, unless it is a candidate that was just taken."""
        if text == self._taken:
            return
        self._taken, self._number = None, 0
        found = candidates(text)
        if found != self._found:
            self._found = found
            self.display = bool(found)
            self._draw()

    def take(self) -> str | None:
        """Return the next candidate, to stand in the field; None if there is none."""
        if not self._found:
            return None
        self._taken = self._found[self._number % len(self._found)][0]
        self._number += 1
        self._draw()
        return self._taken

    def clear(self) -> None:
        """Hide the list."""
        self._found, self._taken = [], None
        self.display = False

    def _draw(self) -> None:
        first = max(0, self._number - MOST_LINES)
        lines = []
        for name, told in self._found[first : first + MOST_LINES]:
            shown = name.rpartition("@")[2] if "@" in name else name
            line = Content.styled(f"{shown:<12}", "bold") + Content(f" {told}")
            lines.append(line.stylize("reverse") if name == self._taken else line)
        more = len(self._found) - first - MOST_LINES
        lines += [Content(f"… {more} more")] if more > 0 else []
        lines += [Content("Tab takes one")] if self._taken is None else []
        self.update(
            Content("\n").join(
                line.truncate(max(8, self.app.size.width - 6), ellipsis=True) for line in lines
            )
        )
