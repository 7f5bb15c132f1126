"""The reasoning of a model is one line, until it is unfolded."""

from tests.tui.conftest import drive, make_step, make_viewer, until
from tests.tui.test_viewer import shown

THOUGHT = ["<think>", "\n", "Let", " me", " see", "</think>"]


def viewer(thought=THOUGHT):
    texts = [*thought, "\n\n", "Paris", "."]
    return make_viewer([make_step(n, text) for n, text in enumerate(texts)])


def test_it_is_folded_until_a_key_unfolds_it():
    app = viewer()

    async def scenario(pilot):
        assert "▸ thought for 6 tokens\n" in shown(app)
        assert "me see" not in shown(app)
        assert "Paris." in shown(app)
        assert app.workspace.transcript.last_answer.text.startswith("<think>\nLet me see</think>")
        await pilot.press("t")
        assert "▾ thought for 6 tokens\n<think>\nLet me see</think>\n\nParis." in shown(app)
        await pilot.press("t")
        assert "me see" not in shown(app)

    drive(app, scenario)


def test_a_click_unfolds_it():
    app = viewer()

    async def scenario(pilot):
        block = app.workspace.transcript.last_answer.block_at(0)
        await pilot.click(block, offset=(4, 0))
        assert "me see" in shown(app)
        assert app.workspace.transcript.cursor is None
        await pilot.click(block, offset=(4, 0))
        assert "me see" not in shown(app)

    drive(app, scenario)


def test_the_cursor_walks_through_it():
    app = viewer()

    async def scenario(pilot):
        await pilot.press("left")
        assert "me see" not in shown(app)
        await pilot.press("left", "left", "left")
        assert app.workspace.transcript.cursor == 5
        assert "me see" in shown(app)
        await pilot.press("right")
        assert "me see" not in shown(app)

    drive(app, scenario)


def test_it_grows_while_the_model_thinks():
    app = make_viewer([make_step(0, "<think>")])

    async def scenario(pilot):
        assert "▸ thinking for 1 token\n" in shown(app)
        # More than a block: those that are folded as a whole take no line.
        app.workspace.append([make_step(n, "so\n") for n in range(1, 200)])
        await pilot.pause()
        assert shown(app).rstrip() == "▸ thinking for 200 tokens"
        app.workspace.append([make_step(200, "</think>"), make_step(201, "\n\nParis")])
        await pilot.pause()
        assert shown(app).count("so") == 0
        assert "▸ thought for 201 tokens" in shown(app)
        answer = app.workspace.transcript.last_answer
        assert answer.size.height <= 4
        answer.fold(False)
        await pilot.pause()
        assert shown(app).count("so") == 199

    drive(app, scenario)


def test_it_is_folded_as_markdown_too():
    app = viewer(["<think>", "Let", " me"])

    async def scenario(pilot):
        def seen():
            blocks = app.query("MarkdownBlock")
            return "\n".join(str(block._content) for block in blocks if block.is_attached)

        app.workspace.append([make_step(9, "\n"), make_step(10, "see")])
        await pilot.press("ctrl+t")
        await until(pilot, lambda: seen() == "▸ thinking for 8 tokens")
        app.workspace.append([make_step(11, "</think>"), make_step(12, "Yes, *it* is.")])
        await until(pilot, lambda: seen() == "▸ thought for 9 tokens\nYes, it is.")
        await pilot.press("t")
        await until(pilot, lambda: "Let me" in seen())
        assert "<think>" not in seen()

    drive(app, scenario)


def test_a_closing_tag_alone_folds_what_came_before():
    app = make_viewer([make_step(0, "So"), make_step(1, " be it")])

    async def scenario(pilot):
        assert "So be it" in shown(app)
        app.workspace.append([make_step(2, "</think>"), make_step(3, "Paris")])
        await pilot.pause()
        assert "So be it" not in shown(app)
        assert "▸ thought for 3 tokens\nParis" in shown(app)

    drive(app, scenario)
