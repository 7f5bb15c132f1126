"""The chat, with a tiny model on its thread: every key does what it says."""

import threading

from textual import events
from textual.widgets import Markdown, OptionList

from entropix_mlx.answer.interventions import forks
from entropix_mlx.errors import ModelNotFoundError
from entropix_mlx.palette import printable
from entropix_mlx.step import ChosenBy, Origin
from tests.answer.test_forks import always_branch
from tests.tui.conftest import ask, drive, notices, ready, turns, until
from tests.tui.helpers import answers, fill_long, gated, generating, shown_steps
from tui.composer.status import State
from tui.screens.ask import AskDialog
from tui.transcript.token_block import TokenBlock


def test_a_conversation(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "one")
        await ask(pilot, "two")
        assert [m["role"] for m in app.workspace.conversation.messages] == ["user", "assistant"] * 2
        assert shown_steps(app) == 12
        assert turns(app)[1].answer.steps == app.workspace.transcript.last_answer.steps
        assert "context" in str(app.status.render())
        assert "seed 1" in str(app.status.render())
        assert app.composer.text == ""

    drive(app, scenario)


def test_an_unsure_answer_is_marked_with_what_can_be_done(make_chat):
    app = make_chat(changes={"abstain": {"score": "mean_logprob", "threshold": 0.0}})

    async def scenario(pilot):
        await ask(pilot, "one")
        assert "mean_logprob" in notices(app)
        assert "another seed" in notices(app)

    drive(app, scenario)


def test_a_question_typed_while_the_model_loads_is_answered(make_chat):
    gate = threading.Event()
    app = make_chat(gated(gate))

    async def scenario(pilot):
        await pilot.press("h", "i", "enter")
        await pilot.press("m", "o", "r", "e", "enter")
        assert app.composer.text == "more", "the second one waits in the field"
        assert "still loading" in notices(app)
        gate.set()
        await until(pilot, lambda: ready(app) and shown_steps(app) == 12)

    drive(app, scenario)


def test_a_model_that_cannot_be_loaded_is_a_readable_message(make_chat):
    def load():
        raise ModelNotFoundError("no model 'absent': name a folder [like this]")

    app = make_chat(load)

    async def scenario(pilot):
        await until(pilot, lambda: app.status.state is State.FAILED)
        assert "no model 'absent': name a folder [like this]" in notices(app)
        assert "Ctrl+Q" in notices(app)
        await pilot.press("h", "i", "enter")
        assert app.composer.text == "hi"

    drive(app, scenario)


def test_a_question_that_waited_for_a_model_comes_back_if_there_is_none(make_chat):
    gate = threading.Event()

    def load():
        gate.wait(10)
        raise ModelNotFoundError("no model 'absent'")

    app = make_chat(load)

    async def scenario(pilot):
        await pilot.press("h", "i", "enter")
        assert app.composer.text == ""
        gate.set()
        await until(pilot, lambda: app.status.state is State.FAILED)
        assert app.composer.text == "hi"

    drive(app, scenario)


def test_an_unexpected_failure_is_a_message_too(make_chat):
    def load():
        raise RuntimeError("boom")

    app = make_chat(load)

    async def scenario(pilot):
        await until(pilot, lambda: app.status.state is State.FAILED)
        assert "unexpected RuntimeError: boom" in notices(app)

    drive(app, scenario)


def test_escape_stops_and_keeps_what_there_is(make_chat):
    app = make_chat(max_tokens=2000)

    async def scenario(pilot):
        await pilot.press("h", "i", "enter")
        await generating(pilot, 5)
        await pilot.press("escape")
        await until(pilot, lambda: ready(app))
        assert 5 <= shown_steps(app) < 2000
        before = len(turns(app))
        await pilot.press("y", "enter")
        await until(pilot, lambda: len(turns(app)) == before + 1)
        await generating(pilot)

    drive(app, scenario)


def test_a_question_that_comes_at_once_is_sent_whole(make_chat):
    """As a terminal without bracketed paste sends it; what follows it stays in the field."""
    app = make_chat()

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        for key in (*"what?", "enter", *"and"):
            app.post_message(events.Key(key, None if key == "enter" else key))
        await until(pilot, lambda: ready(app) and shown_steps(app) == 12)
        assert turns(app)[0].question == "what?"
        assert app.composer.text == "and"
        await pilot.press("x")
        assert app.composer.text == "andx"

    drive(app, scenario)


def test_ctrl_c_stops_an_answer_too(make_chat):
    app = make_chat(max_tokens=2000)

    async def scenario(pilot):
        await pilot.press("h", "i", "enter")
        await generating(pilot)
        await pilot.press("ctrl+c")
        await until(pilot, lambda: ready(app))
        assert shown_steps(app) < 2000
        await pilot.press("ctrl+c")
        await until(pilot, lambda: "quit" in notices(app))

    drive(app, scenario)


def test_a_fork_with_the_token_that_stands_there_is_none(make_chat):
    app = make_chat(sampler="greedy")

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press("tab", "left", "f")
        await until(pilot, lambda: "choose another way" in notices(app))
        assert answers(app) == 1

    drive(app, scenario)


def test_a_new_question_is_in_sight_wherever_one_had_scrolled_to(make_chat):
    app = make_chat(max_tokens=350)

    async def scenario(pilot):
        await ask(pilot, "one")
        assert app.workspace.transcript.max_scroll_y > 0
        app.workspace.transcript.release_anchor()  # as the wheel does
        app.workspace.transcript.scroll_home(animate=False)
        await until(pilot, lambda: app.workspace.transcript.scroll_y == 0)
        await ask(pilot, "two")
        assert app.workspace.transcript.scroll_y == app.workspace.transcript.max_scroll_y

    drive(app, scenario, size=(50, 16))


def test_escape_stops_within_a_fork(make_chat, monkeypatch):
    monkeypatch.setattr(forks, "sentence_end", lambda text, known: None)
    depth = 1000
    app = make_chat(max_tokens=2000, profile=always_branch(depth=depth, width=2))

    async def scenario(pilot):
        await pilot.press("h", "i", "enter")
        await pilot.pause(0.5)  # the prompt is short, and the fork takes seconds
        await pilot.press("escape")
        await until(pilot, lambda: ready(app))

    drive(app, scenario)
    fork = turns(app)[0].answer.steps[0].fork
    assert len(fork.branches[0].tokens) < depth


def test_enter_while_an_answer_runs_keeps_the_text(make_chat):
    app = make_chat(max_tokens=2000)

    async def scenario(pilot):
        await pilot.press("h", "i", "enter")
        await generating(pilot)
        await pilot.press("n", "enter")
        assert app.composer.text == "n"
        assert "Escape stops it" in notices(app)
        await pilot.press("escape")

    drive(app, scenario)


def test_regenerate_and_switch_between_answers(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "hi")
        first = app.workspace.transcript.last_answer.text
        await pilot.press("ctrl+r")
        await until(pilot, lambda: ready(app) and answers(app) == 2)
        second = app.workspace.transcript.last_answer.text
        assert first != second
        await pilot.press("tab")
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: app.workspace.transcript.last_answer.text == first)
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: app.workspace.transcript.last_answer.text == second)

    drive(app, scenario)


def test_fork_goes_on_from_the_token_under_the_cursor(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "hi")
        old = list(app.workspace.transcript.last_answer.steps)
        await pilot.press("tab", "left", *["left"] * 6, "down", "down")
        index, wanted = app.workspace.transcript.cursor, app.workspace.inspector.alternative.token
        await pilot.press("f")
        await until(pilot, lambda: ready(app) and answers(app) == 2)
        new = app.workspace.transcript.last_answer.steps
        assert new[:index] == old[:index]
        assert new[index].token == wanted
        assert new[index].origin is Origin.CHOSEN
        assert turns(app)[0].answers[0].steps == old

    drive(app, scenario)


def test_edit_and_resend(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "one")
        await ask(pilot, "two")
        await pilot.press("ctrl+g")
        assert app.composer.text == "two"
        await pilot.press("x", "enter")
        await until(pilot, lambda: app.workspace.conversation.messages[2]["content"] == "twox")
        await until(pilot, lambda: ready(app) and shown_steps(app) == 12)
        assert len(turns(app)) == 2

    drive(app, scenario)


def test_a_refused_question_comes_back_into_the_field(make_chat):
    app = make_chat()
    long = "x" * 5000

    async def scenario(pilot):
        await ask(pilot, "hi")
        app.composer.text = long
        await pilot.press("enter")
        await until(pilot, lambda: "shorten the message" in notices(app))
        assert app.composer.text == long
        assert len(turns(app)) == 1

    drive(app, scenario)


def test_a_refused_edit_comes_back_as_an_edit(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press("ctrl+g")
        composer = app.composer
        composer.text = "x" * 5000
        await pilot.press("enter")
        await until(pilot, lambda: composer.text == "x" * 5000)
        composer.text = "ho"
        await pilot.press("enter")
        await until(pilot, lambda: ready(app) and composer.text == "")
        await until(pilot, lambda: [t.question for t in turns(app)] == ["ho"])

    drive(app, scenario)


def test_a_refused_question_does_not_overwrite_what_was_typed_since(make_chat):
    gate = threading.Event()
    app = make_chat(gated(gate), sampler="greedy", temperature=0.5)

    async def scenario(pilot):
        await pilot.press("h", "i", "enter", "m", "o", "r", "e")
        gate.set()
        await until(pilot, lambda: "takes no temperature" in notices(app))
        assert app.composer.text == "more"

    drive(app, scenario)


def test_an_edit_outlives_another_system_prompt(make_chat):
    app = make_chat(max_tokens=2)

    async def scenario(pilot):
        await ask(pilot, "one")
        await ask(pilot, "two")
        await pilot.press("ctrl+g")
        await app.action_system_prompt()
        await fill_long(pilot, "Be brief.")
        await until(
            pilot,
            lambda: ready(app) and app.workspace.conversation.system_prompt,
        )
        app.composer.focus()
        await pilot.press("x", "enter")
        await until(pilot, lambda: [t.question for t in turns(app)] == ["one", "twox"])
        await until(pilot, lambda: ready(app))
        assert "there is no" not in notices(app)

    drive(app, scenario)


def test_lines_in_the_composer(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await pilot.press("a", "ctrl+j", "b", "shift+enter", "c")
        assert app.composer.text == "a\nb\nc"
        await pilot.press("enter")
        await until(pilot, lambda: ready(app) and shown_steps(app) == 12)
        assert turns(app)[0].question == "a\nb\nc"

    drive(app, scenario)


def test_what_waits_for_the_model_need_not_be_a_question(make_chat):
    gate = threading.Event()
    app = make_chat(gated(gate))

    async def scenario(pilot):
        await pilot.press("ctrl+n")
        assert "question" not in notices(app)
        assert "as soon as the model is loaded" in notices(app)
        gate.set()
        await until(pilot, lambda: ready(app))

    drive(app, scenario)


def test_the_sampler_asks(make_chat):
    profile = always_branch(ask_margin=1e6, width=3)
    app = make_chat(ask=True, profile=profile)

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press("h", "i", "enter")
        await until(pilot, lambda: isinstance(app.screen, AskDialog))
        options = app.screen.query_one(OptionList)
        assert options.option_count == 3
        assert "the first" in str(options.get_option_at_index(0).prompt)
        assert " nats" in str(options.get_option_at_index(1).prompt)
        await pilot.press("down", "enter")
        for _ in range(12):
            await pilot.pause(0.1)
            if isinstance(app.screen, AskDialog):
                await pilot.press("escape")
        await until(pilot, lambda: ready(app))
        fork = app.workspace.transcript.last_answer.steps[0].fork
        assert fork.chosen_by is ChosenBy.USER
        assert app.workspace.transcript.last_answer.steps[0].origin is Origin.CHOSEN

    drive(app, scenario)


def test_the_ways_of_a_fork_race_in_the_panel(make_chat):
    app = make_chat(max_tokens=6, profile=always_branch(depth=4))
    seen = []

    async def scenario(pilot):
        original = app.workspace.race

        def race(fork):
            original(fork)
            app.workspace._catch_up()
            seen.append((len(fork.branches[0].tokens), app.query_one("#race").display))

        app.workspace.race = race
        await ask(pilot, "hi")
        assert seen
        assert all(shown for _, shown in seen)
        assert not app.query_one("#race").display, "the winner is in the text now"

    drive(app, scenario)


def test_enter_goes_the_way_that_lost(make_chat):
    app = make_chat(max_tokens=6, profile=always_branch(depth=4))

    async def scenario(pilot):
        await ask(pilot, "hi")
        (step, *_) = app.workspace.last_steps
        lost = next(n for n in range(len(step.fork.branches)) if n != step.fork.winner)
        await pilot.press("tab", "home", *["down"] * len(step.top_logprobs))
        tokens = app.workspace.inspector.tokens
        assert tokens == step.fork.branches[lost].tokens
        await pilot.press("enter")
        await until(pilot, lambda: ready(app) and answers(app) == 2)
        chosen = app.workspace.last_steps[: len(tokens)]
        assert tuple(step.token for step in chosen) == tokens
        assert {step.origin for step in chosen} == {Origin.CHOSEN}

    drive(app, scenario)


def test_keys_before_anything_was_asked(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press("ctrl+r", "ctrl+g", "f4", "ctrl+s", "tab", "left", "f", "g", "y")
        assert "nothing was asked yet" in notices(app)
        assert app.composer.text == "fgy", "there are no tokens to go to"
        assert ready(app)

    drive(app, scenario)


def test_everything_is_in_the_palette(make_chat):
    app = make_chat()

    async def scenario(pilot):
        titles = {command.title for command in app.get_system_commands(app.screen)}
        assert titles >= {
            "New chat", "Answer again", "Edit question", "Settings", "Duel", "Save", "Open",
            "System prompt", "Help", "Gauges", "Markdown", "Glyphs", "Copy answer", "Theme",
        }  # fmt: skip
        identified = [b for b in [*app.BINDINGS, *app.workspace.transcript.BINDINGS] if not b.id]
        assert not identified, "a binding without an id cannot be remapped"

    drive(app, scenario)


def test_the_context_counts_the_conversation(make_chat, tmp_path):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "one")
        await ask(pilot, "two")
        used = app.status.context_used
        asked = len(
            "".join(f"{m['role']}: {m['content']}\n" for m in app.workspace.conversation.asked)
        )
        assert asked <= used - 12 <= asked + 20, "a token a byte, and what the template adds"
        app.filing.save(str(tmp_path / "chat.json"))
        await pilot.press("ctrl+n")
        await until(pilot, lambda: ready(app) and not turns(app))
        assert app.status.context_used == 0
        assert "context 0/4096" in str(app.status.render())
        await ask(pilot, "three")
        assert app.status.context_used < used
        app.filing.open(str(tmp_path / "chat.json"))
        await until(pilot, lambda: ready(app) and len(turns(app)) == 2)
        assert app.status.context_used == used

    drive(app, scenario)


def test_the_compact_gauges_follow(make_chat):
    app = make_chat()

    async def scenario(pilot):
        line = app.query_one("#compact")
        await ask(pilot, "hi")
        await until(pilot, lambda: "–" not in str(line.visual))
        await pilot.press("f2")
        await until(pilot, lambda: not line.display)  # the panel shows the same
        await pilot.press("f2")
        await until(pilot, lambda: line.visual.cell_length <= line.content_size.width)
        wide = line.visual.cell_length
        await pilot.resize_terminal(50, 24)
        await until(pilot, lambda: line.visual.cell_length <= line.content_size.width < wide)
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: line.visual.cell_length == wide)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: ready(app) and not turns(app))
        assert not line.display, "nothing is measured"
        await ask(pilot, "ho")
        assert line.display

    drive(app, scenario, size=(80, 24))


def test_markdown_follows_a_running_answer(make_chat):
    app = make_chat(max_tokens=3000)

    async def scenario(pilot):
        await pilot.press("h", "i", "enter")
        await generating(pilot, 3)
        await pilot.press("ctrl+t")
        seen = len(app.query_one(Markdown).source)
        await until(pilot, lambda: len(app.query_one(Markdown).source) > seen + 20)
        assert not any(block.display for block in app.query(TokenBlock))
        await pilot.press("escape")
        await until(pilot, lambda: ready(app))
        answer = app.workspace.transcript.last_answer
        assert app.query_one(Markdown).source == printable(answer.text)

    drive(app, scenario)
