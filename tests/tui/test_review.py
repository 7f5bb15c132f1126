"""The review of unsure fields, by its keys."""

import pytest
from textual.widgets import DataTable, Input

from entropix_mlx.extraction.review import Review, read_decisions
from entropix_mlx.extraction.rows import Row
from entropix_mlx.tui.review import ReviewApp

ROWS = [
    Row("a.txt", {"name": "Ann", "paid": True}, {"name": 0.3, "paid": 0.2}, ("name", "paid")),
    Row("b.txt", {"name": "Bob"}, {"name": 0.1}, ("name",)),
]


@pytest.fixture
def decisions(tmp_path):
    return tmp_path / "decisions.jsonl"


@pytest.fixture
def app(decisions):
    texts = {"a.txt": "Ann has [bold]paid", "b.txt": "x" * 50_000}
    return ReviewApp(Review(ROWS, texts, {("b.txt", "name"): ['"Rob']}, decisions))


async def test_accept_type_take_another_beginning_and_undo(app, decisions):
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("1", "e", "enter")  # Bob → Robe
        await pilot.press("e", *["backspace"] * 4, *"false", "enter")  # paid
        await pilot.press("enter", "u")  # Ann is accepted, and taken back
        await pilot.pause()
        assert app.query_one(DataTable).cursor_row == 2
        assert app.query_one(Input).disabled
        await pilot.press("q")
    found = [(one.field, one.value, one.how.value) for one in read_decisions(decisions)]
    assert found == [
        ("name", "Robe", "typed"),
        ("paid", False, "typed"),
        ("name", "Ann", "accepted"),
        ("name", "Ann", "undone"),
    ]


@pytest.mark.parametrize("size", [(20, 5), (60, 20), (200, 60)])
async def test_it_fits_any_terminal_and_may_have_nothing_to_show(decisions, size):
    for rows in (ROWS, []):
        app = ReviewApp(Review(rows, {}, {}, decisions))
        async with app.run_test(size=size) as pilot:
            await pilot.press("enter", "e", "escape", "9", "u", "down", "q")
        assert app.return_code == 0


async def test_a_decision_that_cannot_be_written_is_said_and_not_lost(app, decisions):
    async with app.run_test() as pilot:
        decisions.mkdir()
        await pilot.press("e", "enter")
        await pilot.pause()
        assert [note.severity for note in pilot.app._notifications] == ["error"]
        assert not app.query_one(Input).disabled
