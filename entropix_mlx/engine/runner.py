"""One answer: a scheduler with a single row."""

from __future__ import annotations

from collections.abc import Generator

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..models.base import LanguageModel
from ..models.wired import wired_memory
from ..step import Step
from .cached_text import CachedText
from .job import Job, begin, prepare
from .scheduler import Scheduler


def decode(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    job: Job,
    text: CachedText | None = None,
    *,
    pipelined: bool = True,
) -> Generator[Step, None, None]:
    """Generate one answer, one `Step` a token.

    Args:
        model: from `load`.
        tokenizer: from `load`.
        job: what to generate.
        text: what is in the cache already, updated in place. When the answer ends, however it does,
            it holds the tokens of the prompt and of the answer but the last, or fewer if the
            prefill did not end.
        pipelined: whether to queue a position before the last one was read. The steps are the same.

    Raises:
        PromptError: the prompt is empty, or holds a token that the model does not have.
        ContextLengthError: the prompt leaves no room in the context.
        ProfileError: the thinking text does not fit the tokenizer.
        NonFiniteLogitsError: the model computed NaN or infinite logits.
    """
    text = CachedText.empty(model) if text is None else text
    prompt = prepare(model, text, job)
    row = begin(model, tokenizer, job, prompt)
    if row is None:
        return
    scheduler = Scheduler(model, pipelined=pipelined)
    scheduler.add(row)
    committed = 0
    with wired_memory.raised():
        try:
            while scheduler.rows:
                for _, step in scheduler.advance():
                    committed += 1
                    yield step
                    if step.finish_reason or job.hooks.cancelled():
                        return
                if row.asked is not None and job.hooks.choose is not None:
                    row.reply(job.hooks.choose(row.asked))
            if row.error is not None:
                raise row.error
        finally:
            scheduler.close()
            row.settle(committed)
