"""The notebook: run with few questions, and as it was committed."""

import json
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"
MOST_BYTES = 200_000


@pytest.mark.model
@pytest.mark.filterwarnings("ignore")
def test_it_runs(demo_file, monkeypatch):
    why = "the notebook needs nbclient and ipykernel, of the extra dev"
    nbclient = pytest.importorskip("nbclient", reason=why)
    pytest.importorskip("ipykernel", reason=why)
    import nbformat

    monkeypatch.setenv("NOTEBOOK_QUESTIONS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": NOTEBOOK.parent}}
    ).execute()
    (table,) = notebook.cells[-1]["outputs"]
    assert "| max_entropy |" in table["data"]["text/markdown"]


def test_it_was_executed_in_order_and_says_nothing_of_a_machine():
    text = NOTEBOOK.read_text("utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert kinds == {"display_data", "execute_result"}
    assert not re.search(r"/(home|Users|root|tmp|work|opt|usr|var)/|[A-Z]:\\\\", text)
    assert len(text) < MOST_BYTES
