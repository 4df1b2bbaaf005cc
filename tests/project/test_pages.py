"""Blocks of README and docs run in the order of their page and print the output that the page shows."""

import contextlib
import importlib
import io
import re
import shutil

import pytest
from pages import PAGES, ROOT, TORCHRUN, Reader, blocks

import torchrecmetrics as trm

BLOCKS = [block for page in PAGES for block in blocks(page)]
READERS = {}  # page: the Reader that runs its blocks
ON_PROCESSES = {block.page for block in BLOCKS if TORCHRUN.search(block.text)}


def each_block(on_processes):
    """Return a parametrisation by the blocks of pages that have, or do not have, programs on several processes."""
    chosen = [block for block in BLOCKS if block.not_run is None and (block.page in ON_PROCESSES) == on_processes]
    return pytest.mark.parametrize("block", chosen, ids=str)


@each_block(on_processes=True)
def test_block_on_processes(block, processes, tmp_path_factory):
    """Of a page with `torchrun`; all these pages share their processes."""
    type_in(block, tmp_path_factory, processes)


@each_block(on_processes=False)
def test_block(block, tmp_path_factory):
    type_in(block, tmp_path_factory)


def type_in(block, tmp_path_factory, processes=None):
    """Run a block after all blocks above it."""
    if block.page not in READERS:
        folder = tmp_path_factory.mktemp("page")
        READERS[block.page] = Reader(folder, processes)
        if block.page.stem == "conformance":  # the page's reader is in a copy of the repository
            shutil.copytree(ROOT / "conformance", folder / "conformance")
    reader = READERS[block.page]
    if reader.failed:
        pytest.fail(f"{reader.failed}, above this one, failed", pytrace=False)
    for each in blocks(block.page)[reader.done :]:
        reader.done += 1
        try:
            if str(each) == str(block):
                reader.run(each)
                return
            with contextlib.suppress(pytest.skip.Exception):  # this test runs alone: blocks above it run first
                reader.run(each)
        except BaseException as error:
            if not isinstance(error, pytest.skip.Exception):
                reader.failed = str(each)
            raise


CHANGES_THE_MACHINE = re.compile(r"pip install|git clone")  # `.ci/run` runs these blocks
ON_A_CLUSTER = re.compile(r"ray\.data|spark\.read|\bray\.get\b|ItemShard")  # test_engines and examples do the same


def test_only_blocks_that_change_the_machine_or_need_a_cluster_are_not_run():
    texts = [block.text for block in BLOCKS if block.not_run]
    assert not [text for text in texts if not CHANGES_THE_MACHINE.search(text) and not ON_A_CLUSTER.search(text)]


DOTTED = re.compile(r"\b(?:torchrecmetrics|trm)((?:\.[A-Za-z_]\w*)+)")


def exists(path):
    """Return True if a dotted path after `torchrecmetrics` names an object of the package."""
    found = trm
    for name in path.strip(".").split("."):
        if not hasattr(found, name) and hasattr(found, "__path__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(f"{found.__name__}.{name}")
        found = getattr(found, name, None)
    return found is not None


def test_public_names_on_pages_exist():
    named = {(page.name, path) for page in PAGES for path in DOTTED.findall(page.read_text(encoding="utf-8"))}
    assert not {(page, path) for page, path in named if not exists(path)}


@pytest.mark.parametrize("package", ["", ".functional", ".lightning", ".pyg"])
def test_public_names_have_a_docstring_and_a_place_in_the_reference(package):
    module = importlib.import_module(f"torchrecmetrics{package}")
    public = {name: getattr(module, name) for name in module.__all__}
    reference = "".join(page.read_text(encoding="utf-8") for page in PAGES if "reference" in page.parts)
    listed = {*re.findall(rf"(?:^\.\. auto\w+:: |`){re.escape(module.__name__)}\.(\w+)(?:`|$)", reference, re.M)}

    assert not [name for name, value in public.items() if not value.__doc__]
    assert f".. automodule:: {module.__name__}\n   :members:\n" in reference or public.keys() <= listed


def test_code_on_pages_has_at_most_88_columns():
    """A page shows them without scrolling."""
    lines = [(str(block), line) for block in BLOCKS if block.kind == "python" for line in block.text.splitlines()]
    assert not [(block, line) for block, line in lines if len(line) > 88]


def read(folder, text):
    """Return the blocks of a page that does not exist, with this text, and a reader in a folder."""
    return blocks(ROOT / "docs" / "none.md", text), Reader(folder)


def test_a_block_whose_output_has_changed_fails_with_page_line_and_both_outputs(tmp_path):
    (block,), reader = read(tmp_path, "# A\n\n```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")

    with pytest.raises(pytest.fail.Exception, match=r"docs/none.md:8: expected\n3\n\ngot\n2"):
        reader.run(block)


def test_a_block_whose_output_is_not_shown_fails(tmp_path):
    (block,), reader = read(tmp_path, "```python\nprint(2)\n```\n")

    with pytest.raises(pytest.fail.Exception, match=r"docs/none.md:2: expected\n\(no output is shown\)\ngot\n2"):
        reader.run(block)


def test_a_script_with_an_exit_status_fails(tmp_path):
    (block,), reader = read(tmp_path, "```bash\nfalse\n```\n")

    with pytest.raises(pytest.fail.Exception, match="exit status 1"):
        reader.run(block)


FOUR_BLOCKS = """Write

```{code-block} yaml
:caption: x/y.yaml

a: 1
```

- and

    ```python
    from pathlib import Path
    text = Path("x/y.yaml").read_text()
    ```

```python
>>> text.strip()
'a: 1'
```

```bash
cat x/y.yaml
```

```text
a: 1
```
"""


def test_blocks_of_a_page_share_a_namespace_and_a_folder(tmp_path):
    """A titled block becomes a file; indented blocks are blocks too."""
    found, reader = read(tmp_path, FOUR_BLOCKS)
    for block in found:
        reader.run(block)

    assert [block.line for block in found] == [4, 12, 17, 22]


DATA = ROOT.parent / "shared" / "data"


def typed_in(page, folder):
    """Return the output of a page that is run in a folder with MovieLens-100K's u.data, and its namespace."""
    shutil.copy(DATA / "ml-100k" / "u.data", folder)
    namespace = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for block in blocks(page):
            if block.kind == "python":
                exec(block.text, namespace)
    return printed.getvalue(), namespace


@pytest.mark.skipif(not DATA.exists(), reason="the data sets are not here")
def test_the_page_on_a_first_evaluation_states_the_numbers_of_movielens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "start" / "first-evaluation.md"
    told = re.search(r"NDCG@10 ([\d.]+) for popularity and ([\d.]+) for", page.read_text(encoding="utf-8"))
    printed, _ = typed_in(page, tmp_path)

    assert re.findall(r"^NDCG@10  ([\d.]+) ±", printed, re.M) == list(told.groups())


@pytest.mark.skipif(not DATA.exists(), reason="the data sets are not here")
def test_the_page_on_comparisons_states_the_numbers_of_movielens(tmp_path, monkeypatch):
    """The larger decomposition is better."""
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "how-to" / "compare.md"
    number = r"([\d.]+)"
    told = rf"by {number} NDCG@10 \(interval {number} to {number}, corrected p {number}\) for\s(\d+) users"
    _, namespace = typed_in(page, tmp_path)
    ndcg = trm.compare({name: namespace[name] for name in ("small", "large")})["NDCG@10"]
    numbers = ndcg.difference, ndcg.adjusted_low, ndcg.adjusted_high, ndcg.adjusted_p, ndcg.num_rows
    stated = re.search(told, page.read_text(encoding="utf-8")).groups()

    assert [*map(float, stated[:3])] == pytest.approx(numbers[:3], abs=6e-5)
    assert [*map(float, stated[3:])] == pytest.approx(numbers[3:], abs=6e-4)
