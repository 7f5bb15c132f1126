"""`entropix extract`: fill the fields of a JSON schema from documents."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..errors import PromptError
from ..extraction.documents import read_documents
from ..extraction.review import Review, read_decisions, with_decisions
from ..extraction.rows import Row, read_thresholds, write_rows
from ..extraction.task import Extraction, read_examples
from ..files import check_target
from ..settings import BATCH
from .shared import options, output
from .shared.extraction import MAX_TOKENS, ExtractRequest, extract_rows

DECISIONS = ".decisions.jsonl"
"""The suffix of the file of what a person decided, beside OUTPUT."""
LOOKED_AT = 0.9
"""Fields of less confidence are reviewed where no thresholds were calibrated."""


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add = parser.add_argument
    known = "text, Markdown, HTML or PDF files; with --text-column, CSV or JSON Lines files"
    add("files", nargs="+", metavar="FILE", help=known)
    add(
        "--schema",
        type=options.file,
        required=True,
        metavar="FILE",
        help="the fields: a JSON schema",
    )
    shown = "worked examples: JSON Lines with text and fields; two or three help a small model"
    add("--examples", type=options.file, metavar="FILE", help=shown)
    column = "take the texts from this column of the files"
    add("--text-column", metavar="NAME", help=column)
    least = "the least confidence of each field, as entropix calibrate --fields writes it"
    add("--thresholds", type=options.file, metavar="FILE", help=least)
    options.add_model(parser)
    add("--sampler", default="greedy", help=f"{options.samplers()} (default: greedy)")
    add("--seed", type=int, default=0, help="the same seed gives the same rows (default: 0)")
    options.add_generation(parser)
    parser.set_defaults(max_tokens=MAX_TOKENS)
    rows = "write the rows to this file: CSV where it ends with .csv, else JSON Lines"
    options.add_answers_file(parser, rows, batch=BATCH)
    review = (
        "go through the unsure fields in the terminal UI; without --thresholds, those below 0.9"
    )
    add("--review", action="store_true", help=review)
    options.add_verbose(parser)


def parse_request(arguments: argparse.Namespace) -> ExtractRequest:
    options.check_answers_file(arguments)
    if arguments.review and not arguments.output:
        raise PromptError("--review keeps what you decide beside the rows: name --output")
    if arguments.output:
        check_target(arguments.output)
    examples = read_examples(arguments.examples) if arguments.examples else []
    settings = options.to_settings(arguments)
    return ExtractRequest(
        model=options.model_options(arguments),
        settings=settings,
        extraction=Extraction(options.read_schema(arguments.schema), tuple(examples)),
        documents=read_documents(arguments.files, arguments.text_column),
        thresholds=read_thresholds(arguments.thresholds) if arguments.thresholds else {},
        otherwise=LOOKED_AT if arguments.review and not arguments.thresholds else 0.0,
        output=arguments.output,
        resume=arguments.resume,
        batch=arguments.batch,
    )


def run(arguments: argparse.Namespace) -> int:
    request = parse_request(arguments)
    output.info(f"{len(request.documents)} documents")
    rows, code = extract_rows(request)
    if request.output is not None:
        decisions = request.output.with_suffix(DECISIONS)
        if arguments.review and code != output.INTERRUPTED:
            review_rows(request, rows, decisions)
        write_rows(request.output, with_decisions(rows, read_decisions(decisions)))
        output.write(f"{request.output}\n")
    return code or (output.USAGE if any(row.error for row in rows) else 0)


def review_rows(request: ExtractRequest, rows: Sequence[Row], decisions: Path) -> None:
    """Let a person decide on the unsure fields."""
    from entropix_mlx.tui.review import ReviewApp
    from entropix_mlx.tui.terminal import require_full_screen

    instead = "look at the column unsure instead"
    require_full_screen(instead)
    output.check_screen(instead)
    texts = {document.name: document.text for document in request.documents}
    ReviewApp(Review(rows, texts, request.candidates(), decisions)).run()
