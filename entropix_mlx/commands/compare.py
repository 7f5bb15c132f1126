"""`entropix compare`: several samplers answer one prompt, side by side.

No score here says which sampler is better. Probability under the model, repetition and variety
contradict one another; the reader has to weigh them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..settings import Settings
from ..summary import Sample, summarize, to_table
from ..traces.trace import make_folder, recorded
from .shared import loading, options, output, prompts

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..api.batch import BatchAnswer
    from ..models.base import LanguageModel


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add = parser.add_argument
    options.add_model(parser)
    prompts.add_prompt(parser)
    add(
        "--sampler",
        action="append",
        required=True,
        dest="samplers",
        metavar="NAME",
        help=f"a sampler to compare ({options.samplers()}); may be repeated",
    )
    seeds = "answers of each sampler (default 5)"
    add("--seeds", type=options.questions, default=5, metavar="N", help=seeds)
    first = "seed of the first answer; the others follow it (default 0)"
    add("--seed", type=int, default=0, help=first)
    options.add_generation(parser)
    most = "list the N most probable tokens of each step (with --trace)"
    add("--top-logprobs", type=options.count, default=0, metavar="N", help=most)
    add("--json", action="store_true", help="print one object, with the answers")
    trace = "record every answer in a file of this folder"
    add("--trace", type=options.file, metavar="DIR", help=trace)
    options.add_verbose(parser)


def run(arguments: argparse.Namespace) -> int:
    """Let each sampler answer with each seed, and print a summary of each sampler's answers."""
    settings = [
        options.to_settings(arguments, sampler=name) for name in dict.fromkeys(arguments.samplers)
    ]
    if arguments.trace:
        make_folder(arguments.trace)
    chosen, source = options.model_options(arguments), prompts.prompt_options(arguments)
    prompt = source.read()
    model, tokenizer = loading.load_model(chosen)
    tokens = source.encode(tokenizer, prompt)

    def report(answer: BatchAnswer) -> None:
        own = answer.settings
        if own is None:
            return
        output.info(f"{own.sampler}, seed {own.seed}")
        if arguments.trace:
            system = source.system_prompt
            header = prompts.trace_header(model, chosen.name, own, tokens, prompt, system)
            file = Path(arguments.trace) / f"{own.sampler}-{own.seed}.jsonl"
            for _ in recorded(answer.steps, file, header):
                pass

    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    samples = [
        sample
        for each in settings
        for sample in _answers(model, tokenizer, tokens, each, seeds, report)
    ]
    results = summarize(samples)
    if arguments.json:
        texts = [{"sampler": s.sampler, "seed": s.seed, "text": s.text} for s in samples]
        record = {"results": [asdict(result) for result in results], "answers": texts}
        output.write_json(record, indent=2)
    else:
        output.write(to_table(results).to_text())
    return 0


def _answers(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompt: list[int],
    settings: Settings,
    seeds: Sequence[int],
    on_end: Callable[[BatchAnswer], None],
) -> Iterator[Sample]:
    """Generate an answer with each of the seeds, up to `BATCH` at once.

    Those of other samplers are not generated with them, so that speeds can be compared.
    """
    from ..api.batch import batch_generate

    own = settings.resolved(model.config).settings
    seeded = [replace(own, seed=seed) for seed in seeds]
    batch = batch_generate(model, tokenizer, [prompt] * len(seeded), seeded, steady=True)
    for index, step in batch:
        if step.finish_reason is not None:
            on_end(batch.answers[index])
    for answer, own in zip(batch.answers, seeded, strict=True):
        if answer.error is not None:
            raise answer.error
        yield Sample(own.sampler, own.seed or 0, tuple(answer.steps))
