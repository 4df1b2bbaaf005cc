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
    """The bytes of all pictures, drawn anew, by the name of their file."""
    return {path.name: path.read_bytes() for path in pictures.draw(tmp_path_factory.mktemp("pictures"))}


@pytest.mark.nightly
def test_the_committed_pictures_are_those_that_are_drawn(drawn):
    """Bytes are compared if the files are from this matplotlib: others set letters a little differently."""
    svgs = {name: (HOME / name).read_bytes() for name in drawn if name.endswith(".svg")}
    assert drawn.keys() == {path.name for path in HOME.iterdir()}
    (by,) = {re.search(rb"Matplotlib v([\w.]+)", picture)[1].decode() for picture in svgs.values()}
    if matplotlib.__version__ != by:
        pytest.skip(f"the committed pictures are from matplotlib {by}")

    assert not {name for name in svgs if svgs[name] != drawn[name]}, "python docs/pictures.py draws them anew"


@pytest.mark.nightly
def test_every_picture_is_on_a_page_with_an_alt_text(pictures):
    """conf.py puts the dark one beside it."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown = {*re.findall(r"!\[[^\]]+\]\([./]*pictures/([\w-]+)-light\.svg\)\n", text)}

    assert {*pictures.PICTURES} <= shown


def test_relevant_items_have_the_same_ranks_by_scores_and_by_list(pictures):
    # items in order of their scores: 1, 4, 2, 3, 0
    assert pictures.doors_numbers()["ranks"] == {"scores": [2, 4], "list": [2, 4]}


def test_three_inputs_have_the_values_of_ranks_2_and_4(pictures):
    ndcg = (1 / math.log2(3)) / (1 + 1 / math.log2(3))
    expected = pytest.approx({"HR@3": 1, "Recall@3": 1 / 2, "NDCG@3": ndcg, "MRR@3": 1 / 2})

    assert pictures.doors_numbers()["values"] == dict.fromkeys(["scores", "list", "embeddings"], expected)


def test_an_item_of_100_with_equal_scores_is_a_hit_with_probability_k_of_100(pictures):
    expected = [k / 100 for k in range(1, 101)]
    assert pictures.ties_numbers()["expected"] == pytest.approx(expected, abs=1e-15)


def test_an_item_of_100_with_equal_scores_is_a_hit_at_its_mean_rank_of_50_5(pictures):
    assert pictures.ties_numbers()["realistic"] == [0] * 50 + [1] * 50


def test_items_of_the_history_have_no_rank_and_a_relevant_one_is_missed(pictures):
    # scores fall with the id; 0 and 2 are history, 2 and 4 relevant
    assert pictures.history_numbers() == {
        "nothing excluded": {0: 1, 1: 2, 2: 3, 3: 4, 4: 5, 5: 6},
        'overlap="keep"': {1: 1, 2: 2, 3: 3, 4: 4, 5: 5},
        'overlap="miss"': {1: 1, 3: 2, 4: 3, 5: 4, 2: math.inf},
    }


def test_leave_last_out_tests_on_the_last_event_of_each_user(pictures):
    events, split = pictures.EVENTS, pictures.splits_numbers()["leave_last_out"]

    assert dict(split["test"]) == {user: days[-1] for user, days in events.items()}
    assert dict(split["valid"]) == {user: days[-2] for user, days in events.items()}
    assert (split["train_ends"], split["older"]) == (21, (3, 6))


def test_a_split_by_time_tests_on_later_events_than_it_trains_on(pictures):
    split = pictures.splits_numbers()["split_by_time"]

    assert split["train_ends"] < pictures.VALID_FROM <= min(day for _, day in split["valid"])
    assert min(day for _, day in split["test"]) >= pictures.TEST_FROM
    assert split["older"] == (0, len(split["test"]))


def test_the_model_that_is_better_over_all_items_looks_worse_with_100_sampled_negatives(pictures):
    numbers, of_100 = pictures.sampled_numbers(), pictures.SAMPLED_SIZES.index(100)
    better, worse = numbers["model A"], numbers["model B"]

    assert better["full"] > worse["full"]
    assert better["sampled"][of_100] < worse["sampled"][of_100]


def test_hit_rates_of_model_a_are_those_by_arithmetic(pictures):
    """Hits of every third user, and of one in 1,000 of the others."""
    model_a, of_100 = pictures.sampled_numbers()["model A"], pictures.SAMPLED_SIZES.index(100)

    assert model_a["full"][0] == pytest.approx(1 / 3, abs=0.01)
    assert model_a["sampled"][of_100] == pytest.approx(1 / 3 + 2 / 3 * 10 / 101, abs=0.03)


# alt text: "popularity has low coverage, random lists have low NDCG. The model has a higher NDCG than both, and a small
# penalty raises its coverage."
def test_popularity_has_the_lowest_coverage(pictures):
    coverages = {name: coverage for name, (coverage, _) in pictures.coverage_numbers().items()}
    assert min(coverages, key=coverages.get) == "popularity"


def test_the_model_has_a_higher_ndcg_than_popularity_and_random_lists(pictures):
    ndcgs = {name: ndcg for name, (_, ndcg) in pictures.coverage_numbers().items()}
    assert ndcgs["random"] < ndcgs["popularity"] < ndcgs["model"]


def test_a_small_penalty_raises_the_coverage_and_costs_no_ndcg(pictures):
    numbers = pictures.coverage_numbers()
    (coverage, ndcg), (penalised_coverage, penalised_ndcg) = numbers["model"], numbers["penalty 0.05"]

    assert penalised_coverage > coverage
    assert penalised_ndcg >= ndcg


def test_points_of_coverage_have_the_numbers_that_the_page_prints(pictures):
    page = (ROOT / "docs/how-to/beyond-accuracy.md").read_text(encoding="utf-8")
    printed = re.findall(r"^(\S.*?) +NDCG@10 (\S+) Coverage@10 (\S+)", page, re.M)
    points = {name: (float(coverage), float(ndcg)) for name, ndcg, coverage in printed}

    assert len(printed) == 4
    assert points == {name: pytest.approx(pictures.coverage_numbers()[name], abs=6e-4) for name in points}


def test_layers_have_the_modules_of_the_package_and_of_contributing(pictures):
    drawn = {module for modules in pictures.LAYERS for module in modules}
    paths = (ROOT / "torchrecmetrics").glob("[a-z]*")

    assert drawn == {*pictures.layers_numbers()} - {"__main__.py"}
    assert drawn == {path.name + "/" * path.is_dir() for path in paths if path.suffix in (".py", "")}
