"""Speed and memory against mlx-lm: one process, the same weights, runs that take turns.

`bench` measures; each file beside this one measures one thing. Decoding starts from a cache that is
filled with made-up keys and values, since computing thousands of real ones takes minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ...models.llama import Model
from .decoding import measure_decoding
from .draws import measure_sampler
from .forks import measure_forks
from .pair import make_pair
from .prefill import measure_prompts
from .records import FULL, QUICK, Effort, Machine, Ratio, Report, Row
from .startup import measure_startup
from .steps import measure_steps
from .timing import this_machine

__all__ = ["FULL", "QUICK", "Effort", "Machine", "Ratio", "Report", "Row", "bench"]


def bench(
    model: Model,
    tokenizer: TokenizerWrapper,
    effort: Effort = FULL,
    *,
    profile_step: bool = False,
    on_progress: Callable[[str], None] | None = None,
) -> Report:
    """Measure a model as this package runs it against mlx-lm with the same weights.

    Args:
        model: from `load`; mlx-lm loads what is written of it, in the same precision.
        tokenizer: from `load`.
        effort: how much to measure.
        profile_step: whether to measure where a decoding step's time goes, and nothing else.
        on_progress: called with what is measured next.

    Raises:
        BenchError: a program that is started from the shell failed, or the temporary folder cannot
            be written.
    """
    began = time.perf_counter()
    report_progress = on_progress or (lambda what: None)
    report_progress("loading the same weights with mlx-lm")
    with make_pair(model, tokenizer) as pair:
        parts: dict[str, Callable[[], list[Row]]] = {
            "start-up": lambda: measure_startup(pair.folder, effort),
            "decoding": lambda: measure_decoding(pair, effort),
            "prompts": lambda: measure_prompts(pair, effort),
            "the sampler alone": lambda: measure_sampler(effort),
            "forks": lambda: measure_forks(pair, effort),
        }
        if profile_step:
            parts = {"the parts of a step": lambda: measure_steps(pair, effort)}
        rows = []
        for name, part in parts.items():
            report_progress(name)
            rows += part()
    return Report(this_machine(), effort, time.perf_counter() - began, tuple(rows))
