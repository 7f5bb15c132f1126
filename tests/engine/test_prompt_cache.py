"""The prompt cache: who leaves when it is full."""

import pytest

from entropix_mlx.engine.cached_text import CachedText
from entropix_mlx.engine.forward import Engine
from entropix_mlx.engine.prompt_cache import PromptCache


@pytest.fixture
def make(tiny_model):
    engine = Engine(tiny_model)

    def text(first, length=40):
        """Return a text that begins like none with another first token."""
        made = CachedText.empty(tiny_model)
        engine.prefill(made, [first] * length)
        return made

    return text


def known(cache, firsts):
    """Return the texts that are in a cache, by their first token, without using them."""
    return [first for first in firsts if len(_peek(cache, first))]


def _peek(cache, first):
    before = len(cache)
    found = cache.take([first] * 41)
    if found is None:
        return []
    if len(cache) < before:  # it was taken over
        cache.give(found)
    return found.ids


@pytest.fixture
def full(make):
    """A cache with room for three texts, and 1, 2 and 3 in it."""
    size = sum(array.nbytes for array in make(1).arrays())
    cache = PromptCache(3 * size)
    for first in (1, 2, 3):
        cache.give(make(first))
    assert len(cache) == 3
    return cache


def test_the_text_used_longest_ago_leaves_first(full, make):
    full.give(make(4))
    assert known(full, [1, 2, 3, 4]) == [2, 3, 4]


def test_a_used_text_stays_longer(full, make):
    part = full.take([1] * 20)  # a copy of its beginning
    assert len(part.ids) == 20
    full.give(make(4))
    assert known(full, [1, 2, 3, 4]) == [1, 3, 4]


def test_a_text_takes_the_place_of_its_beginning(make):
    cache = PromptCache(2**30)
    for text in (make(1), make(2), make(1, 60)):
        cache.give(text)
    assert len(cache) == 2
    assert cache.bytes == sum(a.nbytes for one in (make(2), make(1, 60)) for a in one.arrays())
