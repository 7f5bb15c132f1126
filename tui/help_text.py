"""What the screen says about itself: the measurements, each strategy, the marks."""

from __future__ import annotations

import math
from collections.abc import Mapping

from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from entropix_mlx.palette import LOOKS, printable
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.profiles.tree import first_fit, table
from entropix_mlx.step import Metrics, Origin, Strategy
from entropix_mlx.traces.explain import SYMBOLS

from .styles import ORIGIN_MARKS, STYLES

MEANINGS = {
    Strategy.ARGMAX: ("sure", "takes the most probable token"),
    Strategy.THINK: ("lost", "inserts a thinking text"),
    Strategy.BRANCH: ("a fork", "follows several ways, keeps the best"),
    Strategy.RESAMPLE: ("anything goes", "draws again, more freely"),
    Strategy.ADAPTIVE: ("in between", "draws as freely as H and V ask"),
}
"""What the model is at a strategy, and what is done then."""
SHORT_NAMES = {strategy: state.removeprefix("a ") for strategy, (state, _) in MEANINGS.items()}
"""What the model is at a strategy, in a word or two: also the name of its region of H and V."""
LONGEST = max(map(len, MEANINGS))
"""Cells of the longest name."""
TOO_WIDE = "too wide to fork"
"""What a margin is called that keeps a token in the fork's region from being one."""
_MARKS = {
    Origin.INSERTED: "an inserted thinking text",
    Origin.RETRIEVED: "a passage of your notes",
    Origin.BRANCH: "the winner of a fork",
    Origin.CHOSEN: "what you chose",
}
_MEASUREMENTS = (
    "Before each token the model gives every possible next token a probability.\n"
    "H, the entropy, says how open the choice is: 0 bits is certain, 1 bit a coin toss, 3 bits"
    " like a choice among 8 tokens that are equally probable.\n"
    "V, the varentropy, says how uneven it is: low where the candidates are about equally"
    " probable, high where a few stand out from a long tail.\n"
    "The margin is the probability of the best token minus that of the second.\n"
    "The word beside H names the region of the map in which H and V lie together."
)
_SPIKINESS = " V is called flat below {:.3g}, spiky from {:.3g} on, and uneven between."

ANOTHER_WAY = (
    "Tab goes to the tokens. ← → point at one: beside it stand what else the model considered,"
    " which conditions held (✓) or not (✗), and by how much; at a fork also the ways that were"
    " left, and by how many nats a token each leads the first. ↑ ↓ select one of these, and Enter"
    " or f goes on from there. The old answer stays: [ and ] bring it back.\n"
    "Until ↑ ↓ have selected another way, f and Enter only say so. Whatever is typed or pasted and"
    " is no key goes on in the question field."
)


def measurements(profile: Profile) -> Content:
    """Return what H, V and the margin are, and what they are called with a profile's numbers."""
    borders = _spikiness(profile)
    told = _SPIKINESS.format(*borders) if all(map(math.isfinite, borders)) else ""
    return Content(_MEASUREMENTS + told)


def words(profile: Profile, values: Mapping[str, float]) -> dict[str, str]:
    """Return in words what some measurements amount to, by their names.

    The word for H is the name of the region in which all of them lie, so that it says the same as
    the map, where a margin does not allow a fork also why it is none.

    Args:
        profile: whose thresholds are the regions' borders.
        values: of all measurements; empty if nothing was measured.
    """
    if not values:
        return {}
    rows, measured = table(profile), Metrics(**values)
    here, mapped = first_fit(rows, measured), first_fit(rows, measured._replace(margin=0.0))
    low, high = _spikiness(profile)
    varentropy = measured.varentropy
    return {
        "entropy": SHORT_NAMES[here],
        "varentropy": "spiky" if varentropy >= high else "flat" if varentropy < low else "uneven",
        "margin": "" if here is mapped else TOO_WIDE,
    }


def _spikiness(profile: Profile) -> tuple[float, float]:
    """Return up to which V a profile's tokens are sure, and from which on they may be forks."""
    return profile.thresholds.low_varentropy, profile.thresholds.branch_min_varentropy


def conditions(profile: Profile) -> dict[Strategy, str]:
    """Return when each strategy of a profile is chosen: ``where H < 2.02, V < 6.43``."""
    return {row.strategy: _condition(row.bounds) for row in table(profile)}


def strategies(profile: Profile | None = None) -> Content:
    """Return each strategy as its tokens look: its state, what it does, and when.

    Args:
        profile: whose thinking text to tell, and whose numbers, in a second line each; None leaves
            them out.
    """
    when = conditions(profile) if profile else {}
    lines = []
    for strategy, (state, deed) in MEANINGS.items():
        name = Content.styled(f"{LOOKS[strategy].glyph} {strategy:<{LONGEST}}", STYLES[strategy])
        lines.append(name + Content(f" {state}: {deed}"))
        more = [when.get(strategy), _thought(profile) if strategy is Strategy.THINK else ""]
        lines += [Content(f"{'':{LONGEST + 3}}{text}") for text in more if text]
    return Content("\n").join(lines)


def _thought(profile: Profile | None) -> str:
    """Return the first thinking text of a profile, if it is one that can be read."""
    if profile is None:
        return ""
    texts = profile.think.text if isinstance(profile.think.text, list) else [profile.think.text]
    text = printable(texts[0]).strip() if texts and isinstance(texts[0], str) else ""
    return f"its text: “{text}”" if text else ""


def marks() -> Content:
    """Return what stands around tokens that did not come from an ordinary draw."""
    told = (f"{first}{_MARKS[origin]}{last}" for origin, (first, last) in ORIGIN_MARKS.items())
    return Content("\n".join(told))


def _condition(bounds: dict[str, tuple[float, float]]) -> str:
    if not bounds:
        return "everywhere else"
    if any(low == math.inf for low, _ in bounds.values()):
        return "nowhere, in this profile"
    parts = []
    for name, (low, high) in bounds.items():
        symbol = SYMBOLS.get(name, name)
        parts += [f"{symbol} > {low:.3g}"] if low > -math.inf else []
        parts += [f"{symbol} < {high:.3g}"] if high < math.inf else []
    return "where " + ", ".join(parts)


QUESTIONS = (
    "Which is larger, 9.11 or 9.9?",
    "Write a short poem about a lighthouse.",
    "What should I name my cat?",
)
"""The keys 1 to 3 put these into the field."""
SPACIOUS = 17
"""From so many lines on, the card has empty ones."""


def draw_card(spacious: bool) -> Content:
    """Return the card; with `spacious`, its parts are an empty line apart."""
    bold = Style(bold=True)
    asks = "\n".join(f" {n}  {question}" for n, question in enumerate(QUESTIONS, 1))
    gap = [Content()] if spacious else []
    lines = [
        Content.styled("The colour of each token shows how sure the model is", bold),
        Content("H: how open the choice is; V: how uneven. They decide:"),
        strategies(),
        *gap,
        Content.styled("Ask something, or press a number, then Enter", bold),
        Content(asks),
        *gap,
        Content("Then Tab goes to the tokens: why each, and other ways."),
        Content("F1 explains everything. / lists the commands."),
    ]
    return Content("\n").join(lines)


class Welcome(Static):
    """Shown until something was asked."""

    DEFAULT_CSS = "Welcome { width: auto; max-width: 100%; height: auto; padding: 0 1; }"

    def __init__(self) -> None:
        super().__init__(draw_card(spacious=True))

    def fit(self, lines: int) -> None:
        """Leave out the empty lines where there are few lines."""
        self.update(draw_card(spacious=lines >= SPACIOUS))
