"""Results in a real Jupyter kernel: a cell shows the screen that `print` writes, in a notebook that is valid."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.api.results.test_notebook_output import HtmlReader

ROOT = Path(__file__).resolve().parents[3]
CELLS = (
    'import headscope\nreport = headscope.inspect("bert-base-uncased", num_labels=3, offline=True)\nreport',
    'headscope.check("gpt2", "training", offline=True)',
    'headscope.compare("bert-base-uncased", "roberta-base", offline=True)',
    "report.to_pandas().query(\"status == 'new'\")",
    'headscope.diagram(report, "svg")',
    "print(report)",
)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A notebook of CELLS, run from top to bottom by a kernel in a fork of this Python."""
    import nbformat
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_notebook

    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "IPYTHONDIR": folder, "JUPYTER_CONFIG_DIR": folder, "JUPYTER_RUNTIME_DIR": folder, "HF_HUB_OFFLINE": "1",
            "HEADSCOPE_NO_CACHE": "1", "PYTHONPATH": ROOT, "COLUMNS": "115", "JUPYTER_COLUMNS": "115",
        }.items():  # fmt: skip
            patch.setenv(name, str(value))
        # A Jupyter of the user's own must not be asked for the kernel.
        patch.setenv("JUPYTER_PATH", str(folder))
        kernel = [*warm.python(), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        (folder / "kernels" / "fork").mkdir(parents=True)
        (folder / "kernels" / "fork" / "kernel.json").write_text(
            json.dumps({"argv": kernel, "display_name": "a warm fork", "language": "python"})
        )
        made = new_notebook(cells=[new_code_cell(code) for code in CELLS])
        NotebookClient(made, timeout=300, kernel_name="fork", resources={"metadata": {"path": folder}}).execute()
    nbformat.validate(made)
    yield made


def output_of(notebook: Any, cell: int) -> dict[str, str]:
    [output] = [item for item in notebook.cells[cell].outputs if item.output_type == "execute_result"]
    return output.data


@pytest.mark.parametrize("cell", range(3))
def test_a_cell_shows_the_screen_in_color(notebook: Any, cell: int) -> None:
    read = HtmlReader(output_of(notebook, cell)["text/html"])
    assert read.tags <= {"pre", "span", "a"}
    assert "style" in read.attributes
    assert max(len(line.rstrip()) for line in read.text.splitlines()) <= 115
    assert "\N{HORIZONTAL ELLIPSIS}" not in read.text


def test_a_cell_shows_what_print_writes(notebook: Any) -> None:
    [printed] = [item.text for item in notebook.cells[-1].outputs if item.get("name") == "stdout"]
    assert HtmlReader(output_of(notebook, 0)["text/html"]).text.rstrip() == printed.rstrip()


def test_a_cell_has_plain_text_for_places_without_html(notebook: Any) -> None:
    assert output_of(notebook, 0)["text/plain"].startswith("<headscope inspect of bert-base-uncased: ")


def test_a_cell_shows_a_diagram_as_the_picture(notebook: Any) -> None:
    assert output_of(notebook, 4)["image/svg+xml"].startswith("<svg")


def test_a_cell_shows_nothing_else(notebook: Any) -> None:
    for cell in notebook.cells[:-1]:
        others = [item for item in cell.outputs if item.output_type != "execute_result"]
        # tqdm asks for ipywidgets when Transformers is imported.
        assert all("IProgress not found" in item.get("text", "") for item in others), others


def test_parameters_are_a_table_that_pandas_filters(notebook: Any) -> None:
    html = output_of(notebook, 3)["text/html"]
    assert "classifier.weight" in html
    assert "bert.pooler.dense.weight" not in html
