"""How much of a conversation the model sees: its context holds only so many tokens."""

from __future__ import annotations

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..api.prompts import conversation_prompt
from ..errors import ContextLengthError
from .conversation import Conversation

ROOM = 0.25
"""The share of the context that stays free for the answer, unless `max_tokens` needs less."""
KEPT = 0.5
"""If old turns must be dropped, so many are that the prompt takes at most this share of the
context. Dropping changes the beginning of the prompt, and so makes the KV cache useless; with a
share well below ``1 - ROOM``, that happens once in several turns and not at every one."""


class Context:
    """The context of one model, and the prompts that fit into it."""

    def __init__(self, tokenizer: TokenizerWrapper, length: int) -> None:
        """Describe the context.

        Args:
            tokenizer: from `load`; it must have a chat template.
            length: tokens that the model can hold, those of the answer included.
        """
        self._tokenizer = tokenizer
        self._length = length

    def fit(self, conversation: Conversation, max_tokens: int) -> list[int]:
        """Return the prompt that asks the last question; drop the oldest turns if need be.

        The last question and the system prompt are never dropped. `conversation.dropped` is set to
        the number of turns left out, and nothing else is changed.

        Args:
            conversation: with one turn at least; its own `dropped` turns stay left out.
            max_tokens: the most tokens of the answer; −1 for as many as there is space for.

        Raises:
            ContextLengthError: the last question alone does not fit.
            PromptError: there is no chat template, or it refuses the messages.
        """
        room = ROOM * self._length
        if max_tokens >= 0:
            room = min(room, max_tokens)
        last = len(conversation.turns) - 1
        conversation.dropped = min(conversation.dropped, last)
        prompt = self._encode(conversation)
        if len(prompt) > self._length - room:
            while conversation.dropped < last and len(prompt) > KEPT * self._length:
                conversation.dropped += 1
                prompt = self._encode(conversation)
        self._check(prompt)
        return prompt

    def resumed(self, conversation: Conversation, answer: list[int]) -> list[int]:
        """Return the prompt that asks the last question, and the beginning of an answer to it.

        Args:
            conversation: what was asked; no turn more is dropped.
            answer: the tokens that the answer begins with.

        Raises:
            ContextLengthError: both together do not fit.
            PromptError: as for `fit`.
        """
        prompt = self._encode(conversation) + answer
        self._check(prompt)
        return prompt

    def _encode(self, conversation: Conversation) -> list[int]:
        return conversation_prompt(self._tokenizer, conversation.asked)

    def _check(self, prompt: list[int]) -> None:
        if len(prompt) >= self._length:
            raise ContextLengthError(
                f"the message and what precedes it have {len(prompt)} tokens, and the model's"
                f" context holds {self._length}, the answer included: shorten the message"
            )
