"""The pictures of the documents: the still one is what the screen shows today."""

from pathlib import Path
from xml.etree import ElementTree

from pytest_textual_snapshot import normalize_svg
from textual._doc import take_svg_screenshot

from docs import demo
from entropix_mlx.traces.trace import read_trace
from entropix_mlx.tui.viewer import ViewerApp

DOCS = Path(__file__).parents[2] / "docs"
PICTURE = DOCS / "screenshot.svg"
RECORDED = Path(__file__).parents[1] / "data" / "readme.jsonl"
"""An answer of the demo model, as `entropix generate --trace` wrote it; its header says how."""


def test_the_still_picture_is_current(request):
    trace = read_trace(RECORDED)
    fork = next(step.index for step in trace.steps if step.fork)
    shown = take_svg_screenshot(
        app=ViewerApp.of_trace(trace), press=["home", *["right"] * fork], terminal_size=(110, 30)
    )
    picture = normalize_svg(shown)
    if request.config.getoption("--snapshot-update"):
        PICTURE.write_text(picture, encoding="utf-8")
    assert PICTURE.read_text(encoding="utf-8") == picture, (
        "after a change that is meant: make test ARGS='tests/tui --snapshot-update'"
    )


def test_the_animated_picture_is_small_and_shows_every_row_of_a_frame_once():
    """`make demo` records it, which takes half a minute."""
    assert demo.PICTURE.stat().st_size < 2e6
    ElementTree.parse(demo.PICTURE)
    rows = [
        [f"<text>{number if row else 0}</text>" for row in range(demo.ROWS)] for number in range(3)
    ]
    frames = [(0.5 * number, rows[min(number, 2)]) for number in range(4)]
    root = ElementTree.fromstring(demo.animation(frames))
    shown = root.findall(".//{*}set[@to='inline']")
    assert len(shown) == 3 * (demo.ROWS - 1), "the first row stays, the others have three contents"
    assert "display" not in root.findall(".//{*}g/{*}g")[2].attrib, (
        "the last frame without animation"
    )
