"""How strategies look in a terminal: a colour each, safe for colour-blind readers, and a glyph."""

from __future__ import annotations

from typing import NamedTuple

from .step import Origin, Step, Strategy


class Look(NamedTuple):
    """A glyph, for where there is no colour, and a colour of the Okabe–Ito palette (RGB)."""

    glyph: str
    rgb: tuple[int, int, int]


LOOKS = {
    Strategy.ARGMAX: Look("●", (0, 158, 115)),
    Strategy.THINK: Look("◆", (204, 121, 167)),
    Strategy.THINK_SAMPLE: Look("◇", (204, 121, 167)),
    Strategy.BRANCH: Look("▲", (230, 159, 0)),
    Strategy.RESAMPLE: Look("■", (213, 94, 0)),
    Strategy.ADAPTIVE: Look("○", (86, 180, 233)),
    Strategy.SAMPLE: Look("·", (153, 153, 153)),
}

_CONTROL = (
    {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
    | {0x7F: 0x2421}
    | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)  # there are no symbols of these
)
_RESET = "\x1b[0m"
_UNDERLINE = "\x1b[4m"


def printable(text: str) -> str:
    """Return a text whose control characters are visible symbols: a terminal would obey them."""
    return text.translate(_CONTROL)


def paint(text: str, strategy: Strategy, underline: bool = False) -> str:
    """Return a text in a strategy's colour, by ANSI escapes."""
    red, green, blue = LOOKS[strategy].rgb
    line = _UNDERLINE if underline else ""
    return f"\x1b[38;2;{red};{green};{blue}m{line}{text}{_RESET}"


def paint_step(step: Step) -> str:
    """Return a step's text in its strategy's colour; inserted tokens are underlined."""
    if not step.text:
        return ""
    return paint(step.text, step.strategy, underline=step.origin is Origin.INSERTED)
