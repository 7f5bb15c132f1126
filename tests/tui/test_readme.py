"""The picture at the head of the README is what the screen shows today."""

from pathlib import Path

from pytest_textual_snapshot import normalize_svg
from textual._doc import take_svg_screenshot

from entropix_mlx.traces.trace import read_trace
from entropix_mlx.tui.viewer import ViewerApp

PICTURE = Path(__file__).parents[2] / "docs" / "screenshot.svg"
RECORDED = Path(__file__).parents[1] / "data" / "readme.jsonl"
"""An answer of the demo model, as `entropix generate --trace` wrote it; its header says how."""


def test_the_picture_of_the_readme_is_current(request):
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
