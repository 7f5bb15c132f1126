"""The counts of a server for Prometheus, by the names of its conventions and vLLM."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

PREFIX = "entropix"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_BITS = (0.1, 0.25, 0.5, 1, 2, 3, 4, 6, 8)
_TENTHS = tuple(tenth / 10 for tenth in range(1, 11))


class ServerMetrics:
    """Counts of one server. Every method may be called on any thread."""

    def __init__(self) -> None:
        disable_created_metrics()
        self._registry = CollectorRegistry()
        shared: Any = {"namespace": PREFIX, "registry": self._registry}
        counter: Callable[..., Counter] = partial(Counter, **shared)
        gauge: Callable[..., Gauge] = partial(Gauge, **shared)
        histogram: Callable[..., Histogram] = partial(Histogram, **shared, buckets=_SECONDS)
        self.requests = counter(
            "http_requests",
            "Responses by route and status; 499: the client left before one.",
            ("route", "status"),
        )
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self.cached_tokens = counter(
            "prefix_cache_hits", "Tokens of prompts that the prompt cache had."
        )
        self.tokens = counter("generation_tokens", "Tokens of answers.")
        self.strategies = counter(
            "strategies", "Tokens of answers by the strategy that chose them.", ("strategy",)
        )
        self.running = gauge("num_requests_running", "Answers that are computed.")
        self.waiting = gauge("num_requests_waiting", "Answers that wait for a place.")
        self.cached_bytes = gauge("prefix_cache_bytes", "Memory of the prompt cache.")
        self.first_token = histogram(
            "time_to_first_token_seconds", "From a request to the first token of an answer."
        )
        self.next_token = histogram(
            "inter_token_latency_seconds", "Between two tokens of an answer."
        )
        self.whole = histogram(
            "e2e_request_latency_seconds", "From a request to the end of an answer."
        )
        self.entropy = histogram(
            "token_entropy_bits", "Entropy where a token was drawn.", buckets=_BITS
        )
        self.confidence = histogram(
            "answer_confidence",
            "Geometric mean of the probabilities of an answer's tokens.",
            buckets=_TENTHS,
        )

    def text(self) -> str:
        return generate_latest(self._registry).decode()
