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
lookup = "off"   # the name of speculation before
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


def test_there_need_not_be_one():
    assert Configuration.load_default() == Configuration(default_path())


def test_chat_and_view_read_it_by_themselves_and_others_when_told(mine):
    read = cli.parse(["chat"])
    assert (read.max_tokens, read.temperature, read.no_think, read.stop) == (33, 0.5, True, ["END"])
    assert read.speculation == "off"
    assert cli.parse(["chat", "-m", "5"]).max_tokens == 5, "the command line comes first"
    assert cli.parse(["view", "x.jsonl"]).configuration.theme == "nord"
    assert cli.parse(["generate", "--prompt", "x"]).max_tokens == 256
    told = cli.parse(["generate", "--prompt", "x", "--config", str(mine)])
    assert told.max_tokens == 33


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[options", "is not TOML"),
        ("\n[option]\nx = 1", "line 2: option: there is no such section"),
        ("options = 3", "line 1: options: write [options]"),
        ("[options]\n\nmax-tokens = 0", "line 3: max-tokens: a positive whole number"),
        ("[options]\ntemperature = -3", "line 2: temperature: temperature must be"),
        ("[options]\ntemperature = 'hot'", "line 2: temperature: "),
        ("[options]\nsampler = 'best'", "line 2: sampler: "),
        ("[options]\nprofile = 'absent'", "line 2: profile: no profile"),
        ("[options]\nprofile = 3", "line 2: profile: it must be a text, not 3"),
        ("[options]\nno-think = 1", "line 2: no-think: it must be true or false"),
        ("[options]\nstop = 'x'", "line 2: stop: it must be a list"),
        ("[options]\ncolor = 'pink'", "line 2: color: invalid choice: 'pink'"),
        ("[options]\nmax-token = 3", "line 2: max-token: there is no such option"),
        ("[options]\nconfig = 'x'", "line 2: config: there is no such option"),
        ("[screen]\ntheme = 3", "line 2: theme: it must be the name"),
        ("[screen]\ncolour = 'x'", "line 2: colour: there is only theme"),
        ("[keys]\n'chat.duel' = 3", "line 2: chat.duel: it must be a key"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_by_its_line(mine, text, told, capsys):
    mine.write_text(text)
    assert cli.main(["chat", "--plain"]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_a_file_that_cannot_be_read(tmp_path, capsys):
    assert cli.main(["models", "--config", str(tmp_path / "absent")]) == 2
    assert "cannot read" in capsys.readouterr().err
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="is not a text in UTF-8"):
        Configuration.load(tmp_path / "bytes")


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
    path.write_text("screen = 3")
    with pytest.raises(ConfigurationError, match="cannot be changed"):
        change(path, "screen", {"theme": "nord"})
    path.write_text("[")
    with pytest.raises(ConfigurationError, match="cannot be changed"):
        change(path, "screen", {"theme": "nord"})
    with pytest.raises(ConfigurationError, match="cannot write"):
        change(tmp_path / "new" / "config.toml" / "x" / "y", "screen", {"theme": "nord"})


def test_a_model_of_the_file_gives_way_to_a_server(mine):
    mine.write_text('[options]\nmodel = "~/mine"\nask = true\ntrace = "~/traces"')
    request = chat.parse_request(cli.parse(["chat", "--server", "http://127.0.0.1:1"]))
    assert (request.model.model, request.ask, request.trace) == (None, False, None)
    with pytest.raises(SettingsError, match="--server"):
        chat.parse_request(cli.parse(["chat", "--server", "http://127.0.0.1:1", "--model", "x"]))


@pytest.mark.parametrize("option", ["--plain", "--server=http://127.0.0.1:1", "--model=x"])
def test_a_recording_takes_no_model(option, capsys):
    assert cli.main(["chat", "--demo", option]) == 2
    assert f"leave {option.partition('=')[0]} out" in capsys.readouterr().err
