"""The configuration file: what it may say, who reads it, how it is changed."""

import pytest

from entropix_mlx import cli
from entropix_mlx.commands import chat
from entropix_mlx.configuration import Configuration, change, default_path
from entropix_mlx.errors import ConfigurationError, SettingsError

MINE = """\
# Mine.
[options]
max-tokens = 33   # enough
temperature = 0.5
stop = ["END"]
speculation = "off"
no-think = true

[screen]
theme = "nord"

[keys]
"chat.duel" = "f9"
"""


@pytest.fixture
def mine():
    path = default_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MINE)
    return path


def test_what_it_says(mine):
    read = Configuration.load(mine)
    assert read.options["max-tokens"] == 33
    assert (read.theme, read.keys) == ("nord", {"chat.duel": "f9"})
    assert Configuration.load_default() == read
    mine.unlink()
    assert Configuration.load_default() == Configuration(default_path())


def test_chat_and_view_read_it_by_themselves_and_others_where_it_is_named(mine):
    read = cli.parse(["chat"])
    assert (read.max_tokens, read.temperature, read.no_think, read.stop) == (33, 0.5, True, ["END"])
    assert read.speculation == "off"
    assert cli.parse(["chat", "-m", "5"]).max_tokens == 5, "the command line comes first"
    assert cli.parse(["view", "x.jsonl"]).configuration.theme == "nord"
    assert cli.parse(["generate", "--prompt", "x"]).max_tokens == 256
    assert cli.parse(["generate", "--prompt", "x", "--config", str(mine)]).max_tokens == 33


MISTAKES = {
    "[options": "TOML",
    "\n[option]\nx = 1": "line 2: option:",
    "options = 3": "line 1: options:",
    "[options]\n\nmax-tokens = 0": "line 3: max-tokens:",
    "[options]\ntemperature = -3": "line 2: temperature:",
    "[options]\nsampler = 'best'": "line 2: sampler:",
    "[options]\nprofile = 3": "line 2: profile:",
    "[options]\nno-think = 1": "line 2: no-think:",
    "[options]\nstop = 'x'": "line 2: stop:",
    "[options]\nmax-token = 3": "line 2: max-token:",
    "[options]\nconfig = 'x'": "line 2: config:",
    "[screen]\ncolour = 'x'": "line 2: colour:",
    "[keys]\n'chat.duel' = 3": "line 2: chat.duel:",
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


def test_a_change_keeps_what_else_is_there(mine):
    change(mine, "options", {"max-tokens": 64, "temperature": None, "top-k": 3})
    text = mine.read_text()
    assert "# Mine." in text
    assert "max-tokens = 64   # enough" in text
    read = Configuration.load(mine)
    assert "temperature" not in read.options
    assert read.options["top-k"] == 3
    assert read.theme == "nord"


def test_a_change_makes_the_file(tmp_path):
    path = tmp_path / "new" / "config.toml"
    change(path, "screen", {"theme": "nord"})
    assert Configuration.load(path).theme == "nord"


@pytest.mark.parametrize("text", ["screen = 3", "[", None])
def test_a_file_that_cannot_be_changed(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_text(text or "")
    with pytest.raises(ConfigurationError, match=str(path)):
        change(path if text else path / "x" / "y", "screen", {"theme": "nord"})


def test_a_model_of_the_file_gives_way_to_a_server(mine):
    mine.write_text('[options]\nmodel = "~/mine"\nask = true\ntrace = "~/traces"')
    request = chat.parse_request(cli.parse(["chat", "--server", "http://127.0.0.1:1"]))
    assert (request.model.model, request.ask, request.trace) == (None, False, None)
    with pytest.raises(SettingsError, match="--server"):
        chat.parse_request(cli.parse(["chat", "--server", "http://127.0.0.1:1", "--model", "x"]))


@pytest.mark.parametrize("option", ["--plain", "--server=http://127.0.0.1:1", "--model=x"])
def test_a_recording_takes_no_model(option, capsys):
    assert cli.main(["chat", "--demo", option]) == 2
    assert option.partition("=")[0] in capsys.readouterr().err
