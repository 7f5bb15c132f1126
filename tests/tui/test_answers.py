"""Several answers and structured ones: what the chat shows of them, and taking another."""

import json

import pytest
from textual.color import Color
from textual.widgets import OptionList, Static

from entropix_mlx import Settings
from entropix_mlx.constraints.constraint import Constraint
from entropix_mlx.palette import CONTRAST, contrast
from entropix_mlx.tui.screens.picker import Picker
from tests.conftest import make_byte_tokenizer, make_tiny_model
from tests.tui.conftest import ask, running, until

SCHEMA = {
    "type": "object",
    "properties": {"big": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
    "required": ["big", "size"],
    "additionalProperties": False,
}
SIZES = [(40, 12), (80, 24), (200, 60)]


def load_ending():
    """Return a tiny model whose answers can end."""
    return make_tiny_model(max_position_embeddings=4096), make_byte_tokenizer()


def structured(make_chat):
    constraint = Constraint("json_schema", SCHEMA)
    return make_chat(load_ending, constraint=constraint, max_tokens=200, top_logprobs=8)


def form_of(app):
    return str(app.query_one("TurnView .form", Static).render())


@pytest.mark.parametrize("size", SIZES)
async def test_a_structured_answer_is_a_form(size, make_chat):
    app = structured(make_chat)
    async with running(app, size) as pilot:
        await ask(pilot, "how big?")
        values = json.loads(app.workspace.conversation.last.answer.text)
        lines = form_of(app).splitlines()
        assert len(lines) == len(SCHEMA["properties"])
        for line, (name, value) in zip(lines, values.items(), strict=True):
            assert name in line
            assert (value if isinstance(value, str) else json.dumps(value)) in line


async def test_a_plain_answer_has_no_form(make_chat):
    app = make_chat()
    async with running(app) as pilot:
        await ask(pilot, "hi")
        assert not form_of(app)


@pytest.mark.parametrize("size", SIZES)
async def test_another_of_several_answers_can_be_taken(size, make_chat):
    app = make_chat(answers=3, max_tokens=6)
    async with running(app, size) as pilot:
        await ask(pilot, "hi")
        turn = app.workspace.conversation.last
        assert len(turn.answers) == 3
        await pilot.press("f8")
        await until(pilot, lambda: isinstance(app.screen, Picker))
        options = app.screen.query_one(OptionList)
        assert options.highlighted == turn.selected
        await pilot.press("down", "enter")
        chosen = (turn.selected + 1) % 3
        await until(pilot, lambda: app.workspace.conversation.last.selected == chosen)


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "dracula", "solarized-light"])
async def test_every_confidence_can_be_read_also_where_the_list_points(theme, make_chat):
    app = make_chat(answers=3, max_tokens=6)
    async with running(app) as pilot:
        app.theme = theme
        await ask(pilot, "how big?")
        await pilot.press("f8")
        await until(pilot, lambda: isinstance(app.screen, Picker))
        await pilot.pause()
        options = app.screen.query_one(OptionList)
        for strip in options.render_lines(options.size.region):
            for text, style, _ in strip:
                if text.strip()[:1] in ("●", "◐", "○"):
                    own, behind = (Color.from_rich_color(c) for c in (style.color, style.bgcolor))
                    assert contrast(own.rgb, behind.rgb) >= CONTRAST, (text, own.hex, behind.hex)


async def test_the_status_says_what_the_confidence_rests_on_until_the_next_question(make_chat):
    app = make_chat(answers=3, max_tokens=6)
    async with running(app) as pilot:
        await ask(pilot, "hi")
        assert "confidence" in app.status.basis
        assert app.status.basis in str(app.status.render())
        app.link.configure(Settings(max_tokens=6, seed=1), ask=False)
        await ask(pilot, "and?")
        assert not app.status.basis
