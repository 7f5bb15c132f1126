"""`POST /v1/feedback`: the scores of an answer go back with what the user says of it."""

import pytest

from entropix_mlx.answer.promise import Promise


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def test_an_answer_is_marked(client):
    scores = client.complete().choice["entropix"]["scores"]
    reply = client.post("/v1/feedback", json={"right": True, "scores": scores, "kind": "sums"})
    assert (reply.status, reply.json["marks"], reply.json["kind"]) == (200, 1, "sums")
    assert client.post("/v1/feedback", json={"right": False, "score": -2}).json["kind"] == "answers"
    [mark] = Promise("tiny", "sums").state.marks
    assert mark.score == -scores["max_entropy"]


def test_certainty_goes_by_the_promise(client, tmp_path):
    assert client.complete().choice["entropix"]["certainty"] is None
    for _ in range(20):
        client.post("/v1/feedback", json={"right": True, "score": 0})
    certainty = client.complete().choice["entropix"]["certainty"]
    assert (certainty["unsure"], certainty["threshold"]) == (True, 0)
    (tmp_path / "entropix_mlx" / "promises.json").write_text("no promises")
    assert client.complete().choice["entropix"]["certainty"] is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"right": "yes", "score": 1},
        {"right": True},
        {"right": True, "scores": {}},
        {"right": True, "score": 1, "kind": "x" * 200},
        {"right": True, "score": 1, "answer": "x"},
        {"right": True, "scores": {"logprob": ["x"]}},
        {"right": True, "score": 1, "more": 2},
    ],
)
def test_a_mistake_is_refused(client, body):
    assert 400 <= client.post("/v1/feedback", json=body).status < 500
    assert not Promise("tiny").state.marks
