"""The main states of the screen, as pictures; recorded steps make them the same everywhere.

After a change that is meant: pytest tests/tui --snapshot-update, and look at them.
"""

import pytest

from tests.tui.conftest import make_viewer


@pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=["wide", "narrow"])
@pytest.mark.parametrize(
    "keys",
    [[], ["home", *["right"] * 14], ["f1"], ["g"], ["f2"]],
    ids=["gauges", "inspector", "help", "glyphs", "folded"],
)
def test_screen(snap_compare, keys, size):
    assert snap_compare(make_viewer(), press=keys, terminal_size=size)
