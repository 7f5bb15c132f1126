"""The page behind F1, the last line, and the keys and the theme of a configuration file."""

import math

import pytest
from textual.widgets import Static

from entropix_mlx.backends.recorded import demo_profile
from entropix_mlx.configuration import Configuration
from entropix_mlx.errors import ConfigurationError
from entropix_mlx.palette import MEANINGS, SWATCHES
from entropix_mlx.step import Strategy
from entropix_mlx.tui.help_text import conditions, measurements, strategies
from entropix_mlx.tui.keys import KeyBar, spelled
from entropix_mlx.tui.screens.duel import DuelScreen
from entropix_mlx.tui.screens.help import HelpScreen
from entropix_mlx.tui.viewer import ViewerApp
from tests.steps import make_trace
from tests.tui.conftest import ask, idle, make_viewer, notices, running, until

DEMO = demo_profile()


def keys(app) -> list[str]:
    return [binding.description for binding in app.query_one(KeyBar).shown]


def page(app) -> str:
    return "\n".join(str(widget.visual) for widget in app.screen.query(Static))


def test_conditions_are_those_of_the_profile():
    when = conditions(DEMO)
    assert when[Strategy.ARGMAX] == "where H < 2.02, V < 6.43"
    assert when[Strategy.BRANCH] == "where H < 5.3, V > 10.9, margin < 0.193"
    assert set(when) == set(MEANINGS)
    never = DEMO.replace({"thresholds": {"resample_min_entropy": math.inf}})
    assert conditions(never)[Strategy.RESAMPLE] == "nowhere, in this profile"
    text = strategies(DEMO).plain
    assert "H < 2.02" in text
    assert "its text: “Let me explain.”" in text
    assert "its text" not in strategies().plain
    assert all(SWATCHES[strategy].glyph in text for strategy in MEANINGS)


def test_the_help_on_v_has_numbers_only_where_there_are_some():
    assert "flat below 6.43, spiky from 10.9 on" in measurements(DEMO).plain
    never = DEMO.replace({"thresholds": {"branch_min_varentropy": math.inf}})
    assert "inf" not in measurements(never).plain


async def test_the_help_of_a_narrow_screen_has_the_numbers_of_the_profile_and_no_broken_lines():
    app = make_viewer()
    async with running(app, (60, 20)) as pilot:
        app.workspace.use_profile(DEMO.replace({"thresholds": {"low_entropy": 0.77}}))
        await pilot.press("f1")
        assert isinstance(app.screen, HelpScreen)
        colours = next(s for s in app.screen.query(Static) if "argmax" in str(s.visual))
        await until(pilot, lambda: colours.content_size.width > 0)
        lines = str(colours.visual).splitlines()[1:]
        assert max(map(len, lines)) <= colours.content_size.width
        assert "H < 0.77" in page(app)
        assert "entropy, says how open" in page(app)
        assert "⟦" in page(app)


async def test_the_last_line_names_useful_keys(make_chat):
    app = make_chat(max_tokens=3)
    async with running(app) as pilot:
        await idle(pilot)
        assert keys(app)[:2] == ["Help", "List commands"]
        assert not {"Inspect tokens", "Stop", "Regenerate", "Continue from here"} & set(keys(app))
        await ask(pilot, "hi")
        assert keys(app)[0] == "Inspect tokens"
        assert {"Regenerate", "Change settings"} <= set(keys(app))
        await pilot.press("tab")
        assert {"Go back", "Move", "Choose"} <= set(keys(app))
        assert "Continue from here" not in keys(app), "no alternative is selected"
        while not app.workspace.inspector.chosen:
            await pilot.press("down")
        assert "Continue from here" in keys(app)
        assert "Answer" not in keys(app), "there is only one"


@pytest.mark.parametrize("width", [20, 60, 120, 200])
async def test_no_key_is_cut_and_a_click_presses_one(width):
    app = make_viewer()
    async with running(app, size=(width, 24)) as pilot:
        await pilot.press("left")
        bar = app.query_one(KeyBar)
        line = bar.render().plain
        assert len(line) <= width - 2
        whole = [f"{spelled(binding)} {binding.description}" for binding in bar.shown]
        assert all(part in whole for part in line.split("  ") if part)
        assert not {"Continue from here", "Answer"} & set(keys(app)), "a trace has no model"
        if "Help" in line:
            await pilot.click(KeyBar, offset=(1 + line.index("Help"), 0))
            await pilot.pause()
            assert isinstance(app.screen, HelpScreen)


@pytest.fixture
def make(make_chat, tmp_path):
    def make(text: str):
        path = tmp_path / "config.toml"
        path.write_text(text)
        return make_chat(configuration=Configuration.load(path), seed=None)

    return make


async def test_theme_and_keys_are_those_of_the_file(make):
    app = make(
        '[screen]\ntheme = "nord"\n[keys]\n"chat.duel" = "f12"\n"transcript.thoughts" = "f11"\n'
    )
    async with running(app) as pilot:
        await idle(pilot)
        assert app.theme == "nord"
        await pilot.press("h", "f12")
        assert isinstance(app.screen, DuelScreen)
        await pilot.press("escape", "f1")
        assert "F12     Duel" in page(app)
        assert "F11     Reasoning" in page(app), "under the name before"
        await pilot.press("escape")
        assert "F12 Compare samplers" in app.query_one(KeyBar).render().plain


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        ('\n[screen]\ntheme = "north"', 3, "theme"),
        *(
            (f'[keys]\n"{name}" = "f12"\n', 2, name)
            for name in ("nope", "chat.nope", "transcript.nope", "chat")
        ),
        *(
            (f'[keys]\n"chat.duel" = "{key}"\n', 2, "chat.duel")
            for key in ("f99", "ctl+j", "Ctrl+J", "ctrl+", "controll", "f9,hjkl", "ctrl+J")
        ),
    ],
)
def test_a_mistake_in_the_file_is_reported_with_its_line(make, text, line, named):
    with pytest.raises(ConfigurationError) as error:
        make(text)
    assert f"line {line}: {named}: " in str(error.value)


@pytest.mark.parametrize("key", ["f12", "ctrl+j", "question_mark", "?", "ctrl+shift+up", "X", "at"])
def test_keys_under_all_their_names(make, key):
    make(f'[keys]\n"chat.duel" = "{key}"\n')


async def test_changes_of_the_user_are_written_and_read_again(make, tmp_path):
    app = make(
        '# Mine.\n[options]\nsampler = "min_p"\nset = ["think.max_insertions=2"]\n'
        '[screen]\ntheme = "nord"\n'
    )

    def written() -> Configuration:
        return Configuration.load(tmp_path / "config.toml")

    def low() -> float:
        return app.workspace.profile.thresholds.low_entropy

    async with running(app) as pilot:
        await idle(pilot)
        app.theme = "textual-light"
        await pilot.press("f3")
        app.screen.query_one("#sampler").value = "entropix"
        app.screen.query_one("#temperature").value = "0.5"
        app.screen.query_one("#branch").value = True
        app.screen.query_one("#slider-low_entropy").focus()
        await pilot.press("right", "ctrl+d")
        await pilot.pause()
        assert written().options == {
            "sampler": "entropix",
            "temperature": 0.5,
            "branch": True,
            "set": ["think.max_insertions=2", f"thresholds.low_entropy={low()}"],
        }
        before = low()
        await pilot.press("f3", "shift+right", "ctrl+d")
        await pilot.pause()
        assert low() != before
        assert written().options["set"][1] == f"thresholds.low_entropy={low()}"
        await pilot.press("f6")
        app.screen.query_one("#max_tokens").value = "77"
        app.screen.query_one("#top_p").value = "0.5"
        await pilot.press("ctrl+d")
        await pilot.pause()
        assert (written().options["max-tokens"], written().options["top-p"]) == (77, 0.5)
    assert written().text.startswith("# Mine.")
    assert written().theme == "textual-light"


async def test_a_trace_is_shown_in_the_same_theme(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('[screen]\ntheme = "nord"\n')
    app = ViewerApp.of_trace(make_trace(), Configuration.load(path))
    async with running(app) as pilot:
        assert app.theme == "nord"
        path.write_text("[")
        app.theme = "textual-light"
        await until(pilot, lambda: "cannot be changed" in notices(app))
