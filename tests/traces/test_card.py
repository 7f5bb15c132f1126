"""Pictures of answers: what fits on a line, what may stand in XML, and that all of it is
readable."""

import struct
import sys
import unicodedata
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entropix_mlx import cli
from entropix_mlx.errors import OutputError, TraceError
from entropix_mlx.palette import SWATCHES, contrast
from entropix_mlx.step import Strategy
from entropix_mlx.traces.card import BACKGROUND, HEIGHT, WIDTH, card, card_png, signs, wrapped
from entropix_mlx.traces.share import rendered, share
from entropix_mlx.traces.trace import read_trace
from tests.steps import HEADER, make_step, make_trace

HOSTILE = [
    "</text><script>",
    "&amp;",
    "\"quoted'",
    "\x1b[31m",
    "\x00",
    "\ufffe",
    "\udce9",
    "\u202e",
]
TEXTS = st.text(max_size=30) | st.sampled_from(HOSTILE)
SVG = "{http://www.w3.org/2000/svg}"
DRAWN = {f"{SVG}{tag}" for tag in ("svg", "title", "style", "rect", "text", "tspan", "path")}


def drawn(trace) -> tuple[list[str], set[str]]:
    """Return the lines of a card, and the tags of its elements."""
    root = ElementTree.fromstring(card(trace))
    return (
        ["".join(text.itertext()) for text in root.iter(f"{SVG}text")],
        {element.tag for element in root.iter()},
    )


def saying(text, **changes):
    words = [make_step(n, word) for n, word in enumerate(text.split("|"))]
    return make_trace(words, **changes)


@given(st.lists(TEXTS, max_size=8), TEXTS, TEXTS, TEXTS)
def test_whatever_was_said_is_well_formed_and_only_text(texts, question, model, sampler):
    steps = [make_step(n, text, list(Strategy)[n % 7]) for n, text in enumerate(texts)]
    messages = [{"role": "user", "content": question}]
    lines, tags = drawn(make_trace(steps, messages=messages, model=model, sampler=sampler))
    assert tags <= DRAWN
    hidden = {c for line in lines for c in line if unicodedata.category(c) in ("Cc", "Cs")}
    assert not hidden


def cells(line) -> int:
    return sum(sign.cells for sign in line)


@given(st.text(alphabet="ab 日本 👩\u200d\n", max_size=80), st.integers(2, 20))
def test_lines_are_no_wider_than_they_may_be_and_lose_only_spaces(text, width):
    lines = list(wrapped(signs([(text, "")]), width))
    assert all(cells(line) <= width for line in lines)
    said = "".join(sign.text for line in lines for sign in line)
    assert said.replace(" ", "") == text.replace(" ", "").replace("\n", "")


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("the sky is blue", 8, ["the sky", "is blue"]),
        ("extraordinary sky", 8, ["extraord", "inary", "sky"]),
        ("日本の首都", 4, ["日本", "の首", "都"]),
        ("\n\na\n\n\n\nb\nc", 9, ["a", "", "b", "c"]),
        ("if x:\n    return", 12, ["if x:", "    return"]),
        ("a\u202eb\x07c\td", 9, ["abc    d"]),
    ],
)
def test_where_lines_break(text, width, expected):
    lines = wrapped(signs([(text, "")]), width)
    assert ["".join(sign.text for sign in line) for line in lines] == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("a", 1), ("日", 2), ("👩‍👩‍👧", 2), ("❤️", 2), ("🇩🇪", 2), ("e\u0301", 1)]
)
def test_cells_of_a_character(text, expected):
    assert cells(signs([(text, "")])) == expected


def test_a_card_says_where_it_comes_from_and_cuts_what_has_no_room():
    lines = drawn(saying("|".join([" word"] * 3000), model="m" * 200))[0]
    assert lines[0] == HEADER.messages[-1]["content"]
    assert [line for line in lines if "word" in line][-1].endswith("…")
    assert any(line.startswith("mmm") and line.endswith("…") for line in lines)
    lines = drawn(saying("<think>|hmm|</think>|Blue.", model="tiny"))[0]
    assert "Blue." in lines
    assert not any("hmm" in line for line in lines)
    assert lines[-2].startswith("tiny · entropix · seed 7 · 4 tokens · mean H 0.5")
    assert lines[-2].endswith("reasoning of 3 tokens left out")
    assert "○ adaptive 100%" in "".join(lines)


def test_every_colour_is_readable_on_the_card():
    for swatch in SWATCHES.values():
        assert contrast(swatch.rgb, BACKGROUND) >= 4.5


def test_a_png_has_the_size_of_a_card():
    pytest.importorskip("resvg_py")
    content = card_png(make_trace())
    assert content.startswith(b"\x89PNG")
    assert struct.unpack(">II", content[16:24]) == (WIDTH, HEIGHT)


def test_the_suffix_says_what_is_written(monkeypatch, tmp_path, capsys):
    trace, path = make_trace(), tmp_path / "t.jsonl"
    share(trace, path)
    read = read_trace(path)
    assert (read.header, len(read.steps)) == (trace.header, len(trace.steps))
    share(trace, tmp_path / "t.html")
    assert "<html" in (tmp_path / "t.html").read_text()
    assert cli.main(["report", str(path), "-o", str(tmp_path / "t.svg")]) == 0
    assert (tmp_path / "t.svg").read_text() == card(read)
    with pytest.raises(TraceError):
        rendered([trace, trace], ".svg")
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(OutputError):
        card_png(trace)
    assert cli.main(["report", str(path), "-o", str(tmp_path / "t.png")]) == 2
    assert "entropix_mlx[png]" in capsys.readouterr().err
    assert not (tmp_path / "t.png").exists()
