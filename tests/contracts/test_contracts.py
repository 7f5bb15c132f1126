"""What docs/security.md promises, a test each. Details are held where each part is tested."""

import json
import os
import pickle
import pwd
import resource
import signal
import struct
import subprocess
import sys
import time

import mlx.core as mx
import pytest

from entropix_mlx import load
from entropix_mlx.api.prompts import conversation_text
from entropix_mlx.errors import EntropixError, PromptError
from tests.conftest import make_tiny_model
from tests.folders import edit_json, write_folder, write_gguf

SECONDS, MEGABYTES = 10, 500
HTTP = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working folder with files that are not what they are named as."""
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "empty").touch()
    (folder / "text").write_text("hello\n")
    (folder / "binary").write_bytes(bytes(range(256)))
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "list.json").write_text("[1]")
    (folder / "a folder").mkdir()
    os.mkfifo(folder / "fifo")
    monkeypatch.chdir(folder)
    return folder


FILES = ["absent", "empty", "text", "binary", "deep.json", "list.json", "a folder", "fifo", "a\0b"]
ASKS = ["generate", "-p", "Hi", "-m", "2"]
MISTAKES = [
    ["no-such-command"],
    ["generate"],
    [*ASKS, "--no-such-option"],
    [*ASKS, "--temp", "warm"],
    [*ASKS, "--temp", "nan"],
    [*ASKS, "--temp", "-1"],
    [*ASKS, "--max-tokens", "-2"],
    [*ASKS, "--sampler", "best"],
    [*ASKS, "--set", "thresholds.low_entropi=1"],
    [*ASKS, "--set", "thresholds.low_entropy"],
    [*ASKS, "--regex", "("],
    [*ASKS, "--schema", "list.json", "--regex", "a"],
    [*ASKS, "--kv-bits", "3.5"],
    [*ASKS, "--stop", ""],
    *([*ASKS, "--profile", name] for name in ("absent", "text", "binary", "a folder")),
    *([*ASKS, "--schema", name] for name in FILES if name != "list.json"),
    *([*ASKS, "--notes", name] for name in ("absent", "text", "fifo")),
    *([*ASKS, "--adapter-path", name] for name in FILES),
    *(["generate", "--prompts", name] for name in ("absent", "binary", "a folder", "fifo")),
    *(["read", name] for name in ("absent", "binary", "a folder", "fifo")),
    *(["view", name] for name in FILES[:-1]),
    *(["convert", "--model", name, "-o", "out"] for name in FILES),
    *(["extract", "text", "--schema", name] for name in FILES if name != "text"),
    *(["serve", "--port", port] for port in ("x", "-1", "99999")),
    *([*ASKS, "--config", name] for name in ("", "absent", "fifo", "~nobody-at-all/x", "x" * 300)),
    ["extract", "text", "--schema", "~nobody-at-all/x"],
    ["eval", "~nobody-at-all/x"],
    ["models", "~nobody-at-all/x"],
    ["convert", "--model", "absent", "-o", "~nobody-at-all/x"],
    ["serve", "--models", "~nobody-at-all/x"],
    ["serve", "--api-key-file", "fifo"],
    ["models", "absent"],
]
OWN_MODEL = ("convert", "models", "view", "no-such-command")


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
@pytest.mark.usefixtures("place")
def test_a_users_mistake_is_one_sentence_and_exit_code_2(entropix, tiny_folder, arguments):
    model = [] if arguments[0] in OWN_MODEL else ["--model", tiny_folder]
    code, out, err = entropix(*arguments, *model)
    assert (code, out if arguments[0] != "models" else "") == (2, ""), err
    assert len([line for line in err.splitlines() if line.startswith("entropix: ")]) == 1, err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ENTROPIX_CONFIG", "/dev/zero"),
        ("ENTROPIX_CONFIG", "a folder"),
        ("HF_HOME", "/dev/null/x"),
        ("XDG_CONFIG_HOME", "/dev/null"),
        ("XDG_CACHE_HOME", "/dev/null"),
        ("TERM", "\x1b[31m"),
        ("COLUMNS", "-1"),
        ("PIP_INDEX_URL", "no url"),
        ("LC_ALL", "xx_YY"),
    ],
)
@pytest.mark.usefixtures("place")
def test_an_odd_environment_is_no_traceback(entropix, tiny_folder, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    code, _, err = entropix(*ASKS, "--model", tiny_folder)
    assert code in (0, 2), err
    assert "Traceback" not in err


def test_who_has_no_home_folder_is_told(entropix, monkeypatch):
    def unknown(_):
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    code, _, err = entropix("models")
    assert (code, err.count("entropix: ")) == (2, 1)


def gguf_of(*counts):
    """Return a GGUF file that promises so many tensors and metadata, and more."""
    return b"GGUF" + struct.pack("<I", 3) + struct.pack("<QQ", *counts)


TEXT = struct.pack("<Q", 1) + b"a"
HOSTILE = {
    "a count of tensors": gguf_of(2**63, 0),
    "a count of metadata": gguf_of(0, 2**63) + TEXT + struct.pack("<I", 4) + b"\0" * 40,
    "a long text": gguf_of(0, 1) + struct.pack("<Q", 2**62),
    "a long list": gguf_of(0, 1) + TEXT + struct.pack("<IIQ", 9, 4, 2**61),
    "empty texts": gguf_of(0, 1) + TEXT + struct.pack("<IIQ", 9, 8, 2**40) + b"\0" * 10**6,
    "lists of lists": gguf_of(0, 1)
    + TEXT
    + struct.pack("<I", 9)
    + struct.pack("<IQ", 9, 1) * 10**5,
    "a huge tensor": gguf_of(1, 0) + TEXT + struct.pack("<IQQIQ", 2, 2**40, 2**40, 0, 0),
    "sizes that overflow": gguf_of(1, 0) + TEXT + struct.pack("<IQQQQIQ", 4, *[2**32] * 4, 0, 0),
    "an offset": gguf_of(1, 0) + TEXT + struct.pack("<IQIQ", 1, 32, 0, 2**63),
    "no dimensions": gguf_of(1, 0) + TEXT + struct.pack("<IIQ", 0, 0, 0),
    "nothing": b"",
}


def bounded(action):
    """Run something that may fail with one of this package's errors; check what it took."""
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        action()
    except EntropixError as error:
        assert "\n" not in str(error)  # noqa: PT017
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert time.process_time() - began < SECONDS
    assert grown < MEGABYTES * (1024 if sys.platform == "linux" else 1024**2)


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_strangers_gguf_file_is_an_error_in_bounded_time_and_memory(tmp_path, content):
    (tmp_path / "model.gguf").write_bytes(content)
    bounded(lambda: load(tmp_path / "model.gguf"))


def test_a_gguf_file_that_was_cut_anywhere_is_an_error(tmp_path):
    whole = write_gguf(tmp_path / "whole.gguf", make_tiny_model(num_hidden_layers=1)).read_bytes()
    for end in [*range(0, 200, 7), *range(200, len(whole), len(whole) // 40)]:
        (tmp_path / "cut.gguf").write_bytes(whole[:end])
        with pytest.raises(EntropixError):
            load(tmp_path / "cut.gguf")


CONFIGURATIONS = [
    *({name: 2**31} for name in ("num_hidden_layers", "hidden_size", "vocab_size", "head_dim")),
    *({name: -1} for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")),
    *({"num_attention_heads": value} for value in (0, 1.5, "4", [], {}, None, True)),
    *({"rope_scaling": value} for value in (1, "x", [], {"type": []}, {"type": "yarn"})),
    *({"rope_parameters": value} for value in (1, {"rope_type": "yarn", "factor": 0}, {"a": {}})),
    {"rope_parameters": {"rope_type": "llama3", "rope_theta": "x"}},
    *({"quantization": value} for value in (1, {"bits": 4}, {"bits": 99, "group_size": 7})),
    *({"text_config": value} for value in (1, [], {}, {"num_hidden_layers": 2**40})),
    *({"layer_types": value} for value in (1, ["x"], ["sliding_attention"] * 3, [[]])),
    {"sliding_window": "x"},
    {"model_type": "x" * 10**6},
    {"architectures": {"a": 1}},
    {"max_position_embeddings": "x"},
]


@pytest.mark.parametrize("changes", CONFIGURATIONS, ids=lambda changes: str(changes)[:60])
def test_a_strangers_configuration_is_an_error_in_bounded_time_and_memory(tiny_folder, changes):
    edit_json(tiny_folder / "config.json", **changes)
    bounded(lambda: load(tiny_folder))


@pytest.mark.parametrize("part", ["<a ", "<!--", "<![CDATA[", "</", "<div>", "&#", "<style>", "\0"])
def test_a_strangers_document_is_a_row_in_bounded_time_and_memory(
    entropix, tiny_folder, tmp_path, part
):
    (tmp_path / "page.html").write_text(part * (300_000 // len(part)))
    (tmp_path / "good.txt").write_text("good")
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    arguments = ["--schema", tmp_path / "schema.json", "--model", tiny_folder, "-m", "60"]
    documents = [tmp_path / "page.html", tmp_path / "good.txt"]
    began = time.process_time()
    code, out, err = entropix("extract", *documents, *arguments)
    assert time.process_time() - began < SECONDS
    rows = {os.path.basename(row["document"]): row for row in map(json.loads, out.splitlines())}
    assert code in (0, 2), err
    assert rows["good.txt"]["fields"]["yes"] in (True, False), "an answer that fails fails alone"
    assert "page.html" in rows


SCHEMA = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
SCHEMA |= {"additionalProperties": False}


def test_nothing_of_a_model_folder_is_executed(tiny_folder, tmp_path):
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w')\nclass Model: pass\nModelArgs = Evil = Model\n"
    for name in (
        "modeling_evil",
        "configuration_evil",
        "tokenization_evil",
        "llama",
        "sitecustomize",
    ):
        (tiny_folder / f"{name}.py").write_text(code)

    class Bomb:
        def __reduce__(self):
            return open, (str(ran), "w")

    (tiny_folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    names = {"AutoConfig": "configuration_evil.Evil", "AutoModelForCausalLM": "modeling_evil.Evil"}
    names["AutoTokenizer"] = ["tokenization_evil.Evil", "tokenization_evil.Evil"]
    edit_json(tiny_folder / "config.json", auto_map=names, trust_remote_code=True)
    edit_json(tiny_folder / "tokenizer_config.json", auto_map=names, trust_remote_code=True)
    load(tiny_folder)
    edit_json(tiny_folder / "config.json", model_file="modeling_evil.py")
    with pytest.raises(EntropixError, match="code"):
        load(tiny_folder)
    assert not ran.exists()


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    ],
)
def test_a_chat_template_reaches_neither_python_nor_files(tiny_folder, template):
    (tiny_folder / "chat_template.jinja").write_text(template)
    _, tokenizer = load(tiny_folder)
    with pytest.raises(PromptError):
        conversation_text(tokenizer, [{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("target", ["/etc/passwd", "/dev/zero", "../outside", "/proc/self/mem"])
def test_nothing_outside_a_model_folder_is_read(tiny_folder, name, target):
    (tiny_folder / name).rename(tiny_folder.parent / "outside")
    (tiny_folder / name).symlink_to(target)
    with pytest.raises(EntropixError, match="leads out of the folder"):
        load(tiny_folder)


def command(*arguments, **options):
    whole = [sys.executable, "-m", "entropix_mlx", *map(str, arguments)]
    return subprocess.Popen(whole, stderr=subprocess.PIPE, text=True, **options)


@pytest.fixture
def long_folder(tmp_path, byte_tokenizer):
    """A model whose answers are long."""
    model = make_tiny_model(max_position_embeddings=10**6)
    return write_folder(tmp_path / "long", model, byte_tokenizer, mx.float32)


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGHUP])
def test_what_was_written_stays_and_resume_goes_on(tiny_folder, tmp_path, entropix, stop):
    answers, prompts = tmp_path / "answers.jsonl", tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "{number}"}}\n' for number in range(40)))
    options = [
        "--prompts",
        prompts,
        "-o",
        answers,
        "-m",
        "40",
        "--seed",
        "1",
        "--model",
        tiny_folder,
    ]
    process = command("generate", *options, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not answers.exists() or answers.stat().st_size == 0:
        assert time.monotonic() < end
        time.sleep(0.005)
    process.send_signal(stop)
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    whole = answers.read_bytes().rpartition(b"\n")[0].splitlines()
    assert all(map(json.loads, whole))
    code, _, err = entropix("generate", *options, "--resume")
    assert code == 0, err
    found = list(map(json.loads, answers.read_bytes().splitlines()))
    assert sorted(record["line"] for record in found) == list(range(1, 41))
    assert {json.dumps(json.loads(line)) for line in whole} <= {json.dumps(one) for one in found}


def test_too_few_open_files_are_one_sentence(tiny_folder):
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    process = command(*ASKS, "--model", tiny_folder, preexec_fn=limit)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.count("entropix: ")) == (2, 1)
    assert "Traceback" not in err


def test_a_full_disk_is_one_sentence(tiny_folder, entropix):
    arguments = ["generate", "-p", "Hi", "-m", "4", "--model", tiny_folder]
    code, _, err = entropix(*arguments, "--trace", "/dev/full")
    assert (code, err.count("the disk is full")) == (2, 1)
    with open("/dev/full", "w") as full:
        process = command(*arguments, stdout=full)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err.count("the disk is full")) == (2, 1)
    assert "Traceback" not in err


def test_a_server_stops_within_10_seconds_of_sigterm_with_whatever_runs(long_folder):
    from tests.server.test_socket import Process, post

    server = Process(str(long_folder), "--no-api-key", "--batch", "4")
    body = {"prompt": "a", "max_tokens": 500_000, "stream": True, "logit_bias": {"257": -100}}
    clients = [server.send(post(body)) for _ in range(6)]
    clients += [server.send(HTTP.encode()) for _ in range(3)]  # the rest never comes
    clients[0].recv(100)
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(60)
    assert time.monotonic() - began < SECONDS
    for client in clients:
        client.close()
    said = server.end()
    assert server.process.returncode == 0, said
    assert "Traceback" not in said


def test_an_answer_that_fails_fails_alone(tiny_folder, tmp_path, entropix):
    prompts = tmp_path / "prompts.jsonl"
    texts = ["a", "x" * 1000, "b", "c"]
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    options = ["-m", "20", "--seed", "1", "--model", tiny_folder, "--ignore-chat-template"]
    answers = tmp_path / "answers.jsonl"
    code, *_ = entropix("generate", "--prompts", prompts, "-o", answers, *options)
    lines = answers.read_text().splitlines()
    records = {record["line"]: record for record in map(json.loads, lines)}
    assert code == 2
    assert records.keys() == {1, 2, 3, 4}
    assert "context" in records[2]["error"]
    for line in (1, 3, 4):
        alone = entropix("generate", "-p", texts[line - 1], *options, "--json")[1]
        assert records[line]["text"] == json.loads(alone)["text"]


GUARD = """
import sys
def guard(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        print("CONTACTED", event, arguments[-1], file=sys.__stderr__, flush=True)
        raise OSError("no network in this test")
sys.addaudithook(guard)
from entropix_mlx.cli import main
for arguments in {commands}:
    code = main(arguments)
    print(code, file=sys.__stderr__, flush=True)
"""


def test_no_address_is_contacted_but_the_hub_that_a_command_names(tiny_folder, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("see http://localhost:1/x\n")
    model, out = ["--model", str(tiny_folder)], str(tmp_path / "out")
    local = [
        ["generate", "-p", "Hi", "-m", "2", "--notes", str(tmp_path / "notes"), *model],
        ["models", str(tiny_folder)],
        ["convert", *model, "-o", out],
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_HOME": str(tmp_path / "hub"), "PYTHONPATH": os.pathsep.join(sys.path)}

    def errors(commands):
        run = [sys.executable, "-c", GUARD.format(commands=commands)]
        return subprocess.run(
            run, check=False, capture_output=True, text=True, env=environment
        ).stderr

    assert "CONTACTED" not in errors(local)
    named = errors([["generate", "-p", "Hi", "--model", "owner/name"]])
    contacted = {line for line in named.splitlines() if line.startswith("CONTACTED")}
    assert contacted, named
    assert all("huggingface.co" in line or "getaddrinfo" in line for line in contacted)
    assert "Traceback" not in named
