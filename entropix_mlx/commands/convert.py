"""`entropix convert`: write a model as a folder that this program and mlx-lm load."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from ..conversion.recipe import BITS, DTYPES, GROUP_SIZES, Recipe
from .shared import arg_types, output

if TYPE_CHECKING:
    from ..conversion.verify import Comparison

EXIT_BROKEN = 1


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.set_defaults(run=partial(run, parser))
    add = parser.add_argument
    add(
        "--hf-path",
        "--model",
        required=True,
        metavar="SRC",
        help="Hugging Face folder, .gguf file, Meta's original folder, or hub id",
    )
    add(
        "--mlx-path",
        type=arg_types.file,
        default="mlx_model",
        metavar="OUT",
        help="folder to write (default: mlx_model)",
    )
    packing = parser.add_mutually_exclusive_group()
    packing.add_argument("--quantize", "-q", action="store_true", help="quantize the weights")
    packing.add_argument("--dequantize", "-d", action="store_true", help="unpack quantized weights")
    add("--q-bits", type=int, choices=BITS, help="bits a weight (default: 4)")
    add(
        "--q-group-size",
        type=int,
        choices=GROUP_SIZES,
        help="weights that share a scale (default: 64)",
    )
    add("--dtype", choices=DTYPES, help="type of what is not quantized (default: as it is)")
    add(
        "--force", action="store_true", help="replace OUT if it holds nothing but a converted model"
    )
    add(
        "--verify",
        action="store_true",
        help="compare the predictions of SRC and OUT; exit code 1 if OUT is wrong",
    )


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Convert a model."""
    if not arguments.quantize and (arguments.q_bits or arguments.q_group_size):
        parser.error("--q-bits and --q-group-size need --quantize")
    from tqdm import tqdm

    from ..conversion.convert import convert

    recipe = Recipe(
        bits=(arguments.q_bits or 4) if arguments.quantize else None,
        group_size=arguments.q_group_size or 64,
        dtype=arguments.dtype,
        dequantize=arguments.dequantize,
    )
    bar = tqdm(unit=" tensors", file=sys.stderr, disable=None, leave=False)
    with bar, _ended_like_ctrl_c():

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        out = convert(
            arguments.hf_path,
            arguments.mlx_path,
            recipe,
            force=arguments.force,
            on_progress=show,
        )
    output.write(f"{out}\n")
    return _verify(arguments.hf_path, str(out), recipe) if arguments.verify else 0


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM end the program as Ctrl-C does, so that nothing half-written stays."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _verify(source: str, out: str, recipe: Recipe) -> int:
    from ..conversion.verify import limit_of, verify

    output.tell("comparing its predictions with the source's …")
    comparison = verify(source, out)
    output.write(_table(comparison) + "\n")
    if fault := comparison.fault(recipe):
        output.tell_error(f"{out} is wrong: {fault}")
        return EXIT_BROKEN
    if recipe.exact:
        output.tell("the copy is exact")
        return 0
    limit = limit_of(recipe)
    output.tell(
        f"the copy is as good as one in {limit.precision} should be: a divergence of at most"
        f" {limit.kl:g} bits a token, and at least {limit.top1_agreement:.0%} of the most probable"
        " tokens. (The divergence is how much worse the copy would compress what the source writes;"
        " 0: the same predictions.)"
    )
    return 0


def _table(comparison: Comparison) -> str:
    rows = [
        ("positions compared", f"{comparison.tokens}"),
        ("largest difference of logits", f"{comparison.max_difference:.4g}"),
        ("KL divergence, bits a token", f"{comparison.kl:.4g}"),
        ("same most probable token", f"{comparison.top1_agreement:.1%}"),
        ("perplexity of the source", f"{comparison.source_perplexity:.4g}"),
        ("perplexity of the copy", f"{comparison.perplexity:.4g}"),
    ]
    return "\n".join(f"{label:30}{value:>10}" for label, value in rows)
