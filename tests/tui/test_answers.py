"""Several answers and structured ones: what the chat shows of them, and taking another."""

import json

from textual.widgets import OptionList, Static

from entropix_mlx.constraints.constraint import Constraint
from entropix_mlx.tui.screens.picker import Picker
from tests.conftest import make_byte_tokenizer, make_tiny_model
from tests.tui.conftest import chatting, until

SCHEMA = {
    "type": "object",
    "properties": {"big": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
    "required": ["big", "size"],
    "additionalProperties": False,
}


def load_ending():
    """Return a tiny model whose answers can end."""
    return make_tiny_model(max_position_embeddings=4096), make_byte_tokenizer()


async def test_a_structured_answer_is_a_form(make_chat):
    constraint = Constraint("json_schema", SCHEMA)
    settings = {"constraint": constraint, "max_tokens": 200, "top_logprobs": 8}
    async with chatting(make_chat, "how big?", load=load_ending, **settings) as (app, _):
        values = json.loads(app.workspace.conversation.last.answer.text)
        lines = str(app.query_one("TurnView .form", Static).render()).splitlines()
        assert len(lines) == len(SCHEMA["properties"])
        for line, (name, value) in zip(lines, values.items(), strict=True):
            assert name in line
            assert (value if isinstance(value, str) else json.dumps(value)) in line


async def test_another_of_several_answers_can_be_taken(make_chat):
    async with chatting(make_chat, "hi", size=(40, 12), answers=3, max_tokens=6) as (app, pilot):
        turn = app.workspace.conversation.last
        assert len(turn.answers) == 3
        await pilot.press("f8")
        await until(pilot, lambda: isinstance(app.screen, Picker))
        options = app.screen.query_one(OptionList)
        assert options.highlighted == turn.selected
        await pilot.press("down", "enter")
        chosen = (turn.selected + 1) % 3
        await until(pilot, lambda: app.workspace.conversation.last.selected == chosen)
