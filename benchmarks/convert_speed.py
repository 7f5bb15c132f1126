"""Measure time and memory of converting a checkpoint, against mlx-lm.

    python benchmarks/convert_speed.py [--repeats 3] [-q] [--folder F]

The checkpoint has 1 billion random parameters in 8 shards, and the tokenizer of the demo model. It
is made in a temporary folder, or in F, where it stays. Each conversion is a process of its own,
and the two programs take turns. Memory is the largest resident set of a process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten

from entropix_mlx.checkpoints.locate import open_checkpoint
from entropix_mlx.downloads.demo_model import demo_model
from entropix_mlx.downloads.offers import DOWNLOAD_DEMO
from entropix_mlx.models.config import parse_config
from entropix_mlx.models.llama.model import Model

SHARDS = 8
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


class Run(NamedTuple):
    seconds: float
    megabytes: float


def make_checkpoint(folder: Path) -> None:
    demo = demo_model()
    if demo is None:
        sys.exit(f"the demo model is missing: {DOWNLOAD_DEMO}")
    folder.mkdir(parents=True)
    open_checkpoint(demo).load_tokenizer().save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    shapes = {
        name: array.shape
        for name, array in tree_flatten(Model(parse_config(CONFIG, "")).parameters())
    }
    names = list(shapes)
    places = {}
    for number in range(SHARDS):
        file = f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
        own = names[number * len(names) // SHARDS : (number + 1) * len(names) // SHARDS]
        mx.save_safetensors(
            str(folder / file),
            {name: 0.02 * mx.random.normal(shapes[name], mx.bfloat16) for name in own},
        )
        places |= dict.fromkeys(own, file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": places})
    )


def run(command: list[str], out: Path) -> Run:
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    shutil.rmtree(out, ignore_errors=True)
    if status:
        sys.exit(f"{' '.join(command)} failed")
    unit = 1 if sys.platform == "darwin" else 1024
    return Run(seconds, usage.ru_maxrss * unit / 1e6)


def measure(checkpoint: Path, out: Path, quantize: bool, repeats: int) -> dict[str, list[Run]]:
    options = ["--hf-path", str(checkpoint), "--mlx-path", str(out), *(["-q"] if quantize else [])]
    commands = {
        "mlx-lm": ["mlx_lm", "convert", *options],
        "entropix": ["entropix_mlx", "convert", *options],
    }
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            runs[name].append(run(command, out))
    return runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quantize", "-q", action="store_true")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        checkpoint = arguments.folder or Path(temporary) / "checkpoint"
        if not checkpoint.exists():
            make_checkpoint(checkpoint)
        out = Path(temporary) / "out"
        runs = measure(checkpoint, out, arguments.quantize, arguments.repeats)
    print(f"{'':10}{'s, median':>10}{'min':>8}{'max':>8}{'peak MB':>10}")
    for name, own in runs.items():
        seconds = [r.seconds for r in own]
        peak = max(r.megabytes for r in own)
        print(
            f"{name:10}{statistics.median(seconds):10.1f}{min(seconds):8.1f}{max(seconds):8.1f}"
            f"{peak:10.0f}"
        )
    ratios = [
        ours.seconds / theirs.seconds
        for theirs, ours in zip(runs["mlx-lm"], runs["entropix"], strict=True)
    ]
    print(f"time ÷ mlx-lm's, median of the pairs: {statistics.median(ratios):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
