"""A picture of one answer for sharing, 1200×630: its text, a timeline, a legend and its origin.

The card is an SVG with a background of its own, so that it looks the same in light and dark
viewers. Its font is a monospaced one of whoever looks at it: what fits on a line is counted in
cells, of which wide characters (Chinese, Japanese, Korean, emoji) take two. Text breaks at the last
space that fits, a longer word wherever the line ends, and what has no room is cut with an ellipsis.
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib import import_module
from itertools import groupby, islice
from typing import NamedTuple

from ..errors import OutputError
from ..palette import SWATCHES
from ..step import NOT_OF_THE_MODEL, Step, Strategy
from ..summary import Summary
from .report import interventions
from .trace import Trace

WIDTH, HEIGHT = 1200, 630
BACKGROUND = (18, 20, 26)  # every colour of the palette has a contrast of 4.5 on it
_TEXT, _MUTED = "#f2f3f5", "#a7acb8"
_FONTS = "ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', Consolas, monospace"
_CELL = 0.602
"""Width of a cell over the size of the font, of the widest of these fonts."""
_LEADING = 1.42
"""Distance of two lines over the size of the font."""
_LEFT, _INNER = 56, WIDTH - 2 * 56
_QUESTION = (66, 70, 26)
_ANSWER = (140, 282)
"""Top and height of the question, with its size, and of the answer."""
_SIZES = range(34, 15, -1)
"""Sizes for the answer: the largest at which all of it has room, or the last."""
_BASE, _ABOVE, _BELOW = 506, 56, 24
"""The line of the timeline: H stands on it, V hangs below it."""
_COLUMNS, _WIDEST = 272, 16
"""The most bars of the timeline, and the widest, in units of the drawing."""
_SMALL, _LEGEND, _FACTS = 15, 566, 600
_REASONING = "</think>"
_ATTRIBUTES = {
    Strategy.ARGMAX: "font-weight:bold",
    Strategy.THINK: "font-weight:bold;font-style:italic",
    Strategy.THINK_SAMPLE: "font-style:italic",
    Strategy.BRANCH: "text-decoration:underline",
    Strategy.RESAMPLE: "font-weight:bold;text-decoration:underline",
}
"""How tokens differ without a colour, as in the terminal UI."""
_JOINER, _WIDENS = "\N{ZERO WIDTH JOINER}", "\N{VARIATION SELECTOR-16}"
_MOST_JOINED = 32
"""Characters that may be put upon one another; what a hostile text has more is left out."""
_HIDDEN = ("Cc", "Cs", "Zl", "Zp")
_REMOVED = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufffe\uffff")
"""Characters that turn the direction of writing, and two that XML cannot hold."""


class Sign(NamedTuple):
    """What stands in one or two cells: a character with those that are put upon it."""

    text: str
    cells: int
    kind: str
    """The class of its style."""


def card(trace: Trace) -> str:
    """Return the picture of an answer as SVG; without a script, links or anything to load."""
    steps, skipped = _without_reasoning(trace.steps)
    marks = interventions(trace.steps)
    asked = [m["content"] for m in trace.header.messages if m["role"] == "user"]
    question = asked[-1] if asked else ""
    top, height, size = _QUESTION
    lines, _ = _fitted([(question, "question")], _INNER, height, (size,))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"'
        f' viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="{_FONTS}">'
        f"<title>{_xml(question or trace.header.model)}</title><style>{_styles()}</style>"
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="rgb{BACKGROUND}"/>'
        f"{_rows(lines, top, size)}{_answer(steps, marks)}"
        f"{_timeline(trace.steps, marks)}{_legend(trace.steps)}{_facts(trace, skipped)}</svg>\n"
    )


def card_png(trace: Trace) -> bytes:
    """Return the picture of an answer as PNG.

    Raises:
        OutputError: resvg, which draws it, is not installed.
    """
    try:
        resvg = import_module("resvg_py")  # an extra, which type checkers may not find
    except ImportError:
        raise OutputError(
            "pictures become PNG by resvg: pip install 'entropix_mlx[png]', or write an .svg file"
        ) from None
    return bytes(resvg.svg_to_bytes(svg_string=card(trace)))


def signs(parts: Iterable[tuple[str, str]]) -> Iterator[Sign]:
    """Yield what is to be seen of some texts, each with the class of its style.

    Control characters and those that turn the direction of writing are left out.
    """
    held: Sign | None = None
    joined = False
    for char, kind in _visible(parts):
        width = _cells(char)
        if held is not None and (joined or width == 0) and "\n" not in (held.text, char):
            if len(held.text) < _MOST_JOINED:
                cells = 2 if char == _WIDENS else held.cells
                held = held._replace(text=held.text + char, cells=cells)
        else:
            if held is not None:
                yield held
            held = Sign(char, width, kind)
        joined = char == _JOINER
    if held is not None:
        yield held


def wrapped(text: Iterable[Sign], cells: int) -> Iterator[list[Sign]]:
    """Yield the lines of a text; of several empty ones in a row one, and none at the beginning."""
    begun = False
    for ends, group in groupby(text, key=lambda sign: sign.text == "\n"):
        if not ends:
            yield from _broken(group, cells)
            begun = True
        elif begun and sum(1 for _ in group) > 1:
            yield []


def _broken(text: Iterable[Sign], cells: int) -> Iterator[list[Sign]]:
    line: list[Sign] = []
    width = 0
    for sign in text:
        line.append(sign)
        width += sign.cells
        if width > cells:
            indent = next((n for n, sign in enumerate(line) if sign.text != " "), 0)
            spaces = (n for n in range(len(line) - 1, indent, -1) if line[n].text == " ")
            at = next(spaces, None)
            yield line[: len(line) - 1 if at is None else at]
            line = line[-1:] if at is None else line[at + 1 :]
            width = _width(line)
    if line:
        yield line


def _width(line: Iterable[Sign]) -> int:
    return sum(sign.cells for sign in line)


def _visible(parts: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for text, kind in parts:
        for char in text.replace("\r\n", "\n").replace("\t", "    "):
            hidden = unicodedata.category(char) in _HIDDEN or char in _REMOVED
            if char == "\n" or not hidden:
                yield char, "" if char == " " else kind  # no line below a space


def _cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def _fitted(
    parts: Sequence[tuple[str, str]], width: float, height: float, sizes: Sequence[int]
) -> tuple[list[list[Sign]], int]:
    """Return the lines of a text at the largest size at which it has room, and this size."""
    for size in sizes:
        cells, most = int(width / (size * _CELL)), int(height / (size * _LEADING))
        lines = list(islice(wrapped(signs(parts), cells), most + 1))
        while lines and not "".join(sign.text for sign in lines[-1]).strip():
            lines.pop()
        if len(lines) <= most:
            return lines, size
    last = lines[most - 1]
    while _width(last) >= cells:
        last.pop()
    kind = last[-1].kind if last else ""
    return [*lines[: most - 1], [*last, Sign("…", 1, kind)]], sizes[-1]


def _without_reasoning(steps: Sequence[Step]) -> tuple[Sequence[Step], int]:
    """Return the tokens after a model's reasoning, and the number of those left out."""
    text = ""
    for step in steps:
        text = text[-len(_REASONING) :] + step.text
        if _REASONING in text:
            return steps[step.index + 1 :], step.index + 1
    return steps, 0


def _answer(steps: Sequence[Step], marks: Mapping[int, Strategy]) -> str:
    parts: list[tuple[str, str]] = []
    for step in steps:
        text = step.text if parts else step.text.lstrip()
        word = text.lstrip(" ")
        if step.index in marks:
            glyph = SWATCHES[marks[step.index]].glyph
            parts += [(text[: len(text) - len(word)], ""), (glyph, f"{marks[step.index]} plain")]
            text = word
        inserted = " inserted" if step.origin in NOT_OF_THE_MODEL else ""
        parts.append((text, f"{step.strategy}{inserted}"))
    top, height = _ANSWER
    lines, size = _fitted(parts, _INNER, height, _SIZES)
    return _rows(lines, top, size)


def _rows(lines: Sequence[Sequence[Sign]], top: float, size: int) -> str:
    """Draw lines below one another, each as one text, which its viewer may write from the right."""
    return "".join(
        _row(line, _LEFT, top + size + number * size * _LEADING, size)
        for number, line in enumerate(lines)
    )


def _row(line: Sequence[Sign], x: float, y: float, size: int, anchor: str = "start") -> str:
    spans = (
        f'<tspan class="{kind}">{_xml("".join(sign.text for sign in group))}</tspan>'
        for kind, group in groupby(line, key=lambda sign: sign.kind)
    )
    return (
        f'<text x="{x:g}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
        f' xml:space="preserve">{"".join(spans)}</text>'
    )


def _timeline(steps: Sequence[Step], marks: Mapping[int, Strategy]) -> str:
    """Draw H above a line and V below it; where tokens share a bar, the one with the largest H."""
    if not steps:
        return ""
    each = max(1, -(-len(steps) // _COLUMNS))
    columns = [steps[n : n + each] for n in range(0, len(steps), each)]
    pitch = min(_WIDEST, _INNER / len(columns))
    most = max(0.1, *(step.entropy for step in steps)), max(0.1, *(s.varentropy for s in steps))
    bars: dict[str, list[str]] = defaultdict(list)
    for number, tokens in enumerate(columns):
        x, width = _LEFT + number * pitch, pitch * 0.8
        highest = max(tokens, key=lambda step: step.entropy)
        up = max(1.0, _ABOVE * highest.entropy / most[0])
        down = max(1.0, _BELOW * max(step.varentropy for step in tokens) / most[1])
        bars[highest.strategy].append(f"M{x:.1f} {_BASE - 1}v{-up:.1f}h{width:.1f}v{up:.1f}z")
        bars["under"].append(f"M{x:.1f} {_BASE + 1}v{down:.1f}h{width:.1f}v{-down:.1f}z")
    drawn = "".join(f'<path class="{k}" d="{"".join(paths)}"/>' for k, paths in bars.items())
    flags = "".join(
        f'<text class="{strategy}" x="{_LEFT + index // each * pitch:.1f}"'
        f' y="{_BASE - _ABOVE - 5}" font-size="12">{SWATCHES[strategy].glyph}</text>'
        for index, strategy in islice(marks.items(), _COLUMNS)
    )
    names = (
        (f"entropy H, to {most[0]:.1f} bits", _BASE - _ABOVE - 6),
        (f"varentropy V, to {most[1]:.1f} bits²", _BASE + _BELOW + 14),
    )
    right = WIDTH - _LEFT
    named = "".join(_row(list(signs([(n, "muted")])), right, y, 13, "end") for n, y in names)
    return drawn + flags + named


def _legend(steps: Sequence[Step]) -> str:
    """Draw the strategies of the answer with their shares, the most frequent first."""
    line: list[Sign] = []
    for strategy, count in Counter(step.strategy for step in steps).most_common():
        share = f"{SWATCHES[strategy].glyph} {strategy} {count / len(steps):.0%}"
        named = [*signs([(share, f"{strategy} plain"), ("   ", "")])]
        if len(line) + len(named) <= _INNER / (_SMALL * _CELL):
            line += named
    return _row(line, _LEFT, _LEGEND, _SMALL)


def _facts(trace: Trace, skipped: int) -> str:
    header, summary = trace.header, Summary.of(trace.steps)
    facts = [
        header.model,
        header.sampler,
        f"seed {header.seed}",
        f"{len(trace.steps)} token{'' if len(trace.steps) == 1 else 's'}",
        f"mean H {summary.mean_entropy:.2f} bits",
        f"reasoning of {skipped} tokens left out" if skipped else "",
    ]
    text = " · ".join(filter(None, facts)).replace("\n", " ")
    own = list(signs([("entropix", "muted")]))
    room = _INNER - (len(own) + 2) * _SMALL * _CELL
    lines, _ = _fitted([(text, "muted")], room, _SMALL * _LEADING, (_SMALL,))
    return _rows(lines, _FACTS - _SMALL, _SMALL) + _row(own, WIDTH - _LEFT, _FACTS, _SMALL, "end")


def _styles() -> str:
    rules = [
        f".{strategy}{{fill:rgb{swatch.rgb};{_ATTRIBUTES.get(strategy, '')}}}"
        for strategy, swatch in SWATCHES.items()
    ]
    plain = "font-weight:normal;font-style:normal;text-decoration:none"
    return (
        f"text{{fill:{_TEXT}}}{''.join(rules)}.plain{{{plain}}}"
        f".inserted{{text-decoration:underline}}.question{{fill:{_TEXT};font-weight:bold}}"
        f".muted,.under{{fill:{_MUTED}}}"
    ).replace(" ", "")


def _xml(text: str) -> str:
    """Return a text, escaped for XML, without characters that XML cannot hold."""
    return escape("".join(sign.text for sign in signs([(text, "")])))
