"""The pictures of the documentation: their numbers are right, and the files are those that the script draws."""

import importlib.util
import math
import re

import matplotlib
import pytest
from pages import PAGES, ROOT

HOME = ROOT / "docs/pictures"


@pytest.fixture(scope="module")
def pictures():
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs/pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def drawn(pictures, tmp_path_factory):
    """All pictures, drawn anew."""
    return pictures.draw(tmp_path_factory.mktemp("pictures"))


@pytest.mark.nightly
class TestFiles:
    def test_same_bytes(self, drawn, pictures, tmp_path):
        """Pictures are those of the committed files, also when drawn alone.

        Bytes are compared if the files are from this matplotlib: others set letters a little differently.
        """
        assert {path.name for path in drawn} == {path.name for path in HOME.iterdir()}
        for path in pictures.draw(tmp_path, ["ties"]):
            assert path.read_bytes() == (drawn[0].parent / path.name).read_bytes()
        svgs = [path for path in drawn if path.suffix == ".svg"]
        (by,) = re.findall(r"Matplotlib v([\w.]+)", (HOME / svgs[0].name).read_text(encoding="utf-8"))
        if matplotlib.__version__ != by:
            pytest.skip(f"the committed pictures are from matplotlib {by}")
        stale = [path.name for path in svgs if path.read_bytes() != (HOME / path.name).read_bytes()]
        assert not stale, "python docs/pictures.py draws them anew"

    def test_used(self, pictures):
        """Every picture is on a page, with an alt text; conf.py puts the dark one beside it."""
        text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
        for name in pictures.PICTURES:
            assert re.search(rf"!\[[^\]]+\]\([./]*pictures/{name}-light\.svg\)\n", text), name


class TestNumbers:
    """The numbers of the library in the pictures, against arithmetic."""

    def test_inputs(self, pictures):
        numbers = pictures.doors_numbers()
        # items in order of their scores: 1, 4, 2, 3, 0
        assert numbers["ranks"] == {"scores": [2, 4], "list": [2, 4]}
        ndcg = (1 / math.log2(3)) / (1 + 1 / math.log2(3))
        expected = pytest.approx({"HR@3": 1, "Recall@3": 1 / 2, "NDCG@3": ndcg, "MRR@3": 1 / 2})
        assert numbers["values"] == dict.fromkeys(["scores", "list", "embeddings"], expected)

    def test_ties(self, pictures):
        # the item is at each of 100 places with equal probability; its mean rank is 50.5
        numbers = pictures.ties_numbers()
        assert numbers["expected"] == pytest.approx([k / 100 for k in range(1, 101)], abs=1e-15)
        assert numbers["realistic"] == [0] * 50 + [1] * 50

    def test_history(self, pictures):
        # scores fall with the id; 0 and 2 are history, 2 and 4 relevant
        assert pictures.history_numbers() == {
            "nothing excluded": {0: 1, 1: 2, 2: 3, 3: 4, 4: 5, 5: 6},
            'overlap="keep"': {1: 1, 2: 2, 3: 3, 4: 4, 5: 5},
            'overlap="miss"': {1: 1, 3: 2, 4: 3, 5: 4, 2: math.inf},
        }

    def test_splits(self, pictures):
        events, found = pictures.EVENTS, pictures.splits_numbers()["leave_last_out"]
        assert dict(found["test"]) == {user: days[-1] for user, days in events.items()}
        assert dict(found["valid"]) == {user: days[-2] for user, days in events.items()}
        assert (found["train_ends"], found["older"]) == (21, (3, 6))

    def test_splits_by_time(self, pictures):
        found = pictures.splits_numbers()["split_by_time"]
        assert found["train_ends"] < pictures.VALID_FROM <= min(day for _, day in found["valid"])
        assert min(day for _, day in found["test"]) >= pictures.TEST_FROM
        assert found["older"] == (0, len(found["test"]))

    def test_sampled(self, pictures):
        """The model that is better over all items looks worse with 100 sampled negatives."""
        numbers = pictures.sampled_numbers()
        at = pictures.SAMPLED_SIZES.index(100)
        a, b = numbers["model A"], numbers["model B"]
        assert a["full"][0] == pytest.approx(1 / 3, abs=0.01)  # hits: every third user, and one in 1,000 of the others
        assert a["sampled"][at] == pytest.approx(1 / 3 + 2 / 3 * 10 / 101, abs=0.03)
        assert a["full"] > b["full"]
        assert a["sampled"][at] < b["sampled"][at]

    def test_coverage(self, pictures):
        """The points lie as the alt text says, and have the numbers that the page prints."""
        numbers = pictures.coverage_numbers()
        model, popularity, random = (numbers[name] for name in ("model", "popularity", "random"))
        assert popularity[0] < model[0] < random[0] == 1
        assert random[1] < popularity[1] < model[1]
        penalised = [numbers[f"penalty {by:g}"] for by in pictures.COVERAGE_PENALTIES]
        assert sorted(penalised) == penalised > [model]
        assert min(ndcg for _, ndcg in penalised[:3]) >= model[1]
        page = (ROOT / "docs/how-to/beyond-accuracy.md").read_text(encoding="utf-8")
        printed = re.findall(r"^(\S.*?) +NDCG@10 (\S+) Coverage@10 (\S+)", page, re.M)
        assert len(printed) == 4
        for name, ndcg, coverage in printed:
            assert numbers[name] == pytest.approx((float(coverage), float(ndcg)), abs=6e-4)


class TestLayers:
    def test_all_modules(self, pictures):
        """The modules drawn are those of CONTRIBUTING.md and those of the package."""
        drawn = [module for modules in pictures.LAYERS for module in modules]
        told = [module for module in pictures.layers_numbers() if module != "__main__.py"]
        assert sorted(drawn) == sorted(told)
        paths = (ROOT / "torchrecmetrics").glob("[a-z]*")
        assert {path.name + "/" * path.is_dir() for path in paths if path.suffix in (".py", "")} == set(drawn)
