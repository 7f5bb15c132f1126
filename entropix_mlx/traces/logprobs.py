"""Answers that other programs recorded: `logprobs` in the JSON of OpenAI's API, of vLLM, or of
ours.

Of each token they hold the log probabilities of the few most probable ones, so its entropy is at
least what `least_entropy` returns, and its varentropy an estimate; attention is unknown. The name
of the sampler says so wherever such a trace is shown.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from .. import limits
from ..errors import TraceError
from ..files import expanded, reading
from ..profiles.profile import Profile
from ..records import from_record, parse_json
from ..step import OF_ATTENTION, Alternative, Metrics, Step, Strategy
from .trace import FORMAT, Header, Trace, read_trace

RECORDED_BOUND = "logprobs, H is at least"
"""The sampler of such a trace: unknown, but for what its entropies are."""
_BYTES = re.compile(r"bytes:((?:\\x[0-9a-f]{2})+)", re.IGNORECASE)
"""How completions write a token that is no text by itself."""


@dataclass(frozen=True)
class _Listed:
    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class _Token(_Listed):
    """As chats have it."""

    top_logprobs: tuple[_Listed, ...] | None = None


@dataclass(frozen=True)
class _Columns:
    """As completions have it."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float | None, ...]
    top_logprobs: tuple[dict[str, float] | None, ...] | None = None


def read_answer(path: str | Path, number: int = 1) -> Trace:
    """Return a trace, or an answer of a response that another program recorded.

    Args:
        path: a trace; JSON or JSON Lines of responses; or a folder of these.
        number: which of the answers in them, from 1.

    Raises:
        TraceError: it cannot be read, holds something else, or not so many answers.
    """
    found = next(islice(_answers(expanded(path, TraceError)), number - 1, None), None)
    if found is None:
        raise TraceError(
            f"{path} has no answer number {number} with logprobs: ask for them with logprobs=true"
            " and top_logprobs=20 (chats), or logprobs=5 (completions)"
        )
    return found


def _answers(path: Path) -> Iterator[Trace]:
    with reading(path, TraceError):
        files = sorted(islice(path.iterdir(), limits.FOLDER_ENTRIES)) if path.is_dir() else None
    if files is not None:
        for file in (file for file in files if file.suffix in (".json", ".jsonl")):
            yield from _answers(file)
    elif _is_other(path):
        yield from _of_responses(path)
    else:
        yield read_trace(path)


def _is_other(path: Path) -> bool:
    """Return whether a file begins as JSON that is no trace."""
    _, first = next(limits.read_lines(path, limits.TRACE_BYTES, TraceError, whole=False), (1, b""))
    return first.lstrip()[:1] in (b"{", b"[") and f'"{FORMAT}"'.encode() not in first[:1000]


def _of_responses(path: Path) -> Iterator[Trace]:
    text = limits.read_named(path, limits.CONVERSATION_BYTES, TraceError)
    try:
        responses = json.loads(text)
    except (ValueError, RecursionError):
        lines = (line for line in text.splitlines() if line.strip())
        responses = [parse_json(line, str(path), TraceError) for line in lines]
    for response in responses if isinstance(responses, list) else [responses]:
        try:
            yield from _of_response(response)
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
            message = f"{path} is neither a trace nor a response with logprobs: {error}"
            raise TraceError(message) from error


def _of_response(response: dict[str, Any]) -> Iterator[Trace]:
    if "response" in response:  # a line of OpenAI's batches
        response = response["response"]["body"]
    if "choices" not in response:
        raise ValueError("it has no choices")
    for choice in response["choices"]:
        if choice.get("logprobs"):
            tokens = list(_tokens(choice["logprobs"]))
            reason = choice.get("finish_reason")
            yield Trace(_header(response), list(_steps(tokens, reason)), {"finish_reason": reason})


def _header(response: dict[str, Any]) -> Header:
    usage = response.get("usage") or {}
    return Header(
        model=str(response.get("model", "unknown")),
        sampler=RECORDED_BOUND,
        profile=Profile.load(),
        seed=0,
        messages=[],
        context_length=0,
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        versions={},
    )


def _tokens(logprobs: dict[str, Any]) -> Iterator[_Token]:
    if logprobs.get("content") is not None:
        for token in logprobs["content"]:
            yield from_record(_Token, token)
        return
    columns = from_record(_Columns, logprobs)
    listed = columns.top_logprobs or [None] * len(columns.tokens)
    for text, logprob, top in zip(columns.tokens, columns.token_logprobs, listed, strict=True):
        if logprob is not None:  # else it is the first of an echoed prompt
            others = tuple(_Listed(token, value) for token, value in (top or {}).items())
            yield _Token(text, logprob, top_logprobs=others)


def _steps(tokens: Sequence[_Token], finish_reason: str | None) -> Iterator[Step]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for index, token in enumerate(tokens):
        last = index == len(tokens) - 1
        raw = _raw(token)
        text = decoder.decode(raw, last) if raw is not None else decoder.decode(b"") + token.token
        listed = sorted(token.top_logprobs or (), key=lambda one: -one.logprob)
        best = [math.exp(min(one.logprob, 0.0)) for one in listed]
        probabilities = best or [math.exp(min(token.logprob, 0.0))]
        yield Step(
            index=index,
            token=_identity(token),
            text=text,
            logprob=token.logprob,
            **_metrics(probabilities, ordered=bool(best))._asdict(),
            position_score=0.0,
            strategy=Strategy.SAMPLE,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            top_logprobs=tuple(
                Alternative(_identity(one), one.token, one.logprob) for one in listed
            ),
            finish_reason=finish_reason if last else None,
        )


def _metrics(probabilities: Sequence[float], ordered: bool) -> Metrics[float]:
    margin = probabilities[0] - probabilities[1] if len(probabilities) > 1 else math.nan
    unknown = (math.nan,) * len(OF_ATTENTION)
    entropy = least_entropy(probabilities, ordered)
    return Metrics(entropy, _varentropy(probabilities), margin, *unknown)


def _raw(token: _Listed) -> bytes | None:
    if token.bytes is not None:
        return bytes(token.bytes)
    found = _BYTES.fullmatch(token.token)
    return bytes.fromhex(found[1].replace("\\x", "")) if found else None


def _identity(token: _Listed) -> int:
    """Return a number that is equal for equal tokens: such records have no ids."""
    raw = _raw(token)
    return zlib.crc32(token.token.encode("utf-8", "replace") if raw is None else raw)


def least_entropy(probabilities: Sequence[float], ordered: bool = True) -> float:
    """Return a lower bound on the entropy in bits of which some probabilities are known.

    The surprise of the others is at least that of the least of these, if these are the most
    probable ones (`ordered`), and at least that of one token with all that is left.
    """
    rest = max(0.0, 1 - math.fsum(probabilities))
    most = min(rest, *probabilities) if ordered else rest
    return _expected(probabilities, 1) + (-rest * math.log2(most) if most else 0.0)


def _varentropy(probabilities: Iterable[float]) -> float:
    """Return the variance of the surprise, as if what is left were one token."""
    known = list(probabilities)
    whole = [*known, max(0.0, 1 - math.fsum(known))]
    return max(0.0, _expected(whole, 2) - _expected(whole, 1) ** 2)


def _expected(probabilities: Iterable[float], power: int) -> float:
    return math.fsum(p * (-math.log2(p)) ** power for p in probabilities if p > 0)
