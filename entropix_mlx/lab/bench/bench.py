"""Measure speed and memory against mlx-lm: in one process, with the same weights, in turns.

`bench` calls the measurements, each of which has a file beside this one:

- `startup`: time from the shell to the first token and back
- `decoding`: tokens per second, peak memory and use of the memory's bandwidth, at several contexts
- `prefill`: tokens per second of a prompt, and the time to the first token
- `draws`: time of a sampler alone, from logits to a token
- `many`: tokens per second of many answers at once
- `lookups`: tokens per second where the text repeats itself, and time of a pass of several tokens
- `forks`: time and memory of rollouts, as one batch and one after the other
- `steps`: time of each part of a decoding step

Decoding starts from a cache that is filled with made-up keys and values, since computing thousands
of real ones takes minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ...engine.speculation.draft_model import DraftModel
from ...models.base import LanguageModel
from ...models.llama.model import own_model
from .decoding import measure_decoding
from .draws import measure_sampler
from .forks import measure_forks
from .lookups import measure_lookup
from .many import measure_many
from .pair import make_pair
from .prefill import measure_prefill
from .records import FULL, QUICK, Effort, Figure, Machine, Ratio, Report
from .startup import measure_startup
from .steps import measure_steps
from .timing import this_machine

__all__ = ["FULL", "QUICK", "Effort", "Figure", "Machine", "Ratio", "Report", "bench"]


def bench(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    effort: Effort = FULL,
    *,
    profile_step: bool = False,
    draft_model: DraftModel | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Report:
    """Measure a model as this package runs it against mlx-lm with the same weights.

    Args:
        model: from `load`; mlx-lm loads what is written of it, in the same precision.
        tokenizer: from `load`.
        effort: how much to measure.
        profile_step: measure the parts of a decoding step, and nothing else.
        draft_model: a model whose guesses are measured, too.
        on_progress: called with the name of what is measured next.

    Raises:
        BenchError: a program that is started from the shell failed, or the temporary folder cannot
            be written.
        UnsupportedModelError: the model is not of the Llama family.
    """
    model = own_model(model, "the bench")
    began = time.perf_counter()
    report_progress = on_progress or (lambda what: None)
    report_progress("loading the same weights with mlx-lm")
    with make_pair(model, tokenizer, draft_model) as pair:
        parts: dict[str, Callable[[], list[Figure]]] = {
            "start-up": lambda: measure_startup(pair.folder, effort),
            "decoding": lambda: measure_decoding(pair, effort),
            "prefill": lambda: measure_prefill(pair, effort),
            "the sampler alone": lambda: measure_sampler(effort),
            "forks": lambda: measure_forks(pair, effort),
            "many answers at once": lambda: measure_many(pair, effort),
            "looking up the next tokens": lambda: measure_lookup(pair, tokenizer, effort),
        }
        if profile_step:
            parts = {"the parts of a step": lambda: measure_steps(pair, effort)}
        figures = []
        for name, part in parts.items():
            report_progress(name)
            figures += part()
    return Report(this_machine(), effort, time.perf_counter() - began, tuple(figures))
