"""The main states of the screen, as pictures; recorded steps make them the same everywhere.

After a change that is meant: pytest tests/tui --snapshot-update, and look at them.
"""

import pytest

from entropix_mlx import Profile, Settings
from entropix_mlx.tui.screens.tuning.tune import TunedSettings, TuneScreen
from tests.tui.conftest import make_viewer

TO_A_FORK = ["home", *["right"] * 14]


@pytest.mark.parametrize(
    ("keys", "theme", "size"),
    [
        ([], "textual-dark", (120, 40)),
        (TO_A_FORK, "textual-light", (80, 24)),
        ([*"cccc"], "textual-dark", (60, 20)),
        (["f1"], "textual-dark", (80, 24)),
    ],
    ids=["gauges", "inspector", "glyphs", "help"],
)
def test_screen(snap_compare, keys, theme, size):
    async def press(pilot):
        pilot.app.theme = theme
        await pilot.press(*keys)
        pilot.app.clear_notifications()  # their number depends on the speed of the machine

    assert snap_compare(make_viewer(), run_before=press, terminal_size=size)


def test_tuning(snap_compare):
    async def tune(pilot):
        preview = pilot.app.workspace.preview
        await pilot.app.push_screen(
            TuneScreen(
                TunedSettings(Settings(profile=Profile.load()), False), preview, print, print
            )
        )
        await pilot.press("shift+right", "shift+right")

    assert snap_compare(make_viewer(), run_before=tune, terminal_size=(80, 24))
