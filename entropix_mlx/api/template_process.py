"""The program of the process that renders chat templates; `chat_template` starts it.

A chat template is a program that comes with a model. It runs here in Jinja's sandbox, which keeps
it away from files and from Python's internals, and under limits of time, memory and output, which
the sandbox does not set. This file imports nothing of the package: it has to start fast.

A request is the length of a JSON object in 8 bytes, then the object: the keys `template` and
`variables`. An answer has the same form, and has one of the keys `text` and `error`.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sys
from datetime import datetime
from functools import lru_cache
from typing import IO, Any


def main(libraries: str, seconds: str, memory: str, output: str) -> None:
    """Answer requests until stdin ends.

    Args:
        libraries: the folder that holds Jinja.
        seconds: CPU time for one template; after that, SIGPROF ends the process.
        memory: bytes of address space for the process. (macOS ignores this.)
        output: characters of the longest text to return.
    """
    sys.path.append(libraries)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that started this one
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while head := requests.read(8):
        request = json.loads(requests.read(int.from_bytes(head, "little")))
        signal.setitimer(signal.ITIMER_PROF, float(seconds))
        answer = _answer(request["template"], request["variables"], int(output))
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(answers, answer)


def _answer(template: str, variables: dict[str, Any], output: int) -> dict[str, str]:
    try:
        text = "".join(_limited(_compiled(template).generate(**variables), output))
        return {"text": text}
    except MemoryError:
        return {"error": "it needs too much memory"}
    except RecursionError:
        return {"error": "it calls itself without end"}
    except Exception as error:  # a template is a program: it raises what it likes
        return {"error": str(error)[:1000] or repr(error)[:1000]}


def _limited(pieces: Any, output: int) -> Any:
    for piece in pieces:
        output -= len(piece)
        if output < 0:
            raise ValueError("its text is longer than any prompt")
        yield piece


def _send(answers: IO[bytes], answer: dict[str, str]) -> None:
    content = json.dumps(answer).encode()
    answers.write(len(content).to_bytes(8, "little") + content)
    answers.flush()


@lru_cache(maxsize=4)
def _compiled(template: str) -> Any:
    """Return a template in the environment that transformers gives chat templates."""
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """Reads ``{% generation %}``, which marks what a model wrote, as if it were not there."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        known = {"indent", "separators", "sort_keys"}
        if unknown := options.keys() - known:
            raise TypeError(f"tojson has no option {min(unknown)}")
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment.from_string(template)


if __name__ == "__main__":
    main(*sys.argv[1:])
