"""Chat templates: rendered as transformers renders them, and stopped when they go too far."""

import time

import pytest

from entropix_mlx.api import chat_template
from entropix_mlx.api.prompts import conversation_prompt
from entropix_mlx.errors import PromptError

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
{{ '<|im_start|>system\\nYou are helpful<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + \
message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
ORDINARY = [
    CHATML,
    "{{- bos_token }}{% for m in messages %}\n    {%- if m.role == 'system' %}\n {{ m.content|trim"
    " }}\n{% else %}[INST] {{ m['content'].strip() }} [/INST]{{ eos_token }}{% endif %}"
    "{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% if ns.n > 2 %}"
    "{% break %}{% endif %}{{ ns.n }}:{{ m | tojson }}{{ m | tojson(indent=2) }}{% endfor %}",
    "{% macro one(m) %}<{{ m.role | upper }}>{{ m.content }}{% endmacro %}{% for m in messages %}"
    "{{ one(m) }}{% generation %}x{% endgeneration %}{% endfor %}{{ tools is none }}"
    "{{ documents }}",
    "{% if tools %}x{% endif %}{% if enable_thinking is defined and not enable_thinking %}off{%"
    " endif %}{{ strftime_now('%Y') }}{{ dict(a=1) }}{% for k, v in messages[0].items() %}{{ k }}="
    "{{ v }}{% endfor %}{{ range(3)|list }}{{ messages[-1].content.split(' ')[-1] }}{{ missing }}",
]
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


@pytest.mark.parametrize("template", ORDINARY, ids=range(len(ORDINARY)))
@pytest.mark.parametrize("messages", [CONVERSATION, CONVERSATION[1:2]], ids=["long", "short"])
def test_the_text_is_that_of_transformers(with_template, template, messages):
    tokenizer = with_template(template)
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert conversation_prompt(tokenizer, messages) == list(expected)


def test_named_templates_have_a_default(with_template):
    tokenizer = with_template({"default": "{{ messages[0].content }}", "tool_use": "no"})
    prompt = conversation_prompt(tokenizer, [{"role": "user", "content": "A"}])
    assert tokenizer.decode(prompt) == "A"
    with pytest.raises(PromptError, match="no default"):
        conversation_prompt(with_template({"other": "x"}), CONVERSATION)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "2 s"),
        ("{{ 'a' * 10**9 }}", "memory"),
        ("{% for a in range(99999) %}{{ 'a' * 10**4 }}{% endfor %}", "longer than any prompt"),
        ("{{ 'a' | center(10**9) }}", "memory"),
        ("{{ 'a\\na' | indent(10**9) }}", "memory"),
        ("{{ messages | tojson(indent=10**8) }}", "memory"),
        (
            "{% set n = namespace(t='aa') %}{% for i in range(60) %}{% set n.t = n.t ~ n.t %}"
            "{% endfor %}{{ n.t }}",
            "memory",
        ),
        ("{{ 10 ** (10 ** 8) }}", "2 s"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "without end"),
        ("{{ raise_exception('only users may speak') }}", "only users may speak"),
        ("{{ ''.__class__.__mro__ }}", "unsafe|undefined|access"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe|undefined|access"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ open('/etc/passwd') }}", "undefined"),
        ("{% for %}", "Expected"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "without end|memory|nested|broke"),
        ("{% if 1 %}" * 3000 + "{% endif %}" * 3000, "without end|memory|nested|broke|indent"),
        ("x" * 1_000_001, "too long"),
    ],
    ids=range(18),  # the templates are too long for names
)
def test_a_template_that_goes_too_far_is_refused(with_template, template, message):
    began = time.monotonic()
    with pytest.raises(PromptError, match=message):
        conversation_prompt(with_template(template), CONVERSATION)
    assert time.monotonic() - began < 60
    tokenizer = with_template("{{ messages[0].role }}")
    assert tokenizer.decode(conversation_prompt(tokenizer, CONVERSATION)) == "system", "goes on"


def test_the_process_ends_with_the_program_that_started_it():
    process = chat_template._process.start()
    process.stdin.close()
    assert process.wait(timeout=60) == 0
