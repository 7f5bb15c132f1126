"""Files of prompts: what each kind may hold, and that every mistake names its line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entropix_mlx import Settings
from entropix_mlx.api.prompt_file import read_prompt_file
from entropix_mlx.errors import (
    EntropixError,
    ProfileError,
    PromptError,
    SamplerError,
    SettingsError,
)


@pytest.fixture
def read(tmp_path):
    def read(text, kind="txt", *arguments):
        path = tmp_path / f"prompts.{kind}"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_prompt_file(path, *arguments)

    return read


def test_a_text_file_has_a_prompt_a_line(read):
    found = read("\ufefffirst \r\n\n second\u2028half\nlast", "txt", Settings(seed=4), "be brief")
    assert [(p.line, p.prompt) for p in found] == [
        (1, "first"),
        (3, "second\u2028half"),
        (4, "last"),
    ]
    assert {p.settings.seed for p in found} == {4}
    assert found[0].content == {"prompt": "first", "system_prompt": "be brief"}


def test_a_line_of_json_has_options_of_its_own(read):
    lines = [
        {
            "prompt": "one",
            "id": [7],
            "seed": 3,
            "stop": "\n",
            "sampler": "greedy",
            "speculation": 3,
        },
        {"prompt": "two", "changes": {"think": {"max_insertions": 2}}, "system_prompt": "x"},
        {"messages": [{"role": "user", "content": "three"}], "logit_bias": {"65": -2}},
    ]
    base = Settings(max_tokens=9, changes={"think": {"min_gap": 5}})
    one, two, three = read("\n".join(map(json.dumps, lines)), "JSONL", base, "be brief")
    assert (one.id, one.settings.seed, one.settings.stop) == ([7], 3, ("\n",))
    assert (one.settings.sampler, one.settings.max_tokens) == ("greedy", 9)
    assert one.settings.speculation == 3
    assert two.settings.changes == {"think": {"min_gap": 5, "max_insertions": 2}}
    assert (two.system_prompt, two.settings.sampler) == ("x", "entropix")
    assert three.settings.logit_bias == {65: -2}
    assert [m["role"] for m in three.messages] == ["system", "user"]


MISTAKES = [
    ("jsonl", '{"prompt": "a"}\n{"prompt":', 2, PromptError, "not JSON"),
    ("jsonl", "[" * 100_000, 1, PromptError, "not JSON"),
    ("jsonl", '"text"', 1, PromptError, "an object"),
    ("jsonl", '\n{"promt": "a"}', 2, PromptError, "did you mean prompt?"),
    ("jsonl", '{"prompt": "a", "messages": []}', 1, PromptError, "either"),
    ("jsonl", '{"prompt": " "}', 1, PromptError, "empty"),
    ("jsonl", '{"messages": []}', 1, PromptError, "at least one"),
    ("jsonl", '{"messages": [{"role": "me", "content": ""}]}', 1, PromptError, "messages[0].role"),
    ("jsonl", '{"messages": [{"role": "user", "content": "", "x": 1}]}', 1, PromptError, "[0].x"),
    ("jsonl", '{"messages": "x"}', 1, PromptError, "messages"),
    ("jsonl", '{"prompt": 5}', 1, PromptError, "prompt"),
    ("jsonl", '{"prompt": "a", "max_tokens": "many"}', 1, SettingsError, "max_tokens"),
    ("jsonl", '{"prompt": "a", "sampler": "best"}', 1, SamplerError, "best"),
    ("jsonl", '{"prompt": "a", "changes": {"think": {"x": 1}}}', 1, ProfileError, "think.x"),
    ("jsonl", '{"prompt": "a", "logit_bias": {"x": 1}}', 1, SamplerError, "logit_bias"),
]


@pytest.mark.parametrize(("kind", "text", "line", "error", "named"), MISTAKES)
def test_a_mistake_is_reported_with_its_line(read, kind, text, line, error, named):
    with pytest.raises(error) as caught:
        read(text, kind)
    report = str(caught.value)
    assert f"prompts.{kind}, line {line}: " in report
    assert named in report
    assert "\n" not in report


def test_a_table_is_refused(read):
    with pytest.raises(PromptError, match="JSON Lines"):
        read("prompt,seed\nWhy?,1\n", "csv")


def test_a_file_without_prompts(read):
    with pytest.raises(PromptError, match="no prompts"):
        read("\n \n")


@given(st.binary(max_size=80), st.sampled_from(["txt", "jsonl"]))
def test_any_file_is_read_or_refused(tmp_path_factory, content, kind):
    path = tmp_path_factory.mktemp("any") / f"prompts.{kind}"
    path.write_bytes(content)
    try:
        found = read_prompt_file(path)
    except EntropixError:
        return
    assert all(p.prompt or p.messages for p in found)
