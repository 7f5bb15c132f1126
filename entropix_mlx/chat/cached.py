"""A session's KV cache, together with the ids of the tokens in it."""

from __future__ import annotations

from ..models.cache import trim
from ..models.llama import Model


class CachedText:
    """The text whose keys and values are cached."""

    def __init__(self, model: Model) -> None:
        """Begin with no text."""
        self.layers = model.make_cache()
        self.tokens: list[int] = []

    def keep_beginning_of(self, prompt: list[int]) -> list[int]:
        """Shorten the cache to what it has in common with a prompt; return the prompt's rest.

        The rest has one token at least: what follows the last one was not kept, so that token must
        be computed again.
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
        """Remember the tokens in the cache, which are the first ones of a text."""
        self.tokens = text[: self.layers[0].offset]
