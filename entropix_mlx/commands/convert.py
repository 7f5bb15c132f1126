"""`entropix convert`: write a model as a folder that this program and mlx-lm load."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..conversion.recipe import BITS, DTYPES, GROUP_SIZES, Recipe
from ..errors import SettingsError
from .shared import options, output

if TYPE_CHECKING:
    from ..conversion.verify import Comparison

EXIT_BROKEN = 1


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add = parser.add_argument
    source = "Hugging Face folder, .gguf file, Meta's original folder, or hub id"
    add("--hf-path", "--model", required=True, metavar="SRC", help=source)
    add(
        "--mlx-path",
        type=options.file,
        default="mlx_model",
        metavar="OUT",
        help="folder to write (default: mlx_model)",
    )
    packing = parser.add_mutually_exclusive_group()
    packing.add_argument("--quantize", "-q", action="store_true", help="quantize the weights")
    packing.add_argument("--dequantize", "-d", action="store_true", help="unpack quantized weights")
    add("--q-bits", type=int, choices=BITS, help="bits per weight (default: 4)")
    share = "weights that share a scale (default: 64)"
    add("--q-group-size", type=int, choices=GROUP_SIZES, help=share)
    add("--dtype", choices=DTYPES, help="type of weights that are not quantized (default: as is)")
    replaced = "replace OUT if it holds nothing but a converted model"
    add("--force", action="store_true", help=replaced)
    compared = "compare the predictions of SRC and OUT; exit code 1 if OUT is wrong"
    add("--verify", action="store_true", help=compared)


def run(arguments: argparse.Namespace) -> int:
    if not arguments.quantize and (arguments.q_bits or arguments.q_group_size):
        raise SettingsError("--q-bits and --q-group-size need --quantize: add it")
    recipe = Recipe(
        bits=(arguments.q_bits or 4) if arguments.quantize else None,
        group_size=arguments.q_group_size or 64,
        dtype=arguments.dtype,
        dequantize=arguments.dequantize,
    )
    source = arguments.hf_path
    # As Ctrl-C does, SIGTERM raises KeyboardInterrupt, so that nothing half-written stays.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        out = _convert(source, arguments.mlx_path, recipe, arguments.force)
    finally:
        signal.signal(signal.SIGTERM, before)
    output.write(f"{out}\n")
    return _verify(source, str(out), recipe) if arguments.verify else 0


def _convert(source: str, out: Path, recipe: Recipe, force: bool) -> Path:
    from tqdm import tqdm

    from ..conversion.convert import convert

    with tqdm(unit=" tensors", file=sys.stderr, disable=None, leave=False) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return convert(source, out, recipe, force=force, on_progress=show)


def _verify(source: str, out: str, recipe: Recipe) -> int:
    from ..conversion.verify import limit_of, verify

    output.report("comparing its predictions with the source's, and these with transformers' …")
    comparison = verify(source, out)
    output.write(_table(comparison) + "\n")
    if comparison.true_kl is None:
        output.report(f"the source was not compared with transformers: {comparison.uncompared}")
    if fault := comparison.fault(recipe):
        output.report_error(f"{out} is wrong: {fault}")
        return EXIT_BROKEN
    if recipe.exact:
        output.report("the copy is exact")
        return 0
    limit = limit_of(recipe)
    output.report(
        f"the copy is as good as one in {limit.precision} should be: it diverges by at most"
        f" {limit.kl:g} bits per token and agrees on at least {limit.top1_agreement:.0%} of the"
        " most probable tokens (0 bits: the same predictions)"
    )
    return 0


def _table(comparison: Comparison) -> str:
    rows = [
        ("positions compared", f"{comparison.tokens}"),
        ("largest difference of logits", f"{comparison.max_difference:.4g}"),
        ("KL divergence, bits per token", f"{comparison.kl:.4g}"),
        ("same most probable token", f"{comparison.top1_agreement:.1%}"),
        ("perplexity of the source", f"{comparison.source_perplexity:.4g}"),
        ("perplexity of the copy", f"{comparison.perplexity:.4g}"),
    ]
    if comparison.true_kl is not None:
        rows.append(("source against transformers, bits", f"{comparison.true_kl:.4g}"))
    return "\n".join(f"{label:34}{value:>10}" for label, value in rows)
