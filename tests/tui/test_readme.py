"""The picture of the README is small, and what the screen shows today."""

from docs import picture


async def test_the_picture_is_current():
    drawn = picture.PICTURE.read_text(encoding="utf-8")
    assert len(drawn) < 200_000
    assert drawn == await picture.draw(), "after a change that is meant: python -m docs.picture"
