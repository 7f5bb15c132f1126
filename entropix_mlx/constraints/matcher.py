"""Which tokens may come next in a text that a constraint is put on; llguidance knows."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from
from numpy.typing import NDArray

from .. import limits
from ..errors import ConstraintError, first_line
from .constraint import CHOICE, REGEX, Constraint

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

WHITE_SPACE = r"\x20|\n(\x20{0,24}|\x09{0,8})"
"""Between two tokens of JSON: nothing, a space, or a line break with an indentation. It is not
forbidden, since a model that is made to leave it out writes other values; it is bounded, since some
models never end it."""
JSON_OPTIONS: Any = {
    "whitespace_pattern": WHITE_SPACE,
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
    "json_allowed_escapes": 'nrbtf\\"',
}
"""All that a schema could change by itself under ``x-guidance``. Escapes such as ``\\u0061`` are
left out, since a key that is spelled by them would replace that of a listed property."""
BEGINNING = 4
"""Tokens that a constraint is tried with when it is compiled."""
FAILED = "the constraint cannot be followed: "
NOTHING_MATCHES = "nothing matches it that this tokenizer can spell"
OVERLAPPING = "oneOf is followed only where no two of its schemas can match the same; use anyOf"
COMPARED = ("const", "enum", "default", "examples")
COMPILED = 32
"""Constraints that are cached for each tokenizer."""
WORD = 32
"""Tokens in a word of a mask."""

Mask = NDArray[np.uint32]
"""`(words,)`: bit t % 32 of word t // 32 tells whether token t is allowed."""


class Matcher:
    """One text as far as it has come, and the tokens that may follow it.

    Its methods raise a `ConstraintError` where the constraint turns out to need more time or memory
    than `limits.py` allows.
    """

    def __init__(self, matcher: LLMatcher, vocab: int) -> None:
        self._matcher = matcher
        self._words = -(-vocab // WORD)

    def copy(self) -> Matcher:
        """Return another matcher of the same text: that takes ten microseconds.

        Tokens are never taken back from one: after llguidance's own roll-back, a matcher was seen
        to refuse a token that its mask allowed.
        """
        found = Matcher.__new__(Matcher)
        found._matcher, found._words = self._matcher.deep_copy(), self._words
        return found

    def add(self, token: int) -> None:
        """Let a token join the text.

        Raises:
            ConstraintError: it is not allowed there.
        """
        if not self._matcher.consume_token(token):
            self._check()
            raise ConstraintError(f"token {token} is not what the constraint allows here")

    def fitting(self, tokens: Sequence[int]) -> int:
        """Return how many of some tokens may follow one another here."""
        found = int(self._matcher.validate_tokens(list(tokens)))
        self._check()
        return found

    def masks(self, following: Sequence[int] = ()) -> list[Mask]:
        """Return what is allowed next, and after each of some tokens, which must all fit."""
        found = [self._mask()]
        ahead = self.copy() if following else self
        for token in following:
            ahead.add(token)
            found.append(ahead._mask())
        return found

    def forced(self) -> list[int]:
        """Return the tokens that must follow, in the spelling of the tokenizer."""
        found = list(self._matcher.compute_ff_tokens())
        self._check()
        return found

    def check_beginning(self) -> None:
        """Go through the first tokens of a text, where most that is too large is found.

        Raises:
            ConstraintError: nothing matches, or it needs too much.
        """
        ahead = self.copy()
        first = np.flatnonzero(np.unpackbits(ahead._mask().view(np.uint8), bitorder="little"))
        for token in ahead.forced()[:BEGINNING] or first[:1]:
            ahead.add(int(token))
            ahead._mask()

    def _mask(self) -> Mask:
        found = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint32)
        self._check()
        return found[: self._words]

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ConstraintError(f"{FAILED}{said_by(self._matcher)}")


def said_by(matcher: LLMatcher) -> str:
    """Return why a matcher failed, in one line."""
    said = " ".join(matcher.get_error().partition("<non-verbose/>")[0].split())
    said = said[: limits.MESSAGE_CHARACTERS]
    return NOTHING_MATCHES if said.startswith("NoExtension") else said


def matcher_for(constraint: Constraint, tokenizer: TokenizerWrapper, vocab: int) -> Matcher:
    """Return the matcher of an empty text.

    Args:
        vocab: tokens that the model has.

    Raises:
        ConstraintError: the constraint cannot be compiled, uses something that is not supported, or
            allows nothing that the tokenizer can spell; the message names the keyword.
    """
    compilers = _COMPILERS.setdefault(tokenizer, {})
    if vocab not in compilers:
        compiler = partial(_compile, _ll_tokenizer(tokenizer, vocab), vocab)
        compilers[vocab] = lru_cache(COMPILED)(compiler)
    return compilers[vocab](constraint).copy()


Compiler = Callable[[Constraint], Matcher]
_COMPILERS: weakref.WeakKeyDictionary[Any, dict[int, Compiler]] = weakref.WeakKeyDictionary()
"""By tokenizer and vocabulary size."""


def _ll_tokenizer(tokenizer: TokenizerWrapper, vocab: int) -> LLTokenizer:
    from llguidance.hf import from_tokenizer

    ends = sorted(token for token in tokenizer.eos_token_ids if token < vocab)
    try:
        return from_tokenizer(tokenizer._tokenizer, n_vocab=vocab, eos_token=ends or None)
    except (ValueError, AttributeError, TypeError) as error:
        raise ConstraintError(
            f"this tokenizer cannot spell constraints ({first_line(error)}): use a model with a"
            " tokenizer.json"
        ) from error


def _compile(tokenizer: LLTokenizer, vocab: int, constraint: Constraint) -> Matcher:
    try:
        grammar = _grammar(constraint)
    except Exception as error:  # of the converter of GBNF, which raises what it likes
        raise _refused(constraint, str(error)) from error
    compiled = LLMatcher(tokenizer, grammar, limits=_bounds(), log_level=0)
    if compiled.is_error():
        raise _refused(constraint, said_by(compiled))
    if constraint.is_json:
        _check_counts(constraint)
    found = Matcher(compiled, vocab)
    try:
        found.check_beginning()
    except ConstraintError as error:
        raise _refused(constraint, str(error).removeprefix(FAILED)) from error
    return found


def _bounds() -> LLParserLimits:
    return LLParserLimits(
        initial_lexer_fuel=limits.CONSTRAINT_FUEL,
        max_grammar_size=limits.CONSTRAINT_SYMBOLS,
        max_items_in_row=limits.CONSTRAINT_ROW,
        verbose_errors=False,
    )


def _refused(constraint: Constraint, said: str) -> ConstraintError:
    said = " ".join(said.split())[: limits.MESSAGE_CHARACTERS]
    said = OVERLAPPING if said.startswith("oneOf") else said
    return ConstraintError(f"the {constraint.kind} cannot be followed: {said}")


def _check_counts(constraint: Constraint) -> None:
    """Refuse what llguidance would count wrongly: the keys of unlisted properties may repeat.

    Raises:
        ConstraintError: a number of properties is asked for.
    """
    for schema in _schemas(constraint.value):
        least, required = schema.get("minProperties", 0), schema.get("required", ())
        if isinstance(least, int) and least > max(1, len(required)):
            said = f"minProperties {least} needs as many names in required, since keys may repeat"
            raise _refused(constraint, said)


def _schemas(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all objects in a schema, but for values that an answer is compared with."""
    if isinstance(value, Mapping):
        yield value
        value = [inner for key, inner in value.items() if key not in COMPARED]
    if isinstance(value, (list, tuple)):
        for inner in value:
            yield from _schemas(inner)


def _grammar(constraint: Constraint) -> str:
    if constraint.is_json:
        return _json_grammar(constraint.text)
    if constraint.kind == CHOICE:
        return LLMatcher.grammar_from_regex("|".join(map(re.escape, constraint.value)))
    if constraint.kind == REGEX:
        return LLMatcher.grammar_from_regex(constraint.text)
    return grammar_from("gbnf", constraint.text)


def _json_grammar(schema: str) -> str:
    return LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)
