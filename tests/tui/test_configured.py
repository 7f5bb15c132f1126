"""The configuration file on the screen: the theme, the keys, and what the app writes there."""

import pytest

from entropix_mlx.backends.local import LocalBackend
from entropix_mlx.configuration import Configuration
from entropix_mlx.errors import ConfigurationError
from entropix_mlx.settings import Settings
from tests.tui.conftest import drive, load_tiny, make_trace, notices, ready, until
from tui.app import ChatApp
from tui.composer.key_bar import KeyBar
from tui.screens.duel import DuelScreen
from tui.screens.options import OptionsDialog
from tui.viewer import ViewerApp


def configured(path, text: str) -> Configuration:
    path.write_text(text)
    return Configuration.load(path)


@pytest.fixture
def make(tmp_path):
    def make(text: str) -> ChatApp:
        configuration = configured(tmp_path / "config.toml", text)
        return ChatApp(LocalBackend("tiny", load_tiny, Settings(max_tokens=3)), None, configuration)

    return make


def test_theme_and_keys_are_those_of_the_file(make):
    app = make('[screen]\ntheme = "nord"\n[keys]\n"chat.duel" = "f9"\n')

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        assert app.theme == "nord"
        await pilot.press("h", "f9")
        assert isinstance(app.screen, DuelScreen)
        await pilot.press("escape", "f1")
        text = "\n".join(str(widget.visual) for widget in app.screen.query("Static"))
        assert "F9      Duel" in text
        await pilot.press("escape")
        assert "F9 Duel" in app.query_one(KeyBar).render().plain

    drive(app, scenario)


def test_a_theme_that_there_is_not_is_told_by_its_line(make):
    with pytest.raises(ConfigurationError, match="line 3: theme: there is no such theme: "):
        make('\n[screen]\ntheme = "north"')


@pytest.mark.parametrize("name", ["nope", "chat.nope", "transcript.nope", "chat"])
def test_a_key_for_nothing_is_told_by_its_line(make, name):
    with pytest.raises(ConfigurationError, match=r"line 2: .*no key has this name"):
        make(f'[keys]\n"{name}" = "f9"\n')


@pytest.mark.parametrize(
    "key", ["f99", "ctl+j", "Ctrl+J", "ctrl+", "controll", "f9,hjkl", "ctrl+J"]
)
def test_a_key_that_no_keyboard_has_is_told_by_its_line(make, key):
    with pytest.raises(ConfigurationError, match=r"line 2: chat.duel: there is no key '"):
        make(f'[keys]\n"chat.duel" = "{key}"\n')


@pytest.mark.parametrize("key", ["f12", "ctrl+j", "question_mark", "?", "ctrl+shift+up", "X", "at"])
def test_keys_by_all_names_that_they_have(make, key):
    make(f'[keys]\n"chat.duel" = "{key}"\n')


def test_what_the_user_changes_is_written(make, tmp_path):
    app = make('# Mine.\n[screen]\ntheme = "nord"\n')

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        app.theme = "textual-light"
        await pilot.press("f6")
        assert isinstance(app.screen, OptionsDialog)
        app.screen.query_one("#max_tokens").value = "77"
        app.screen.query_one("#top_p").value = "0.5"
        await pilot.press("ctrl+d")

    drive(app, scenario)
    read = Configuration.load(tmp_path / "config.toml")
    assert read.text.startswith("# Mine.")
    assert read.theme == "textual-light"
    assert dict(read.options) == {"max-tokens": 77, "top-p": 0.5}


def test_what_is_tuned_is_written_and_read_again(make, tmp_path):
    app = make('[options]\nsampler = "min_p"\nset = ["think.max_insertions=2"]\n')

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press("f3")
        app.screen.query_one("#sampler").value = "entropix"
        app.screen.query_one("#temperature").value = "0.5"
        app.screen.query_one("#branch").value = False
        slider = app.screen.query_one("#slider-low_entropy")
        slider.focus()
        await pilot.press("right", "ctrl+d")
        await pilot.pause()
        low = app.workspace.profile.thresholds.low_entropy
        read = Configuration.load(tmp_path / "config.toml").options
        assert read == {
            "sampler": "entropix",
            "temperature": 0.5,
            "no-branch": True,
            "set": ["think.max_insertions=2", f"thresholds.low_entropy={low}"],
        }
        await pilot.press("f3", "shift+right", "ctrl+d")
        await pilot.pause()
        assert app.workspace.profile.thresholds.low_entropy != low
        read = Configuration.load(tmp_path / "config.toml").options
        assert read["set"][1] == (
            f"thresholds.low_entropy={app.workspace.profile.thresholds.low_entropy}"
        )

    drive(app, scenario)


def test_a_trace_is_shown_in_the_same_theme(make, tmp_path):
    configuration = configured(tmp_path / "config.toml", '[screen]\ntheme = "nord"\n')
    app = ViewerApp.of_trace(make_trace(), configuration)

    async def scenario(pilot):
        assert app.theme == "nord"
        (tmp_path / "config.toml").write_text("[")
        app.theme = "textual-light"
        await until(pilot, lambda: "cannot be changed" in notices(app))

    drive(app, scenario)
