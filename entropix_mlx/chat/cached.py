"""A session's KV cache, together with the ids of the tokens in it."""

from __future__ import annotations

from ..models.cache import trim
from ..models.llama import Model


class CachedText:
    """A KV cache, and the tokens whose keys and values it holds."""

    def __init__(self, model: Model) -> None:
        """Begin with no text."""
        self.layers = model.make_cache()
        self.tokens: list[int] = []

    def keep_beginning_of(self, prompt: list[int]) -> list[int]:
        """Shorten the cache to what it has in common with a prompt; return the prompt's rest.

        The rest has at least the prompt's last token. The cache holds keys and values, but no
        logits, so that token is computed again even if it is cached.
        """
        common = 0
        for cached, token in zip(self.tokens, prompt[:-1], strict=False):
            if cached != token:
                break
            common += 1
        trim(self.layers, common)
        self.tokens = prompt[:common]
        return prompt[common:]

    def note(self, text: list[int]) -> None:
        """Remember what the cache holds after some decoding: as many tokens of a text as fit it."""
        self.tokens = text[: self.layers[0].offset]
