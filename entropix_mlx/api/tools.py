"""What a model's chat template and tokenizer say about tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import PromptError
from ..tools.formats import CallFormat, find_format
from .prompts import Tool, conversation_text, template_source

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_QUESTION = [{"role": "user", "content": "?"}]
_TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "f",
        "parameters": {"type": "object", "properties": {}},
    },
}


def call_format(tokenizer: TokenizerWrapper) -> CallFormat | None:
    """Return how a model writes calls; None for one whose chat template shows it no tools."""
    if not tokenizer.has_chat_template or not _shows_tools(tokenizer):
        return None
    from mlx_lm.tokenizer_utils import _infer_tool_parser

    inner: Any = getattr(tokenizer, "_tokenizer", tokenizer)
    named = inner.init_kwargs.get("tool_parser_type") or _infer_tool_parser(inner)
    return find_format(template_source(tokenizer), named)


def special_tokens(tokenizer: TokenizerWrapper) -> dict[str, int]:
    """Return the ids of the special tokens that an answer may hold, by their texts."""
    added: Mapping[int, Any] = tokenizer.added_tokens_decoder
    ends = tokenizer.eos_token_ids
    return {
        str(token): number
        for number, token in added.items()
        if token.special and number not in ends
    }


def _shows_tools(tokenizer: TokenizerWrapper) -> bool:
    with_tool = _shown(tokenizer, [_TOOL])
    return with_tool is not None and with_tool != _shown(tokenizer)


def _shown(tokenizer: TokenizerWrapper, tools: Sequence[Tool] = ()) -> str | None:
    try:
        return conversation_text(tokenizer, _QUESTION, tools)
    except PromptError:
        return None
