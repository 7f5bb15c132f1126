"""The configuration file: what it may say, who reads it, how it is changed."""

import pytest

from entropix_mlx import cli
from entropix_mlx.configuration import Configuration, default_path
from entropix_mlx.errors import ConfigurationError

MINE = """\
# Mine.
[options]
max-tokens = 33   # enough
temperature = 0.5
stop = ["END"]
speculation = "off"
think = false

[screen]
theme = "nord"

[keys]
"chat.tune" = "f9"
"""


@pytest.fixture
def mine():
    path = default_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MINE)
    return path


def parsed(*words):
    """Return what a command line states, with what a configuration file says."""
    _, bound, _ = cli.build_app().parse_args(words, exit_on_error=False, print_error=False)
    return bound.kwargs


def test_what_it_says(mine):
    read = Configuration.load(mine)
    assert read.options["max-tokens"] == 33
    assert (read.theme, read.keys) == ("nord", {"chat.tune": "f9"})
    assert Configuration.load() == read
    mine.unlink()
    assert Configuration.load() == Configuration(default_path())


def test_chat_and_view_read_it_by_themselves_and_others_where_it_is_named(mine):
    read = parsed("chat")
    assert (read["max_tokens"], read["temperature"]) == (33, 0.5)
    assert read["changes"].think is False
    assert (read["stop"], read["speculation"]) == (("END",), "off")
    assert parsed("chat", "-m", "5")["max_tokens"] == 5, "the command line comes first"
    assert "max_tokens" not in parsed("generate", "--prompt", "x")
    assert parsed("generate", "--prompt", "x", "--config", str(mine))["max_tokens"] == 33


MISTAKES = {
    "[options": "TOML",
    "\n[option]\nx = 1": "line 2: option:",
    "options = 3": "line 1: options:",
    "[options]\n\nmax-tokens = -2": "line 3: max-tokens:",
    "[options]\ntemperature = -3": "line 2: temperature:",
    "[options]\nsampler = 'best'": "line 2: sampler:",
    "[options]\nprofile = 3": "line 2: profile:",
    "[options]\nmax-token = 3": "line 2: max-token:",
    "[options]\nconfig = 'x'": "line 2: config:",
    "[options]\nno-think = true": "line 2: no-think:",
    "[screen]\ncolour = 'x'": "line 2: colour:",
    "[keys]\n'chat.tune' = 3": "line 2: chat.tune:",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_reported_with_its_line(mine, text, capsys):
    mine.write_text(text)
    assert cli.main(["chat", "--plain"]) == 2
    assert MISTAKES[text] in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_file_that_cannot_be_read(tmp_path, content):
    path = tmp_path / "config.toml"
    if content:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=str(path)):
        Configuration.load(path)


def test_a_model_of_the_file_gives_way_to_a_server(mine):
    mine.write_text('[options]\nmodel = "~/mine"\nask = true\ntrace = "~/traces"')
    read = parsed("chat", "--server", "http://127.0.0.1:1")
    assert not read.keys() & {"model", "ask", "trace"}
    assert cli.main(["chat", "--server", "http://127.0.0.1:1", "--model", "x"]) == 2


@pytest.mark.parametrize("option", ["--server=http://127.0.0.1:1", "--model=x", "--notes=."])
def test_a_recording_takes_no_model(option, capsys):
    assert cli.main(["chat", "--demo", option]) == 2
    assert option.partition("=")[0] in capsys.readouterr().err
