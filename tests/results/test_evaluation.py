"""Results are exported as columns, frames, JSON, Markdown and LaTeX, always with the same columns and without loss."""

import json
import math
import pickle

import pytest
import torch

import torchrecmetrics as trm

COLUMNS = ["metric", "k", "group", "value", "standard_error", "low", "high", "num_users"]
TRUTH = {"user": ["al", "bo"], "item": ["x", "y"]}
LISTS = {"al": ["w", "x"], "zoe": ["x", "y"]}
"""Of two users with a relevant item, al has it at rank 2 and bo has no list."""


def with_and_without_cutoffs():
    metrics = ["HR@1", "HR@2", trm.NDCG(2, gain="exponential"), "RPrecision"]
    return trm.evaluate_lists(trm.RecMetricCollection(metrics, prefix="val/"), LISTS, target=TRUTH)


def only(name):
    return lambda: trm.evaluate_lists(name, LISTS, target=TRUTH)


KINDS = pytest.mark.parametrize(
    "make", [with_and_without_cutoffs, only("HR@1"), only("RPrecision")], ids=["both", "with k", "without k"]
)


def test_a_result_has_a_row_per_metric_and_cutoff():
    """Names of metrics have no prefix."""
    columns = with_and_without_cutoffs().to_dict()

    assert list(columns) == COLUMNS
    assert columns["metric"] == ["HR", "HR", "NDCG-exponential", "RPrecision"]
    assert (columns["k"], columns["num_users"], {*columns["group"]}) == ([1, 2, 2, None], [2] * 4, {None})


def test_rows_have_value_error_and_interval():
    result = with_and_without_cutoffs()
    columns = result.to_dict()

    assert columns["value"] == [value.item() for value in result.values()]
    assert columns["standard_error"] == [error.item() for error in result.standard_errors.values()]
    assert [*zip(columns["low"], columns["high"], strict=True)] == [result.confidence_intervals[key] for key in result]


@KINDS
def test_columns_of_pandas_have_types_that_do_not_depend_on_the_values(make):
    pytest.importorskip("pandas")
    result = make()
    frame = result.to_pandas()

    assert [str(frame[name].dtype) for name in ("k", "value", "low", "high")] == ["Int64", *["float64"] * 3]
    assert frame["value"].tolist() == result.to_dict()["value"]
    assert frame["k"].isna().tolist() == [k is None for k in result.to_dict()["k"]]


@KINDS
def test_columns_of_polars_have_types_that_do_not_depend_on_the_values(make):
    pl = pytest.importorskip("polars")
    frame = make().to_polars()

    assert frame.to_dict(as_series=False) == make().to_dict()
    assert [*frame.schema.values()] == [pl.String, pl.Int64, pl.String, *[pl.Float64] * 4, pl.Int64]


def test_a_missing_library_is_named_with_the_way_to_install_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ImportError, match="pandas is not installed: pip install pandas"):
        only("HR@1")().to_pandas()


ONE_USER = {"lists": {"al": ["x"]}, "target": {"user": ["al"], "item": ["x"]}}


def test_json_has_null_for_nan_and_counts_beside_the_rows():
    result = trm.evaluate_lists("HR@1", **ONE_USER)
    read = json.loads(result.to_json(), parse_constant=pytest.fail)

    assert read["rows"] == [dict(zip(COLUMNS, ["HR", 1, None, 1.0, None, None, None, 1], strict=True))]
    of_lists = ("unserved", "left_out", "unlisted", "unknown", "repeated", "cut_ties", "without_history", "unmet")
    counts = {"num_users": 1, "num_skipped": 0, "num_unreachable": 0, "num_tied": 0}
    assert "\n" not in result.to_json(indent=None)
    assert read["counts"] == counts | {f"num_{name}": 0 for name in (*of_lists, "excluded")}


def test_markdown_leaves_out_empty_columns():
    assert trm.evaluate_lists(["HR@1", "HR@2", "RPrecision"], LISTS, target=TRUTH).to_markdown() == (
        "| metric     |   k |  value | standard_error |    low |   high | num_users |\n"
        "| ---------- | --: | -----: | -------------: | -----: | -----: | --------: |\n"
        "| HR         |   1 | 0.0000 |         0.0000 | 0.0000 | 0.9878 |         2 |\n"
        "| HR         |   2 | 0.5000 |         0.5000 | 0.0015 | 0.9985 |         2 |\n"
        "| RPrecision |     | 0.0000 |         0.0000 | 0.0000 | 0.9878 |         2 |"
    )


def test_latex_escapes_special_characters():
    class Hits(trm.RankingMetric):
        @staticmethod
        def formula(ranking, k, *, scale_by=1):
            return ranking.hits(k).sum(-1).double() * scale_by

    assert trm.evaluate_lists([Hits(2, scale_by=3)], LISTS, target=TRUTH).to_latex() == (
        "% \\usepackage{booktabs}\n\\begin{tabular}{lrrrrrr}\n\\toprule\n"
        "metric & k & value & standard\\_error & low & high & num\\_users \\\\\n\\midrule\n"
        "Hits-scale\\_by3 & 2 & 1.5000 & 1.5000 & $-$17.5593 & 20.5593 & 2 \\\\\n\\bottomrule\n\\end{tabular}"
    )


def test_notebooks_show_the_cells_and_lines_of_the_text_escaped():
    result = trm.evaluate_lists({"<HR>": trm.HR(1)}, {"al": ["x"], "bo": ["x"]}, target=TRUTH)

    assert result._repr_html_() == (
        "<table>\n<tr><td>metric</td><td>value, error</td></tr>\n"
        "<tr><td>&lt;HR&gt;</td><td>0.5000 ± 0.5000</td></tr>\n</table>\n"
        "<p>2 users, 1 relevant item in no list (such as &#x27;y&#x27;; lists have such as &#x27;x&#x27;)</p>\n"
        "<p>± standard error; no interval for fewer than 10 users</p>"
    )


def recommendations():
    return trm.recommend(torch.eye(2), torch.eye(2), 1, exclude=trm.Interactions.from_frame(TRUTH))


@pytest.mark.parametrize("make", [with_and_without_cutoffs, recommendations])
def test_a_result_can_be_pickled(make):
    result = make()
    assert pickle.loads(pickle.dumps(result)).to_dict() == result.to_dict()


def shown(result):
    """Return all that a result shows."""
    return type(result), str(result), result.counts(), result.to_dict()


def test_a_collection_has_the_result_of_evaluate_beside_a_plain_dict():
    test = trm.Interactions.from_columns([0, 1, 2], [0, 1, 1], num_users=3, num_items=2)
    evaluation = trm.evaluate(["HR", "MRR"], torch.eye(3, 2), torch.eye(2), target=test, k=1)
    collection = trm.RecMetricCollection(["HR", "MRR"], k=1)
    collection.update(torch.eye(3, 2), torch.tensor([0, 1, 1]))

    assert shown(collection.result()) == shown(evaluation)
    assert type(collection.compute()) is dict
    assert collection.compute() == evaluation


@pytest.mark.parametrize("metric", [trm.MRR(2), trm.MedianRank(), trm.NDCG(1, empty_target_action="neg")])
def test_a_metric_has_the_result_of_a_collection_of_it(metric):
    collection = trm.RecMetricCollection([metric])
    for target in (torch.tensor([0, 1, -1]), torch.tensor([1, 1, 0])):
        metric.update(torch.eye(3, 2), target)
        collection.update(torch.eye(3, 2), target)

        assert shown(metric.result()) == shown(collection.result())
        assert metric.result()[metric.label] == metric.compute()


def test_a_result_has_groups_and_rows_and_counts_later_updates():
    collection = trm.RecMetricCollection("HR", k=1, accumulators=[trm.ByGroup("cold", "warm"), trm.KeptRows()])
    collection.update(torch.tensor([1, 2]), depth=2, groups=torch.tensor([0, 1]), row_ids=torch.tensor([4, 5]))
    first = collection.result().floats()
    collection.update(torch.tensor([1]), depth=2, groups=torch.tensor([1]), row_ids=torch.tensor([6]))
    result = collection.result()

    assert first == {"HR@1": 1 / 2, "HR@1/cold": 1, "HR@1/warm": 0}
    assert (result.groups.to_dict()["value"], result.num_users) == ([1, 1 / 2], 3)
    assert result.rows.to_dict() == {"id": [4, 5, 6], "HR@1": [1, 0, 1]}


def hits_at_1(num_hits, num_users, **options):
    """Evaluate HR@1 of users of whom the first `num_hits` hit."""
    target = trm.Interactions.from_columns(range(num_users), range(num_users), num_users=num_users, num_items=20)
    users = torch.eye(20).where(torch.arange(20)[:, None] < num_hits, 0)[:num_users]
    return trm.evaluate("HR", users, torch.eye(20), target=target, k=1, ties="realistic", **options)


def test_one_user_has_neither_error_nor_interval():
    text = str(trm.evaluate_lists("HR@1", **ONE_USER))
    assert text == "HR@1  1.0000\n1 user\nno standard error and no interval for one user"


def test_fewer_than_10_users_have_an_error_and_no_interval():
    """The error of 6 hits of 9 is sqrt(6 / 9 x 3 / 9 / 8) = 0.1667."""
    result = hits_at_1(6, 9)
    low, high = result.confidence_intervals["HR@1"]

    text = "HR@1  0.6667 ± 0.1667\n9 users\n± standard error; no interval for fewer than 10 users"
    assert str(result) == text
    assert low < result["HR@1"] == 6 / 9 < high


def test_10_users_have_an_error_and_an_interval():
    """The error of 6 hits of 10 is sqrt(0.6 x 0.4 / 9) = 0.1633."""
    result = hits_at_1(6, 10)
    low, high = result.confidence_intervals["HR@1"]

    assert str(result).splitlines() == [
        f"HR@1  0.6000 ± 0.1633  [{low:.4f}, {high:.4f}]",
        "10 users",
        "± standard error, [95 % interval]; compare models with trm.compare, not by intervals",
    ]


def test_a_group_of_few_users_has_no_interval_beside_those_that_have_one():
    lines = str(hits_at_1(6, 10, groups=trm.Groups(torch.tensor([0] * 8 + [1] * 2), ["many", "two"]))).splitlines()

    assert ["[" in line for line in lines[:3]] == [True, False, False]
    assert lines[-1].startswith("± standard error, [95 % interval] from 10 users on; compare models")


def test_a_group_of_one_user_has_no_error_beside_those_that_have_one():
    collection = trm.RecMetricCollection("HR", k=1, accumulators=[trm.ByGroup("cold", "warm")])
    collection.update(torch.tensor([1, 1, 2]), depth=2, groups=torch.tensor([0, 1, 1]))
    result = collection.result()

    groups = ["HR@1/cold  1.0000", "HR@1/warm  0.5000 ± 0.5000"]
    assert str(result).splitlines()[1:3] == groups
    assert "<td>cold</td><td>1.0000</td>" in result.groups._repr_html_()


def test_a_metric_without_an_upper_bound_has_a_lower_one():
    assert trm.AveragePopularity.bounds == trm.CategoryShare.bounds == trm.Novelty.bounds == (0, math.inf)
    assert trm.PopularityLift.bounds == (-1, math.inf)


def test_an_interval_ends_at_the_only_known_bound():
    """Novelty is -log2(1 / 8) = 3 in one of 12 rows, and 0 in the others."""
    novelty = trm.Novelty(1, catalogue=trm.Catalogue(3, popularity=torch.tensor([8, 1, 2]), num_users=8))
    novelty.update(torch.tensor([[0.9, 0.1, 0.5]] * 11 + [[0.1, 0.9, 0.5]]))
    low, high = novelty.confidence_interval()

    assert novelty.compute() == pytest.approx(3 / 12)
    assert low == 0 < 3 / 12 < high
    assert novelty.confidence_interval(method="student")[0] < 0
