"""Rendering a model's chat template, under limits of time, memory and output.

A chat template is the one program of a model's that is run. Jinja's sandbox keeps it away from
files and from Python's internals, but lets it loop for hours or fill the memory with
``{{ 'a' * 10**10 }}``. So it runs in a process of its own, which the operating system limits and
which can be ended at any moment.

The other way would be to count the template's operations inside this process. Then nothing has to
be started, but every filter and every operation that can make a text grow (``center``, ``replace``,
``~``, ``%`` and dozens more) must be guarded, and one that is forgotten is a hole.

The process starts once, while the model is loaded, and then answers as fast as a function would: in
about 0.3 ms.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .. import limits
from ..errors import PromptError

PROGRAM = Path(__file__).with_name("template_process.py")


def own_template(tokenizer: TokenizerWrapper) -> str | None:
    """Return the template that came with a model.

    None if its messages are not rendered by one, but by code of mlx-lm or transformers.
    """
    from transformers import PreTrainedTokenizerBase

    inner = getattr(tokenizer, "_tokenizer", tokenizer)
    is_code = (
        getattr(tokenizer, "_chat_template", None) is not None
        or type(inner).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template
    )
    return None if is_code else str(tokenizer.get_chat_template())


def render(
    template: str,
    tokenizer: TokenizerWrapper,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    more: Mapping[str, Any] | None = None,
) -> str:
    """Return messages in a tokenizer's chat template, up to where the model's answer begins.

    `more` are variables of the template that a request gives.

    Raises:
        PromptError: the template refuses the messages, is damaged, or goes beyond its limits.
    """
    if len(template.encode("utf-8", "replace")) > limits.TEMPLATE_BYTES:
        raise PromptError("the chat template is too long to be one: choose another model")
    # What transformers and mlx-lm pass to a template.
    variables: dict[str, Any] = {
        **tokenizer.special_tokens_map,
        "messages": list(messages),
        "tools": list(tools) or None,
        "xml_tools": list(tools) or None,  # as SmolLM3 calls them
        "documents": None,
        "add_generation_prompt": True,
        tokenizer._thinking_kwarg: tokenizer.has_thinking,
        **given_variables(tokenizer),
        **(more or {}),
    }
    return _process.render(template, variables)


def given_variables(tokenizer: TokenizerWrapper) -> dict[str, Any]:
    """Return the variables that a user gives the template; see `Extras.chat_template_config`."""
    given: dict[str, Any] = vars(tokenizer).get("_chat_template_config", {})
    return given


def start() -> None:
    """Start the process, if it does not run, without waiting for it.

    If it cannot be started, `render` says so.
    """
    with contextlib.suppress(OSError):
        _process.start()


class _Process:
    """The process that renders templates; it starts again when it was ended."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()

    def start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._running is not None and self._running.poll() is not None:
                self.end()
            if self._running is None:
                self._running = _spawn()
            return self._running

    def render(self, template: str, variables: dict[str, Any]) -> str:
        request = json.dumps({"template": template, "variables": variables}, default=str).encode()
        with self._lock:
            try:
                answer = self._ask(self.start(), request)
            except OSError as error:  # the process was ended, or cannot be started
                self.end()
                raise PromptError(f"the chat template cannot be run: {error}") from error
            except BaseException:  # Ctrl-C: the next question must not get this answer
                self.end()
                raise
        if "error" in answer:
            raise PromptError(f"the chat template refuses these messages: {answer['error']}")
        return str(answer["text"])

    def _ask(self, process: subprocess.Popen[bytes], request: bytes) -> dict[str, Any]:
        assert process.stdin
        assert process.stdout
        process.stdin.write(len(request).to_bytes(8, "little") + request)
        process.stdin.flush()
        head = process.stdout.read(8)
        content = process.stdout.read(int.from_bytes(head, "little"))
        if not content:
            code = process.wait()
            self.end()
            slow = f"it ran for more than {limits.TEMPLATE_SECONDS} s"
            return {"error": slow if code == -signal.SIGPROF else "it broke its interpreter"}
        answer: dict[str, Any] = json.loads(content)
        return answer

    def end(self) -> None:
        if self._running is None:
            return
        self._running.kill()
        for pipe in (self._running.stdin, self._running.stdout):
            with contextlib.suppress(OSError):  # a request that was not read
                if pipe:
                    pipe.close()
        self._running.wait()
        self._running = None


def _spawn() -> subprocess.Popen[bytes]:
    jinja = find_spec("jinja2")
    libraries = Path(str(jinja and jinja.origin)).parent.parent
    bounds = (limits.TEMPLATE_SECONDS, limits.TEMPLATE_MEMORY, limits.TEMPLATE_CHARACTERS)
    # Without the user's environment, site packages and current folder it starts sooner, and imports
    # nothing else.
    return subprocess.Popen(
        [sys.executable, "-I", "-S", PROGRAM, libraries, *map(str, bounds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
    )


_process = _Process()
"""One for all models: it keeps the last templates compiled."""
atexit.register(_process.end)
