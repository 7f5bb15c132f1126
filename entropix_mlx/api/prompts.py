"""Turning messages or a text into the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import limits
from ..errors import PromptError, first_line

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Message = Mapping[str, Any]
"""``{"role": "system", "user" or "assistant", "content": text}``, as chat templates read it; one of
the assistant may have `tool_calls`, which those of the role "tool" answer by `tool_call_id`."""
Tool = Mapping[str, Any]  # ``{"type": "function", "function": {name, description, parameters}}``
Variables = Mapping[str, Any]  # of a chat template, such as ``{"enable_thinking": False}``
NO_VARIABLES: Variables = {}


def chat_prompt(
    tokenizer: TokenizerWrapper, prompt: str, system_prompt: str | None = None
) -> list[int]:
    """Return the tokens of one user message in the model's chat template.

    Without a chat template, they are the tokens of the bare text. Raises `PromptError` if the
    prompt is empty, or the template refuses it: some know no system prompt.
    """
    if not tokenizer.has_chat_template:
        if system_prompt is not None:
            raise PromptError(
                "this model has no chat template, so it takes no system prompt: leave it out"
            )
        return text_prompt(tokenizer, prompt)
    if not prompt.strip():
        raise PromptError("the prompt is empty: write a question")
    system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    return conversation_prompt(tokenizer, [*system, {"role": "user", "content": prompt}])


def conversation_prompt(
    tokenizer: TokenizerWrapper,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    variables: Variables = NO_VARIABLES,
) -> list[int]:
    """Return the tokens of a conversation, up to where the model's answer begins.

    A template that knows no tools leaves them out; see `api.tools.call_format`. `variables` of the
    template replace those of the model's `Extras`. Raises `PromptError` if the model has no chat
    template, or the template refuses the messages.
    """
    rendered = _rendered(tokenizer, messages, tools, variables, tokenize=True)
    if isinstance(rendered, str):
        return list(tokenizer.encode(rendered, add_special_tokens=False))
    return list(rendered)


def conversation_text(
    tokenizer: TokenizerWrapper, messages: Sequence[Message], tools: Sequence[Tool] = ()
) -> str:
    """Return a conversation as text, up to where the model's answer begins. Raises `PromptError` as
    for `conversation_prompt`."""
    return str(_rendered(tokenizer, messages, tools, NO_VARIABLES, tokenize=False))


def text_prompt(tokenizer: TokenizerWrapper, text: str) -> list[int]:
    """Return the tokens of a text to continue, after those that begin any text. Raises
    `PromptError` if the text is empty."""
    if not text:
        raise PromptError("the prompt is empty: write a text to continue")
    return list(tokenizer.encode(text))


def template_source(tokenizer: TokenizerWrapper) -> str:
    """Return the template that came with a model.

    Empty if its messages are not rendered by one, but by code of mlx-lm or transformers.
    """
    from transformers import PreTrainedTokenizerBase

    inner = getattr(tokenizer, "_tokenizer", tokenizer)
    is_code = (
        getattr(tokenizer, "_chat_template", None) is not None
        or type(inner).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template
    )
    return "" if is_code else str(tokenizer.get_chat_template())


def _rendered(
    tokenizer: TokenizerWrapper,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    variables: Variables,
    tokenize: bool,
) -> Any:
    """Return a conversation as text, or as tokens if that is asked for and code renders it."""
    if not tokenizer.has_chat_template:
        raise PromptError("this model has no chat template: choose an instruction-tuned model")
    given = {**vars(tokenizer).get("_chat_template_config", {}), **variables}
    try:
        template = template_source(tokenizer)
        if len(template.encode("utf-8", "replace")) > limits.TEMPLATE_BYTES:
            raise PromptError("the chat template is too long to be one: choose another model")
        if "xml_tools" in template:  # as SmolLM3 calls them
            given = {"xml_tools": list(tools) or None, **given}
        return tokenizer.apply_chat_template(
            list(messages),
            tools=list(tools) or None,
            add_generation_prompt=True,
            tokenize=tokenize and not template,
            **given,
        )
    except PromptError:
        raise
    except Exception as error:  # a template is a program: it raises what it likes
        why = first_line(error) or type(error).__name__
        raise PromptError(f"the chat template refuses these messages: {why}") from error
