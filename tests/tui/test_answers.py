"""Several answers and structured ones: what the chat shows of them, and taking another."""

import json

import pytest
from textual.color import Color
from textual.widgets import OptionList, Static, Tree

from entropix_mlx import Settings
from entropix_mlx.answer.promise import Promise, promises_file
from entropix_mlx.chat.conversation import Reply, Turn
from entropix_mlx.constraints.constraint import Constraint
from entropix_mlx.palette import CONTRAST, contrast
from entropix_mlx.tui.screens.answers import AnswerList, FieldList
from entropix_mlx.tui.screens.tree import Path, TreeScreen
from tests.conftest import make_byte_tokenizer, make_tiny_model
from tests.steps import make_step
from tests.tui.conftest import ask, idle, running, until

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


async def test_an_alternative_of_a_field_begins_another_answer(make_chat):
    app = structured(make_chat)
    async with running(app) as pilot:
        await ask(pilot, "how big?")
        before = json.loads(app.workspace.conversation.last.answer.text)
        await pilot.press("f10")
        await until(pilot, lambda: isinstance(app.screen, FieldList))
        await pilot.press("1")
        await idle(pilot)
        await until(pilot, lambda: len(app.workspace.conversation.last.answers) == 2)
        await idle(pilot)
        old, new = (json.loads(one.text) for one in app.workspace.conversation.last.answers)
        assert old == before
        assert new["big"] is not before["big"]


async def test_a_plain_answer_has_no_form(make_chat):
    app = make_chat()
    async with running(app) as pilot:
        await ask(pilot, "hi")
        assert not form_of(app)
        await pilot.press("f10")
        assert not isinstance(app.screen, FieldList)


async def test_a_digit_without_an_alternative_takes_nothing(make_chat):
    app = structured(make_chat)
    async with running(app) as pilot:
        await ask(pilot, "how big?")
        await pilot.press("f10", "9", "escape")
        await idle(pilot)
        assert len(app.workspace.conversation.last.answers) == 1


@pytest.mark.parametrize("size", SIZES)
async def test_another_of_several_answers_can_be_taken(size, make_chat):
    app = make_chat(answers=3, max_tokens=6)
    async with running(app, size) as pilot:
        await ask(pilot, "hi")
        turn = app.workspace.conversation.last
        assert len(turn.answers) == 3
        await pilot.press("f8")
        await until(pilot, lambda: isinstance(app.screen, AnswerList))
        options = app.screen.query_one(OptionList)
        assert options.highlighted == turn.selected
        await pilot.press("down", "enter")
        chosen = (turn.selected + 1) % 3
        await until(pilot, lambda: app.workspace.conversation.last.selected == chosen)


async def tree_opened(pilot):
    """Wait for the tree, whose cursor goes to the first place that branches."""
    await until(pilot, lambda: isinstance(pilot.app.screen, TreeScreen))
    tree = pilot.app.screen.query_one(Tree)
    await until(pilot, lambda: tree.cursor_line > 0)


def nodes(app):
    def below(node):
        yield node
        for child in node.children:
            yield from below(child)

    return list(below(app.screen.query_one(Tree).root))


@pytest.mark.parametrize("size", SIZES)
async def test_a_path_through_the_tree_becomes_an_answer(size, make_chat):
    app = make_chat(sampler="temperature", temperature=2.0, top_logprobs=8)
    async with running(app, size) as pilot:
        await ask(pilot, "hi")
        steps = app.workspace.last_steps
        await pilot.press("f9")
        await tree_opened(pilot)
        first = next(node for node in nodes(app) if isinstance(node.data, Path))
        app.screen.query_one(Tree).move_cursor(first)
        await pilot.press("right")
        await until(pilot, lambda: bool(first.children))
        further = first.children[1]
        assert further.data.tokens[0] == first.data.tokens[0]
        app.screen.query_one(Tree).move_cursor(further)
        await pilot.press("enter")
        await until(pilot, lambda: len(app.workspace.conversation.last.answers) == 2)
        await idle(pilot)
        found = app.workspace.last_steps
        place = further.data.step
        assert [one.token for one in found[:place]] == [one.token for one in steps[:place]]
        assert tuple(one.token for one in found[place : place + 2]) == further.data.tokens


async def test_the_tree_has_the_other_answers_where_they_part(make_chat):
    app = make_chat(answers=3, max_tokens=6, top_logprobs=8)
    async with running(app) as pilot:
        await ask(pilot, "hi")
        await pilot.press("f9")
        await tree_opened(pilot)
        others = [node for node in nodes(app) if isinstance(node.data, int)]
        selected = app.workspace.conversation.last.selected
        assert {node.data for node in others} == {0, 1, 2} - {selected}
        app.screen.query_one(Tree).move_cursor(others[0])
        await pilot.press("enter")
        await until(pilot, lambda: app.workspace.conversation.last.selected == others[0].data)


def test_answers_that_say_the_same_agree():
    texts = ["43", "17 + 26 = 43", "34", "x" * 300]
    turn = Turn("17 + 26?", [Reply(n, [make_step(0, text)]) for n, text in enumerate(texts)])
    assert [one.text for one in turn.agreeing] == ["43", "17 + 26 = 43"]
    turn.selected = 3
    assert turn.agreeing == [turn.answers[3]]


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "dracula", "solarized-light"])
async def test_every_confidence_can_be_read_also_where_the_list_points(theme, make_chat):
    app = structured(make_chat)
    async with running(app) as pilot:
        app.theme = theme
        await ask(pilot, "how big?")
        await pilot.press("f10")
        await until(pilot, lambda: isinstance(app.screen, FieldList))
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


async def test_marks_move_what_is_called_unsure(make_chat):
    app = make_chat()
    async with running(app) as pilot:
        await ask(pilot, "hi")
        await pilot.press("tab", "plus", "minus")
        promise = Promise(app.status.model)
        assert [mark.right for mark in promise.state.marks] == [True], "each is marked once"
        await ask(pilot, "hello")
        await pilot.press("tab", "minus")
        assert [mark.right for mark in Promise(app.status.model).state.marks] == [True, False]


async def test_a_promise_that_cannot_be_read_is_no_end_of_the_chat(make_chat):
    promises_file().parent.mkdir(parents=True, exist_ok=True)
    promises_file().write_text("{")
    app = make_chat()
    async with running(app) as pilot:
        await ask(pilot, "hi")
        await pilot.press("tab", "plus")
        assert [note.severity for note in app._notifications] == ["error", "error"]
