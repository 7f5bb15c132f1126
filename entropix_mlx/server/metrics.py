"""The counts of a server, in Prometheus's text format, by the names of its conventions and vLLM."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean

from ..step import Step

PREFIX = "entropix"
COUNTERS = {
    "http_requests_total": "Responses by route and status; 499: the client left before one.",
    "requests_refused_total": "Requests that were refused because the queue was full.",
    "prompt_tokens_total": "Tokens of prompts.",
    "generation_tokens_total": "Tokens of answers.",
    "strategies_total": "Tokens of answers by the strategy that chose them.",
    "prefix_cache_queries_total": "Tokens of prompts that were looked for in the prompt cache.",
    "prefix_cache_hits_total": "Tokens of prompts that the prompt cache had.",
    "model_loads_total": "Models that were loaded.",
}
GAUGES = {
    "num_requests_running": "Answers that are computed.",
    "num_requests_waiting": "Answers that wait for a place.",
    "prefix_cache_texts": "Texts in the prompt caches.",
    "prefix_cache_bytes": "Memory of the prompt caches.",
    "models_loaded": "Models in memory.",
}
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
HISTOGRAMS = {
    "time_to_first_token_seconds": ("From a request to the first token of an answer.", _SECONDS),
    "inter_token_latency_seconds": ("Between two tokens of an answer.", _SECONDS),
    "request_queue_time_seconds": ("From a request to when its prompt is begun.", _SECONDS),
    "e2e_request_latency_seconds": ("From a request to the end of an answer.", _SECONDS),
    "token_entropy_bits": ("Entropy where a token was drawn.", (0.1, 0.25, 0.5, 1, 2, 3, 4, 6, 8)),
    "answer_confidence": (
        "Geometric mean of the probabilities of an answer's tokens.",
        tuple(tenth / 10 for tenth in range(1, 11)),
    ),
}
"""What each is, and the upper bounds of its classes."""


@dataclass
class _Histogram:
    bounds: tuple[float, ...]
    total: float = 0.0
    counts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> Iterator[str]:
        for bound, so_far in zip((*self.bounds, math.inf), accumulate(self.counts), strict=True):
            label = "+Inf" if math.isinf(bound) else f"{bound:g}"
            yield f'{name}_bucket{{le="{label}"}} {so_far}'
        yield f"{name}_sum {self.total:.6f}"
        yield f"{name}_count {sum(self.counts)}"


class ServerMetrics:
    """Counts of one server. Every method may be called on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._gauges: dict[str, float] = {}
        self._histograms = {name: _Histogram(bounds) for name, (_, bounds) in HISTOGRAMS.items()}

    def request(self, route: str, status: int) -> None:
        self.count("http_requests_total", labels=f'{{route="{route}",status="{status}"}}')

    def count(self, name: str, more: int = 1, labels: str = "") -> None:
        with self._lock:
            self._counts[name, labels] += more

    def gauge(self, **values: float) -> None:
        with self._lock:
            self._gauges |= values

    def observe(self, name: str, value: float) -> None:
        if math.isfinite(value):
            with self._lock:
                self._histograms[name].observe(value)

    def step(self, step: Step) -> None:
        self.count("generation_tokens_total")
        self.count("strategies_total", labels=f'{{strategy="{step.strategy}"}}')
        self.observe("token_entropy_bits", step.metrics.entropy)

    def text(self) -> str:
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for name, described in COUNTERS.items():
            yield from _head(name, "counter", described)
            found = sorted(
                (labels, n) for (other, labels), n in self._counts.items() if other == name
            )
            for labels, number in found:
                yield f"{PREFIX}_{name}{labels} {number}"
        for name, described in GAUGES.items():
            yield from _head(name, "gauge", described)
            yield f"{PREFIX}_{name} {self._gauges.get(name, 0):g}"
        for name, (described, _) in HISTOGRAMS.items():
            yield from _head(name, "histogram", described)
            yield from self._histograms[name].lines(f"{PREFIX}_{name}")


def _head(name: str, kind: str, described: str) -> Iterator[str]:
    yield f"# HELP {PREFIX}_{name} {described}"
    yield f"# TYPE {PREFIX}_{name} {kind}"


class AnswerTimes:
    """Observes the times and the confidence of one answer."""

    def __init__(self, metrics: ServerMetrics, began: float) -> None:
        self._metrics = metrics
        self._began = began
        self._last: float | None = None
        self._logprobs: list[float] = []
        self._opened = False

    def open(self) -> None:
        """Note that its prompt is begun."""
        if not self._opened:
            self._opened = True
            self._observe("request_queue_time_seconds", self._began)

    def step(self, step: Step) -> None:
        if self._last is None:
            self._observe("time_to_first_token_seconds", self._began)
        else:
            self._observe("inter_token_latency_seconds", self._last)
        self._last = time.perf_counter()
        self._logprobs.append(step.logprob)
        self._metrics.step(step)

    def end(self) -> None:
        self._observe("e2e_request_latency_seconds", self._began)
        if self._logprobs:
            self._metrics.observe("answer_confidence", math.exp(fmean(self._logprobs)))

    def _observe(self, name: str, since: float) -> None:
        self._metrics.observe(name, time.perf_counter() - since)
