"""Chat templates: rendered by transformers, and one error where they fail."""

import pytest

from entropix_mlx.api.prompts import conversation_prompt
from entropix_mlx.errors import PromptError

TEMPLATE = (
    "{{- bos_token }}{% for m in messages %}\n    {%- if m.role == 'system' %}\n {{ m.content|trim"
    " }}\n{% else %}[INST] {{ m['content'].strip() }} [/INST]{{ eos_token }}{% endif %}"
    "{% endfor %}"
)
CONVERSATION = [
    {"role": "system", "content": 'Be <brief> & "kind"'},
    {"role": "user", "content": " Hé, 日本? 😀\n"},
    {"role": "assistant", "content": "{{ 7 * 7 }}"},
    {"role": "user", "content": "no {% more %}"},
]


@pytest.fixture
def with_template(byte_tokenizer, monkeypatch):
    def give(template):
        monkeypatch.setattr(byte_tokenizer._tokenizer, "chat_template", template)
        return byte_tokenizer

    return give


def test_the_tokens_are_those_of_transformers(with_template):
    tokenizer = with_template(TEMPLATE)
    expected = tokenizer.apply_chat_template(CONVERSATION, add_generation_prompt=True)
    assert conversation_prompt(tokenizer, CONVERSATION) == list(expected)


def test_named_templates_have_a_default(with_template):
    tokenizer = with_template({"default": "{{ messages[0].content }}", "tool_use": "no"})
    prompt = conversation_prompt(tokenizer, [{"role": "user", "content": "A"}])
    assert tokenizer.decode(prompt) == "A"
    with pytest.raises(PromptError, match="no default"):
        conversation_prompt(with_template({"other": "x"}), CONVERSATION)


@pytest.mark.parametrize(
    "template",
    [
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ raise_exception('only users may speak') }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{{ open('/etc/passwd') }}",
        "{% for %}",
        "{{ 1 / 0 }}",
        "x" * 1_000_001,
    ],
    ids=range(9),  # the templates are too long for names
)
def test_a_template_that_fails_is_one_error(with_template, template):
    with pytest.raises(PromptError) as caught:
        conversation_prompt(with_template(template), CONVERSATION)
    assert len(str(caught.value).splitlines()) == 1
    tokenizer = with_template("{{ messages[0].role }}")
    assert tokenizer.decode(conversation_prompt(tokenizer, CONVERSATION)) == "system", "goes on"
