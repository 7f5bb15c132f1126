"""`entropix compare`: several samplers answer one prompt, side by side."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..lab.compare import generate_samples
from ..settings import Settings
from ..step import Step
from ..summary import Result, Sample, summarize, to_table
from ..traces.trace import make_folder, recorded
from .shared import loading, options, output, prompts


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
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
        help=f"a sampler to compare ({options.samplers()}); say it once for each",
    )
    add(
        "--seeds",
        type=options.positive,
        default=5,
        metavar="N",
        help="how many answers each gives (default 5)",
    )
    add(
        "--seed",
        type=int,
        default=0,
        help="of the first answer; the others count on (default 0)",
    )
    options.add_generation(parser)
    add(
        "--top-logprobs",
        type=options.count,
        default=0,
        metavar="N",
        help="list the N most probable tokens of each step (with --trace)",
    )
    add("--json", action="store_true", help="print one object, with the answers")
    add(
        "--trace",
        type=options.file,
        metavar="DIR",
        help="record every answer in a file of this folder",
    )
    options.add_verbose(parser)


def run(arguments: argparse.Namespace) -> int:
    """Let each sampler answer with each seed, and print a summary of each sampler's answers."""
    settings = [
        options.to_settings(arguments, sampler=name) for name in dict.fromkeys(arguments.samplers)
    ]
    if arguments.trace:
        make_folder(arguments.trace)
    asked, source = options.model_options(arguments), prompts.prompt_options(arguments)
    prompt = source.read()
    model, tokenizer = loading.load_model(asked)
    tokens = source.encode(tokenizer, prompt)

    def watch(each: Settings, steps: Iterator[Step]) -> Iterable[Step]:
        output.info(f"{each.sampler}, seed {each.seed} …")
        if not arguments.trace:
            return steps
        header = prompts.trace_header(model, asked.name, each, tokens, prompt, source.system_prompt)
        return recorded(steps, _trace_file(arguments.trace, each), header)

    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    samples = list(generate_samples(model, tokenizer, tokens, settings, seeds, watch))
    results = summarize(samples)
    if arguments.json:
        output.write_json(_to_record(results, samples), indent=2)
    else:
        output.write(to_table(results))
    return 0


def _trace_file(folder: str, settings: Settings) -> Path:
    return Path(folder) / f"{settings.sampler}-{settings.seed}.jsonl"


def _to_record(results: list[Result], samples: list[Sample]) -> dict[str, Any]:
    texts = [{"sampler": s.sampler, "seed": s.seed, "text": s.text} for s in samples]
    return {"results": [asdict(result) for result in results], "answers": texts}
