"""Texts that explain the screen: the measurements, each strategy, the marks, the empty chat."""

from __future__ import annotations

import math

from textual.content import Content
from textual.widgets import Static

from entropix_mlx.palette import MEANINGS, ORIGIN_MARKS, SWATCHES
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.profiles.tree import table
from entropix_mlx.records import printable
from entropix_mlx.step import Strategy
from entropix_mlx.traces.explain import SYMBOLS, spikiness

from .styles import COLOURS, STYLES, Colouring

LONGEST = max(map(len, MEANINGS))
"""Cells of the longest name."""
ALTERNATIVES = (
    "Tab moves to the tokens; ← and → go from one to the next. Beside the text stand the"
    " alternatives that the model considered and the conditions that held (✓) or did not (✗), each"
    " with its distance; at a fork also the other branches, with their scores against the first"
    " in nats per token. ↑ and ↓ select one of these, and Enter continues with it. The old answer"
    " is kept: [ and ] switch between answers."
)
COLOURINGS = {
    Colouring.STRATEGY: "colours: strategy of the sampler",
    Colouring.SURPRISE: "colours: surprise, −log2 p",
    Colouring.NONE: "colours: none",
    Colouring.UNDERLINE: "no colours: H as an underline (2, 3.5 and 5 bits)",
    Colouring.GLYPHS: "colours and glyphs: strategy of the sampler",
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
    """The card of an empty chat: what the colours mean, and the keys that matter."""

    DEFAULT_CSS = "Welcome { width: auto; max-width: 100%; height: auto; padding: 0 1; }"

    def show(self, profile: Profile) -> None:
        """Show the strategies that a profile can choose."""
        states = [
            Content.styled(f"{SWATCHES[strategy].glyph} {state}", COLOURS[strategy])
            for strategy, (state, _) in MEANINGS.items()
            if strategy in reachable(profile)
        ]
        colours = Content("  ").join(states) + Content(": how sure the model is")
        self.update(Content("\n").join([colours, *map(Content, WELCOME)]))


WELCOME = (
    "Tab goes to the least sure token: why it was taken, what else it could be.",
    "Ctrl+T moves the thresholds behind the colours. ? lists all keys.",
)
