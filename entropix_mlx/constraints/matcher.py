"""Which tokens may come next in a text that a constraint is put on; llguidance knows."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import limits
from ..errors import ConstraintError, first_line
from .constraint import CHOICE, GRAMMAR, JSON_SCHEMA, REGEX, Constraint

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from mlx_lm.tokenizer_utils import TokenizerWrapper

WHITE_SPACE = r"\x20|\n(\x20{0,24}|\x09{0,8})"
"""Between two tokens of JSON: nothing, a space, or a line break with an indentation. It is not
forbidden, since a model that is made to leave it out writes other values; it is bounded, since some
models never end it."""
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
        return int(self._matcher.validate_tokens(list(tokens)))

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
        return list(self._matcher.compute_ff_tokens())

    def _mask(self) -> Mask:
        found = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint32)
        self._check()
        return found[: self._words]

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ConstraintError(
                f"the constraint cannot be followed: {first_line(_Said(self._matcher.get_error()))}"
            )


class _Said(Exception):
    """What a library said, for `first_line`."""


def matcher_for(constraint: Constraint, tokenizer: TokenizerWrapper, vocab: int) -> Matcher:
    """Return the matcher of an empty text.

    Args:
        vocab: tokens that the model has.

    Raises:
        ConstraintError: the constraint cannot be compiled, uses something that is not supported, or
            allows nothing that the tokenizer can spell; the message names the place.
    """
    known = _compiled(tokenizer, vocab)
    key = constraint.kind, constraint.text
    found = known.matchers.get(key) or _compile(constraint, known.tokenizer, vocab)
    with _CHANGING:
        known.matchers[key] = found
        known.matchers.move_to_end(key)
        while len(known.matchers) > COMPILED:
            known.matchers.popitem(last=False)
    return found.copy()


class _Compiled:
    """The constraints that were compiled for one tokenizer."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self.tokenizer = tokenizer
        self.matchers: OrderedDict[tuple[str, str], Matcher] = OrderedDict()


_CHANGING = threading.Lock()  # a server compiles on a thread of its own
_BY_TOKENIZER: weakref.WeakKeyDictionary[Any, dict[int, _Compiled]] = weakref.WeakKeyDictionary()


def _compiled(tokenizer: TokenizerWrapper, vocab: int) -> _Compiled:
    sized = _BY_TOKENIZER.setdefault(tokenizer, {})
    if vocab not in sized:
        sized[vocab] = _Compiled(_ll_tokenizer(tokenizer, vocab))
    return sized[vocab]


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


def _compile(constraint: Constraint, tokenizer: LLTokenizer, vocab: int) -> Matcher:
    from llguidance import LLMatcher, LLParserLimits

    bounds = LLParserLimits(
        initial_lexer_fuel=limits.CONSTRAINT_FUEL, max_grammar_size=limits.CONSTRAINT_SYMBOLS
    )
    try:
        grammar = _grammar(constraint)
    except Exception as error:  # of the converter of GBNF, which raises what it likes
        raise _refused(constraint, str(error)) from error
    failed, said = LLMatcher.validate_grammar_with_warnings(grammar, tokenizer, limits=bounds)
    if failed:
        raise _refused(constraint, "; ".join(said))
    found = Matcher(LLMatcher(tokenizer, grammar, limits=bounds, log_level=0), vocab)
    if not any(mask.any() for mask in found.masks()):
        raise _refused(constraint, "nothing matches it that this tokenizer can spell")
    return found


def _refused(constraint: Constraint, said: str) -> ConstraintError:
    where = " ".join(said.split())[: limits.MESSAGE_CHARACTERS]
    return ConstraintError(f"the {constraint.kind} cannot be followed: {where}; change it there")


def _grammar(constraint: Constraint) -> str:
    from llguidance import LLMatcher, grammar_from

    if constraint.kind == JSON_SCHEMA:
        options: Any = {"whitespace_pattern": WHITE_SPACE}
        return LLMatcher.grammar_from_json_schema(constraint.text, overrides=options)
    names = {REGEX: "regex", CHOICE: "choice", GRAMMAR: "gbnf"}
    return grammar_from(names[constraint.kind], constraint.text)  # type: ignore[arg-type]
