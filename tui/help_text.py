"""Texts that explain the screen: the measurements, each strategy, the marks, the empty chat."""

from __future__ import annotations

import math

from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from entropix_mlx.palette import (
    INTRODUCTION,
    LETTERS,
    MEANINGS,
    ORIGIN_MARKS,
    QUESTIONS,
    SWATCHES,
    printable,
)
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.profiles.tree import table
from entropix_mlx.step import Strategy
from entropix_mlx.traces.explain import SYMBOLS, spikiness

from .styles import COLOURS, STYLES, SURPRISES, UNDERLINES, Colouring

LONGEST = max(map(len, MEANINGS))
"""Cells of the longest name."""
SPACIOUS = 17
"""From so many lines on, the card of an empty chat has empty ones."""
ALTERNATIVES = (
    "Tab moves to the tokens; ← and → go from one to the next. Beside the text stand the"
    " alternatives that the model considered and the conditions that held (✓) or did not (✗), each"
    " with its distance; at a fork also the other branches, with their scores against the first"
    " in nats per token. ↑ and ↓ select one of these, and Enter or f continues from there. The old"
    " answer is kept: [ and ] switch between answers.\n"
    "Enter and f do nothing until ↑ or ↓ has selected an alternative. Text that is typed or pasted"
    " here goes to the question field, unless it is a key."
)
COLOURINGS = {
    Colouring.STRATEGY: "colours: strategy of the sampler",
    Colouring.SURPRISE: "colours: surprise, −log2 p",
    Colouring.NONE: "colours: none",
    Colouring.UNDERLINE: "focus: H as an underline; Ctrl+B leaves",
}
_MEASUREMENTS = (
    "Before each token, the model assigns a probability to every possible next token.\n"
    "H, the entropy, says how open the choice is: 0 bits is certain, 1 bit is a coin toss, 3 bits"
    " are like a choice among 8 equally probable tokens.\n"
    "V, the varentropy, says how uneven it is: low where the candidates are about equally"
    " probable, high where a few stand out from a long tail.\n"
    "The margin is the probability of the best token minus that of the second.\n"
    "The word beside H names the region of the map that H and V fall into."
)
_SPIKINESS = " V is called flat below {:.3g}, spiky from {:.3g} on, and uneven in between."


def measurements(profile: Profile) -> Content:
    """Return what H, V and the margin are, with the words and numbers of a profile."""
    borders = spikiness(profile)
    numbers = _SPIKINESS.format(*borders) if all(map(math.isfinite, borders)) else ""
    return Content(_MEASUREMENTS + numbers)


def conditions(profile: Profile) -> dict[Strategy, str]:
    """Return when each strategy of a profile is chosen: ``where H < 2.02, V < 6.43``."""
    return {row.strategy: _condition(row.bounds) for row in table(profile)}


def reachable(profile: Profile | None) -> frozenset[Strategy]:
    """Return the strategies that a profile can choose: no bound of theirs is infinite."""
    rows = table(profile) if profile else ()
    return frozenset(Strategy) - {row.strategy for row in rows if _impossible(row.bounds)}


def _impossible(bounds: dict[str, tuple[float, float]]) -> bool:
    return any(low == math.inf for low, _ in bounds.values())


def legend(profile: Profile, colouring: Colouring = Colouring.STRATEGY) -> Content:
    """Return what the colours, the marks and the letters of the screen mean, in short."""
    match colouring:
        case Colouring.STRATEGY:
            possible = reachable(profile)
            colours = [
                Content.styled(f"{SWATCHES[s].glyph} {state}: {deed}", COLOURS[s])
                for s, (state, deed) in MEANINGS.items()
                if s in possible
            ]
        case Colouring.SURPRISE:
            colours = [
                Content.styled(
                    f"{name}: −log2 p ≥ {least:.0f} bit{'s' if least > 1 else ''}", style
                )
                for least, name, style in SURPRISES
                if math.isfinite(least)
            ]
        case Colouring.UNDERLINE:
            colours = [
                Content.styled(f"{name}: H ≥ {least:g} bits", style)
                for least, name, style in UNDERLINES
                if math.isfinite(least)
            ]
        case Colouring.NONE:
            colours = [Content(COLOURINGS[colouring])]
    around = " · ".join(f"{first}{said}{last}" for first, last, said in ORIGIN_MARKS.values())
    return Content("\n").join([Content(" · ").join(colours), Content(around), Content(LETTERS)])


def strategies(profile: Profile | None = None, numbers: bool = True) -> Content:
    """Return the strategies of a profile in their styles: the state, the deed, and its numbers."""
    when = conditions(profile) if profile and numbers else {}
    lines = []
    for strategy, (state, deed) in MEANINGS.items():
        if strategy not in reachable(profile):
            continue
        name = Content.styled(f"{SWATCHES[strategy].glyph} {strategy:<{LONGEST}}", STYLES[strategy])
        lines.append(name + Content(f" {state}: {deed}"))
        thinks = numbers and strategy is Strategy.THINK
        more = [when.get(strategy), _thought(profile) if thinks else ""]
        lines += [Content(f"{'':{LONGEST + 3}}{text}") for text in more if text]
    return Content("\n").join(lines)


def _thought(profile: Profile | None) -> str:
    """Return the thinking texts of a profile that can be read."""
    if profile is None:
        return ""
    texts = profile.think.text if isinstance(profile.think.text, list) else [profile.think.text]
    shown = [printable(text).strip() for text in texts if isinstance(text, str)]
    quoted = ", ".join(f"“{text}”" for text in shown if text)
    return f"its text: {quoted}" if quoted else ""


def marks() -> Content:
    lines = (f"{first}{said}{last}" for first, last, said in ORIGIN_MARKS.values())
    return Content("\n".join(lines))


def _condition(bounds: dict[str, tuple[float, float]]) -> str:
    if not bounds:
        return "everywhere else"
    if _impossible(bounds):
        return "nowhere, in this profile"
    parts = []
    for name, (low, high) in bounds.items():
        symbol = SYMBOLS.get(name, name)
        parts += [f"{symbol} > {low:.3g}"] if low > -math.inf else []
        parts += [f"{symbol} < {high:.3g}"] if high < math.inf else []
    return "where " + ", ".join(parts)


class Welcome(Static):
    """The card of an empty chat: what the colours mean, and questions to begin with."""

    DEFAULT_CSS = "Welcome { width: auto; max-width: 100%; height: auto; padding: 0 1; }"

    def fit(self, lines: int, profile: Profile) -> None:
        """Draw the card for so many lines, with the strategies that a profile can choose."""
        self.update(_draw_card(profile, spacious=lines >= SPACIOUS))


def _draw_card(profile: Profile, spacious: bool) -> Content:
    bold = Style(bold=True)
    questions = "\n".join(f" {n}  {question}" for n, question in enumerate(QUESTIONS, 1))
    gap = [Content()] if spacious else []
    lines = [
        Content.styled(INTRODUCTION[0], bold),
        Content(INTRODUCTION[1]),
        strategies(profile, numbers=False),
        *gap,
        Content.styled("Ask something, or press a number, then Enter", bold),
        Content(questions),
        *gap,
        Content("Then press Tab to inspect the tokens and their alternatives."),
        Content("F1 explains everything, F7 pins the legend. / lists the commands."),
    ]
    return Content("\n").join(lines)
