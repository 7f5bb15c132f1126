"""Stop strings: what they cut does not depend on how a text is divided into tokens."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from entropix_mlx.answer.text_stream import StopStrings

TEXTS = st.text("abc ", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3)


def pieces_of(text, cuts):
    edges = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def shown_parts(stops, pieces):
    stream = StopStrings(stops)
    parts = [stream.add(piece) for piece in pieces]
    return parts + ([] if stream.found else [stream.end()]), stream.found


@given(TEXTS, STOPS, st.lists(st.integers(0, 40)))
def test_the_division_into_tokens_does_not_matter(text, stops, cuts):
    parts, found = shown_parts(stops, pieces_of(text, cuts))
    letters, expected = shown_parts(stops, list(text))
    assert ("".join(parts), found) == ("".join(letters), expected)


@given(TEXTS, STOPS)
def test_the_stop_string_that_is_complete_first_ends_the_text(text, stops):
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    parts, found = shown_parts(stops, [text])
    assert found is bool(ends)
    if ends:
        first = text[: min(ends)]
        longest = max((stop for stop in stops if first.endswith(stop)), key=len)
        assert "".join(parts) == first.removesuffix(longest)
    else:
        assert "".join(parts) == text


@given(TEXTS, STOPS, st.lists(st.integers(0, 40)))
def test_no_part_of_a_stop_string_is_shown_too_early(text, stops, cuts):
    """Whatever is shown stays: it is the beginning of the whole."""
    parts, _ = shown_parts(stops, pieces_of(text, cuts))
    whole = "".join(shown_parts(stops, [text])[0])
    for number in range(len(parts) + 1):
        assert whole.startswith("".join(parts[:number]))


@given(TEXTS, STOPS, st.lists(st.integers(0, 40)), st.integers(0, 10))
def test_a_resumed_answer_shows_the_rest(text, stops, cuts, length):
    pieces = pieces_of(text, cuts)
    parts, _ = shown_parts(stops, pieces)
    first = StopStrings(stops)
    steps = [(piece, first.add(piece)) for piece in pieces[:length]]
    if first.found:
        return
    again = StopStrings(stops)
    for piece, shown in steps:
        again.resume(piece, shown)
    rest = [again.add(piece) for piece in pieces[length:]]
    rest += [] if again.found else [again.end()]
    assert "".join(shown for _, shown in steps) + "".join(rest) == "".join(parts)


def test_a_stop_string_in_the_resumed_part_does_not_end_the_answer():
    stream = StopStrings(["sky"])
    stream.resume("The sky is", "The sky is")
    assert not stream.found
    assert stream.add(" blue") == " blue"
