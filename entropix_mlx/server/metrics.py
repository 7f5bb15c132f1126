"""The counts of a server, in Prometheus's text format."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from ..step import Step

FIRST_TOKEN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the classes in which times to the first token are counted."""
PREFIX = "entropix"


class ServerMetrics:
    """Counts of one server. Every method may be called on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._gauges: dict[str, float] = {}
        self._first_token: Counter[float] = Counter()
        self._first_token_seconds = 0.0

    def request(self, route: str, status: int) -> None:
        self.count(f'requests_total{{route="{route}",status="{status}"}}')

    def count(self, series: str, more: int = 1) -> None:
        with self._lock:
            self._counts[series] += more

    def gauge(self, **values: float) -> None:
        with self._lock:
            self._gauges |= values

    def step(self, step: Step) -> None:
        self.count("generated_tokens_total")
        self.count(f'strategies_total{{strategy="{step.strategy}"}}')

    def first_token(self, seconds: float) -> None:
        bound = next((bound for bound in FIRST_TOKEN_SECONDS if seconds <= bound), float("inf"))
        with self._lock:
            self._first_token[bound] += 1
            self._first_token_seconds += seconds

    def text(self) -> str:
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        named = ""
        for series, number in sorted(self._counts.items()):
            name = series.partition("{")[0]
            if name != named:
                yield f"# TYPE {PREFIX}_{name} counter"
                named = name
            yield f"{PREFIX}_{series} {number}"
        for gauge, value in sorted(self._gauges.items()):
            yield f"# TYPE {PREFIX}_{gauge} gauge"
            yield f"{PREFIX}_{gauge} {value:g}"
        name, so_far = f"{PREFIX}_time_to_first_token_seconds", 0
        yield f"# TYPE {name} histogram"
        for bound in FIRST_TOKEN_SECONDS:
            so_far += self._first_token[bound]
            yield f'{name}_bucket{{le="{bound:g}"}} {so_far}'
        yield f'{name}_bucket{{le="+Inf"}} {self._first_token.total()}'
        yield f"{name}_sum {self._first_token_seconds:.6f}"
        yield f"{name}_count {self._first_token.total()}"
