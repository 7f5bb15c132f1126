"""Older answers are visited and left for other ways; the chat is searched; code is copied."""

from textual.widgets import Input

from entropix_mlx.chat.conversation import Conversation, Reply, Turn
from entropix_mlx.chat.finding import Match, search
from entropix_mlx.step import Origin
from tests.tui.conftest import ask, drive, make_step, notices, ready, turns, until
from tui.code_blocks import code_blocks
from tui.screens.find import FindBar


def talk(*pairs) -> Conversation:
    return Conversation(
        turns=[
            Turn(question, [Reply(1, [make_step(n, word) for n, word in enumerate(words)])])
            for question, *words in pairs
        ]
    )


def test_what_is_found_where():
    chat = talk(("Cats?", " Cat", "s", " purr, c", "ats"), ("And?", "no"))
    assert search(chat, "cats") == [Match(0, None), Match(0, 0), Match(0, 2)]
    assert search(chat, "CATS PURR") == [Match(0, 0)]
    assert search(chat, "and") == [Match(1, None)]
    assert search(chat, "") == search(chat, "dog") == []


def test_the_chat_is_searched(make_chat):
    app = make_chat()
    chat = talk(("Cats?", " Cat", "s", " purr"), ("And dogs?", " The", " cats", " sleep"))

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        app.link.submit(lambda session, _: session.resume(chat))
        await until(pilot, lambda: ready(app) and turns(app))
        transcript = app.workspace.transcript
        await pilot.press("ctrl+f", *"cats")
        assert isinstance(app.screen, FindBar)
        assert (transcript.turn, transcript.cursor) == (1, 1), "the last place first"
        await pilot.press("up")
        assert (transcript.turn, transcript.cursor) == (0, 0)
        await pilot.press("up")
        assert transcript.cursor is None, "a question"
        await pilot.press("enter", "ctrl+f")
        assert (transcript.turn, transcript.cursor) == (1, 1)
        await pilot.press("x", "down", "escape")
        app.composer.focus()
        await pilot.press(*"/find", "space", *"sleep", "enter")
        await until(pilot, lambda: isinstance(app.screen, FindBar))
        await until(pilot, lambda: (transcript.turn, transcript.cursor) == (1, 2))
        assert app.screen.query_one(Input).value == "sleep"

    drive(app, scenario)


def test_another_way_from_an_older_answer_and_back(make_chat):
    app = make_chat(max_tokens=4)

    async def scenario(pilot):
        for question in ("one", "two"):
            await ask(pilot, question)
        old = turns(app)[0].answer
        transcript, inspector = app.workspace.transcript, app.workspace.inspector
        await pilot.press("tab", *["left"] * 4)
        assert (transcript.turn, transcript.cursor) == (0, 3), "on into the answer before"
        await pilot.press("right")
        assert (transcript.turn, transcript.cursor) == (1, 0)
        await pilot.press("left", "left", "down", "down")
        wanted = inspector.alternative.token
        if wanted == old.steps[2].token:
            await pilot.press("up")
            wanted = inspector.alternative.token
        await pilot.press("f")
        await until(pilot, lambda: ready(app) and len(turns(app)[0].answers) == 2)
        assert len(turns(app)) == 1
        assert turns(app)[0].answer.steps[2].token == wanted
        assert turns(app)[0].answer.steps[2].origin is Origin.CHOSEN
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: ready(app) and len(turns(app)) == 2)
        assert turns(app)[0].answer.steps == old.steps
        assert [turn.question for turn in turns(app)] == ["one", "two"]

    drive(app, scenario)


def test_a_click_on_an_older_answer_points_there(make_chat):
    app = make_chat(max_tokens=4)

    async def scenario(pilot):
        await ask(pilot, "one")
        await ask(pilot, "two")
        transcript = app.workspace.transcript
        first = transcript._turns[0].answer
        await pilot.click(first.block_at(0), offset=(0, 0))
        await pilot.pause()
        assert (transcript.turn, transcript.cursor) == (0, 0)
        assert app.workspace.inspector.alternative is not None
        await pilot.press("escape")
        assert transcript.cursor is None
        assert transcript.turn == 1

    drive(app, scenario)


def test_the_last_block_of_code_is_copied(make_chat):
    app = make_chat()
    chat = talk(("Code?", "```\na\n```\nor\n", "```python\nb = 1\nc\n```"))
    assert code_blocks("```\nnever ends") == ["never ends"]

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press("ctrl+y")
        assert "no block of code" in notices(app)
        app.link.submit(lambda session, _: session.resume(chat))
        await until(pilot, lambda: ready(app) and turns(app))
        await pilot.press("ctrl+y")
        assert app.clipboard == "b = 1\nc\n"
        assert "2 blocks of code: 2 lines" in notices(app)

    drive(app, scenario)
