"""Writing a model as a folder that mlx-lm, and this package, load."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .errors import EntropixError
from .llama import Model
from .loading import load


class OutputExistsError(EntropixError):
    """The folder to write is already there."""


def convert(source: str | Path, out: str | Path, *, dequantize: bool = False) -> Path:
    """Load a model from a folder, a GGUF file or a hub id, and write it as a folder.

    Quantized weights stay quantized; numbers have the precision they are loaded with (float32
    on MLX's CPU backend). The folder appears at once when it is complete.

    Raises:
        OutputExistsError: `out` exists.
        EntropixError: whatever `load` raises.
    """
    out = Path(out)
    if out.exists():
        raise OutputExistsError(f"{out} exists: remove it or choose another folder")
    model, tokenizer = load(source, dequantize=dequantize)
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        save(model, tokenizer, unfinished)
        unfinished.chmod(0o755)  # mkdtemp keeps others out
        unfinished.rename(out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return out


def save(model: Model, tokenizer: TokenizerWrapper, folder: Path) -> None:
    """Write weights, configuration and tokenizer into an existing folder."""
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    config = _config(model, tokenizer)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tokenizer.save_pretrained(folder)


def _config(model: Model, tokenizer: TokenizerWrapper) -> dict[str, Any]:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]} | asdict(model.config)
    config["eos_token_id"] = sorted(tokenizer.eos_token_ids)
    packings = {
        name: {"group_size": layer.group_size, "bits": layer.bits, "mode": layer.mode}
        for name, layer in model.named_modules()
        if isinstance(layer, (nn.QuantizedLinear, nn.QuantizedEmbedding))
    }
    if packings:
        # mlx-lm wants a default, and then whatever differs from it by the layer's name.
        default = max(packings.values(), key=list(packings.values()).count)
        differing = {name: packing for name, packing in packings.items() if packing != default}
        config["quantization"] = default | differing
    return config
