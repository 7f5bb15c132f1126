"""What a model is asked, and the worked examples before it."""

import json

import pytest

from entropix_mlx.errors import PromptError
from entropix_mlx.extraction.task import Example, Extraction, read_examples

SCHEMA = {"type": "object", "properties": {"size": {"enum": ["s", "l"]}, "day": {"format": "date"}}}
EXAMPLES = (Example("one", {"size": "s"}), Example("two", {"size": "l"}))


def test_examples_are_earlier_turns_and_all_texts_begin_alike():
    task = Extraction(SCHEMA, EXAMPLES)
    messages, others = task.messages("three"), task.messages("four")
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2 + ["user"]
    assert messages[:-1] == others[:-1]
    assert messages[0]["content"].endswith("one")
    assert json.loads(messages[3]["content"]) == EXAMPLES[1].fields
    assert messages[-1]["content"] == "three"


@pytest.mark.parametrize("schema", [SCHEMA, {"type": "string"}, {"properties": {"a": True}}])
def test_the_instruction_names_every_field(schema):
    [message] = Extraction(schema).messages("text")
    assert all(name in message["content"] for name in schema.get("properties", ["string"]))


@pytest.mark.parametrize("line", ["{", "[]", '{"text": "a"}', '{"fields": {}}', ""])
def test_what_is_no_example_is_refused(tmp_path, line):
    file = tmp_path / "examples.jsonl"
    file.write_text(line)
    with pytest.raises(PromptError):
        read_examples(file)


def test_the_last_line_needs_no_end(tmp_path):
    file = tmp_path / "examples.jsonl"
    file.write_text('{"text": "a", "fields": {"x": 1}}')
    assert read_examples(file) == [Example("a", {"x": 1})]
