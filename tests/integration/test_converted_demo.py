"""The demo model, converted by the command as a user would, and run by mlx-lm."""

import re
import subprocess
import sys

import mlx.core as mx
import mlx_lm
import pytest

from entropix_mlx import cli, stream_generate
from entropix_mlx.conversion import verify

pytestmark = pytest.mark.model


def test_packed_as_it_is_it_says_the_same_in_mlx_lm(demo, demo_file, request, tmp_path):
    out = tmp_path / "out"
    options = ["--hf-path", demo_file, "--mlx-path", out, "--dtype", "float32"]
    done = subprocess.run(
        [sys.executable, "convert_weights.py", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=request.config.rootpath,
    )
    assert (done.returncode, done.stdout) == (0, f"{out}\n"), done.stderr
    theirs, their_tokenizer = mlx_lm.load(str(out))
    assert theirs.model.layers[0].mlp.up_proj.weight.dtype == mx.uint32
    model, tokenizer = demo
    prompt = tokenizer.encode("Why is the sky blue?")
    text = mlx_lm.generate(theirs, their_tokenizer, prompt, max_tokens=16)
    ours = stream_generate(model, tokenizer, prompt, max_tokens=16, sampler="greedy")
    assert text == "".join(step.text for step in ours)


def test_in_4_bits_it_is_verified(demo_file, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(verify, "TEXTS", ())
    monkeypatch.setattr(verify, "PASSAGE", verify.PASSAGE[:75])  # to take seconds
    source = ["--hf-path", str(demo_file), "--mlx-path", str(tmp_path / "out")]
    options = ["-q", "--q-bits", "4", "--q-group-size", "64", "--verify"]
    assert cli.main(["convert", *source, *options]) == 0
    table = capsys.readouterr().out
    kl = re.search(r"KL divergence, bits per token +([\d.]+)\n", table)
    assert 0 < float(kl[1]) < 2
    agreement = re.search(r"same most probable token +([\d.]+)%\n", table)
    assert 50 < float(agreement[1]) < 100
