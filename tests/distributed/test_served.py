"""A server whose model is computed by two ranks."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from entropix_mlx import Settings, load, stream_generate
from entropix_mlx.api.prompts import text_prompt
from entropix_mlx.conversion import convert
from tests.conftest import make_byte_tokenizer, make_tiny_model
from tests.distributed.launching import ended, launch

pytestmark = pytest.mark.slow


def test_a_server_on_two_ranks_answers_as_one_process_does_and_ends(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    convert.save(make_tiny_model(), make_byte_tokenizer(), folder)
    ranks = launch(
        tmp_path, 2, ["-m", "entropix_mlx", "serve", "--model", str(folder), "--port", "0"]
    )
    try:
        said = ""
        while not (url := re.search(r"http\S+/v1", said)):
            line = ranks[0].stderr.readline()
            assert line, said
            said += line

        def ask(seed):
            body = {"prompt": "hello" * seed, "seed": seed, "max_tokens": 12}
            address = f"{url[0]}/completions"
            request = urllib.request.Request(
                address, json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["choices"][0]["text"]

        seeds = range(1, 7)
        with ThreadPoolExecutor(6) as clients:
            found = list(clients.map(ask, seeds))
        model, tokenizer = load(folder)
        for seed, text in zip(seeds, found, strict=True):
            settings = Settings(seed=seed, max_tokens=12, loops="stop")
            prompt = text_prompt(tokenizer, "hello" * seed)
            steps = stream_generate(model, tokenizer, prompt, settings)
            assert text == "".join(step.text for step in steps)
    finally:
        ranks[0].send_signal(signal.SIGTERM)
        codes, told = ended(ranks, 60)
    assert codes == [0, 0], told
    assert "Traceback" not in str(told)
