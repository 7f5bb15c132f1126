"""A real server on a real socket: OpenAI's own client, clients that misbehave, and the end."""

import json
import re
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from entropix_mlx.checkpoints.convert import save

WAIT = 120


class Process:
    """`entropix serve` in a process of its own."""

    def __init__(self, model, *options):
        command = [sys.executable, "-m", "entropix_mlx", "serve", "--port", "0", "--model", model]
        self.process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
        self.lines = []
        while not (found := re.search(r":(\d+)/v1", "".join(self.lines))):
            line = self.process.stderr.readline()
            assert line, self.lines
            self.lines.append(line)
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def send(self, content):
        connection = socket.create_connection(("127.0.0.1", self.port), WAIT)
        connection.sendall(content)
        return connection

    def ask(self, content, half_closed=False):
        """Send bytes and return what comes until the server closes."""
        with self.send(content) as connection:
            if half_closed:
                connection.shutdown(socket.SHUT_WR)
            received = b""
            while piece := connection.recv(2**16):
                received += piece
            return received

    def metric(self, name):
        text = self.ask(
            b"GET /metrics HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer key\r\n\r\n"
        ).decode()
        found = re.search(rf"^entropix_{name} (\S+)", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        _, rest = self.process.communicate(timeout=WAIT)
        return "".join(self.lines) + rest


@pytest.fixture(scope="module")
def folder(tiny_model, byte_tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "tiny"
    path.mkdir()
    save(tiny_model.inner, byte_tokenizer, path)
    return str(path)


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    key = tmp_path_factory.mktemp("key") / "key"
    key.write_text("key\n")
    process = Process(folder, "--api-key-file", str(key), "--sampler", "temperature")
    yield process
    said = process.end()
    assert process.process.returncode == 0
    assert "Traceback" not in said


def post(body, key="key", more=""):
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
    return f"{head}{more}Content-Length: {len(content)}\r\n\r\n".encode() + content


def test_openais_client_gets_what_it_knows(server):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=server.url, api_key="key", max_retries=0) as client:
        (model,) = client.models.list().data
        messages = [{"role": "user", "content": "Hi"}]
        options = {"model": model.id, "messages": messages, "seed": 1, "max_completion_tokens": 9}
        whole = client.chat.completions.create(**options, logprobs=True, top_logprobs=2)
        assert len(whole.choices[0].logprobs.content) <= 9
        assert whole.choices[0].entropix["scores"]["mean_entropy"] > 0
        stream = client.chat.completions.create(
            **options, stream=True, extra_body={"sampler": "greedy"}
        )
        chunks = list(stream)
        assert chunks[-1].choices[0].finish_reason
        assert chunks[1].choices[0].entropix["strategy"] == "argmax"
        text = client.completions.create(model=model.id, prompt=[5, 6, 7], echo=True, logprobs=1)
        assert text.choices[0].logprobs.token_logprobs[0] is None
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**options, temperature=-1)
        assert caught.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="gpt-4", prompt="x")
    with (
        pytest.raises(openai.AuthenticationError),
        openai.OpenAI(base_url=server.url, api_key="wrong", max_retries=0) as client,
    ):
        client.models.list()


def test_answers_do_not_wait_for_acknowledgements(listener):
    with httpx.Client() as client:
        assert client.get(f"{listener.url}/health").status_code == 200
        (connection,) = listener.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


ASKS = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
NO_REQUESTS = (
    *(b"", b"\0\xff\x80garbage\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01", b"GET / HTTP/x\r\n\r\n"),
    *(b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20000 + b"\r\n"),
    b"GET /" + b"a" * 10**5 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    *(ASKS + b"Content-Length: 9\r\n\r\n{", ASKS + b"Content-Length: -5\r\n\r\n", post({})[:-1]),
    ASKS + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
)


@pytest.mark.parametrize("content", NO_REQUESTS, ids=range(len(NO_REQUESTS)))
def test_what_is_no_request_is_refused_and_forgotten(server, content):
    try:
        received = server.ask(content, half_closed=True)
    except ConnectionError:
        return
    assert not received or re.match(rb"HTTP/1.1 4\d\d ", received), received[:200]
    assert b"Traceback" not in received
    if b"\r\n\r\n{" in received:
        assert json.loads(received.split(b"\r\n\r\n", 1)[1])["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
def test_clients_that_vanish_leave_nothing_behind(server, stream):
    body = {"prompt": "a", "max_tokens": 220, "stream": stream, "logit_bias": {"257": -100}}
    before = server.metric("generation_tokens_total")
    for _ in range(12):
        connection = server.send(post(body))
        if stream:
            connection.recv(100)
        connection.close()
    end = time.monotonic() + WAIT
    while server.metric("num_requests_running") or server.metric("num_requests_waiting"):
        assert time.monotonic() < end
    assert server.metric("generation_tokens_total") - before < 12 * 220 / 2


def test_a_signal_lets_the_answer_end_that_runs(folder):
    server = Process(folder, "--no-api-key")
    try:
        body = {"prompt": "a", "max_tokens": 120, "stream": True, "logit_bias": {"257": -100}}
        with server.send(post(body)) as connection:
            received = connection.recv(100)
            server.process.send_signal(signal.SIGINT)
            asked = post({"prompt": "a", "max_tokens": 1}, more="Connection: close\r\n")
            while b" 503 " not in (reply := server.ask(asked)[:13]):
                assert b" 200 " in reply, "before the signal arrives"
            while piece := connection.recv(2**16):
                received += piece
    finally:
        said = server.end()
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert received.count(b'"entropix":{"index"') == 120
    assert server.process.returncode == 0
    assert "Traceback" not in said


def test_a_second_signal_ends_what_runs_and_reports_no_error(folder):
    server = Process(folder, "--no-api-key", "--batch", "4")
    try:
        body = {"prompt": "a", "max_tokens": -1, "stream": True, "n": 8}
        with server.send(post(body)) as streaming, server.send(post(body | {"stream": False})):
            streaming.recv(100)
            for one in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):
                server.process.send_signal(one)
            while streaming.recv(2**16):
                pass
    except ConnectionError:
        pass  # it may hang up at any time
    finally:
        said = server.end()
    assert server.process.returncode == 0, said
    assert "Traceback" not in said
