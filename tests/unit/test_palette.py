"""A model's words on a terminal: shown, never obeyed."""

import json

from hypothesis import given
from hypothesis import strategies as st

from entropix_mlx.records import printable, to_json

OBEYED = {chr(code) for code in (*range(32), *range(0x7F, 0xA0))}
ANY_TEXT = st.text(st.characters(codec=None))  # lone surrogates too


@given(ANY_TEXT)
def test_json_means_the_same_and_holds_no_control_character(text):
    line = to_json({"text": text})
    assert json.loads(line) == {"text": text}
    assert not OBEYED & set(line)
    assert len(line.splitlines()) == 1
    line.encode("utf-8")


@given(ANY_TEXT)
def test_printable_text_holds_no_control_character_but_line_breaks_and_tabs(text):
    assert not (OBEYED - {"\n", "\t"}) & set(printable(text))


def test_json_keeps_what_is_no_control_character():
    assert to_json(["é", "日本", "😀"]) == '["é", "日本", "😀"]'
    assert to_json({"a": 1}, indent=2) == '{\n  "a": 1\n}'
