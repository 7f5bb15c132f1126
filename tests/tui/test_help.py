"""The page behind F1, the last line, and the keys and the theme of a configuration file."""

import math

import pytest
from textual.widgets import Static
from textual.widgets._footer import FooterKey

from entropix_mlx.chat.recorded import demo_profile
from entropix_mlx.configuration import Configuration
from entropix_mlx.errors import ConfigurationError
from entropix_mlx.palette import MEANINGS, SWATCHES
from entropix_mlx.step import Strategy
from entropix_mlx.tui.app import ChatApp
from entropix_mlx.tui.base import WorkspaceApp
from entropix_mlx.tui.composer.composer import Composer
from entropix_mlx.tui.help_text import conditions, strategies
from entropix_mlx.tui.screens.tuning.tune import TuneScreen
from entropix_mlx.tui.transcript.transcript import Transcript
from entropix_mlx.tui.viewer import ViewerApp
from entropix_mlx.tui.workspace import Workspace
from tests.tui.conftest import ask, chatting, idle, running, until

DEMO = demo_profile()


def keys(app) -> list[str]:
    return [key.description for key in app.query(FooterKey)]


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


async def test_the_last_line_names_useful_keys(make_chat):
    async with chatting(make_chat, max_tokens=3) as (app, pilot):
        await until(pilot, lambda: "Help" in keys(app))
        assert not {"Inspect tokens", "Regenerate", "Continue with it"} & set(keys(app))
        await ask(pilot, "hi")
        await until(pilot, lambda: keys(app)[0] == "Inspect tokens")
        assert {"Regenerate", "Settings", "Commands"} <= set(keys(app))
        await pilot.press("tab")
        await until(pilot, lambda: {"Back", "Move", "Choose", "Draw"} <= set(keys(app)))
        assert "Other answer" not in keys(app), "there is only one"


MAC = {f"ctrl+{letter}" for letter in "abefgklnoprstuwy"} | {"ctrl+q", "ctrl+z", "ctrl+j"}
"""Keys with Ctrl that terminals on a Mac pass on."""
PLAIN = {"escape", "tab", "enter", "left", "right", "up", "down", "space"}


def sent_by_a_mac(key: str) -> bool:
    return key in MAC | PLAIN or (len(key) == 1) or key in CHARACTERS


CHARACTERS = {"question_mark", "slash", "left_square_bracket", "right_square_bracket", "plus"} | {
    "less_than_sign", "greater_than_sign", "minus", "equals_sign",
}  # fmt: skip


@pytest.mark.parametrize("app", [ChatApp, ViewerApp])
def test_everything_has_a_key_without_fn(app):
    groups = (app, WorkspaceApp, Workspace, Composer, Transcript)
    bindings = [binding for group in groups for binding in group.BINDINGS]
    named = [binding for binding in bindings if binding.description]
    assert all(binding.id for binding in bindings), "each key can be changed"
    for binding in named:
        assert any(map(sent_by_a_mac, binding.key.split(","))), binding.id


@pytest.fixture
def make(make_chat, tmp_path):
    def make(text: str):
        path = tmp_path / "config.toml"
        path.write_text(text)
        return make_chat(configuration=Configuration.load(path), seed=None)

    return make


async def test_theme_and_keys_are_those_of_the_file(make):
    app = make('[screen]\ntheme = "nord"\n[keys]\n"chat.tune" = "f12"\n')
    async with running(app) as pilot:
        await idle(pilot)
        assert app.theme == "nord"
        await pilot.press("h", "f12")
        assert isinstance(app.screen, TuneScreen)
        await pilot.press("escape", "f1")
        assert "F12      Settings" in page(app)
        await pilot.press("escape")
        assert "Settings" in keys(app)


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        ('\n[screen]\ntheme = "north"', 3, "theme"),
        *(
            (f'[keys]\n"{name}" = "f12"\n', 2, name)
            for name in ("nope", "chat.nope", "transcript.nope", "chat")
        ),
    ],
)
def test_a_mistake_in_the_file_is_reported_with_its_line(make, text, line, named):
    with pytest.raises(ConfigurationError) as error:
        make(text)
    assert f"line {line}: {named}: " in str(error.value)
