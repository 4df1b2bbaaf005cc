"""Results are exported as columns, frames, JSON, Markdown and LaTeX, always with the same columns and without loss."""

import json
import math
import pickle

import pytest
import torch

import torchrecmetrics as trm

COLUMNS = ["metric", "k", "group", "value", "standard_error", "low", "high", "num_users"]
TRUTH = {"user": ["al", "bo"], "item": ["x", "y"]}


def made(metrics=None):
    metrics = ["HR", trm.NDCG(2, gain="exponential"), "RPrecision"] if metrics is None else metrics
    k = [1, 2] if isinstance(metrics, list) and isinstance(metrics[0], str) and metrics[0] == "HR" else None
    return trm.evaluate_lists(metrics, {"al": ["w", "x"], "zoe": ["x", "y"]}, target=TRUTH, k=k)


def test_columns_are_those_of_every_result():
    """A result has one row per metric and cut-off, without groups and without the prefix of keys."""
    columns = made().to_dict()

    assert list(columns) == COLUMNS
    assert columns["metric"] == ["HR", "HR", "NDCG-exponential", "RPrecision"]
    assert (columns["k"], columns["num_users"], {*columns["group"]}) == ([1, 2, 2, None], [2] * 4, {None})
    assert made(trm.RecMetricCollection(["HR", "MRR"], k=1, prefix="val/")).to_dict()["metric"] == ["HR", "MRR"]


def test_rows_have_value_error_and_interval():
    found = made()
    columns = found.to_dict()

    assert columns["value"] == [value.item() for value in found.values()]
    assert columns["standard_error"] == [error.item() for error in found.standard_errors.values()]
    assert [*zip(columns["low"], columns["high"], strict=True)] == [found.confidence_intervals[key] for key in found]


@pytest.mark.parametrize("metrics", [None, ["HR"], ["RPrecision"]])
def test_columns_of_pandas_have_types_that_do_not_depend_on_the_values(metrics):
    pytest.importorskip("pandas")
    found = made(metrics)
    frame = found.to_pandas()

    assert list(frame.columns) == COLUMNS
    assert [str(frame[name].dtype) for name in ("k", "value", "low", "high")] == ["Int64", *["float64"] * 3]
    assert frame["value"].tolist() == found.to_dict()["value"]
    assert frame["k"].isna().tolist() == [k is None for k in found.to_dict()["k"]]


@pytest.mark.parametrize("metrics", [None, ["HR"], ["RPrecision"]])
def test_columns_of_polars_have_types_that_do_not_depend_on_the_values(metrics):
    pl = pytest.importorskip("polars")
    frame = made(metrics).to_polars()

    assert frame.to_dict(as_series=False) == made(metrics).to_dict()
    assert [*frame.schema.values()] == [pl.String, pl.Int64, pl.String, *[pl.Float64] * 4, pl.Int64]


ONE_USER = {"lists": {"al": ["x"]}, "target": {"user": ["al"], "item": ["x"]}}


def test_json_is_strict():
    """JSON has null for NaN, and the counts beside the rows."""
    found = trm.evaluate_lists("HR@1", **ONE_USER)
    read = json.loads(found.to_json(), parse_constant=pytest.fail)
    assert read["rows"] == [dict(zip(COLUMNS, ["HR", 1, None, 1.0, None, None, None, 1], strict=True))]
    counts = {"num_users": 1, "num_skipped": 0, "num_unreachable": 0, "num_tied": 0}
    of_lists = ("unserved", "left_out", "unlisted", "unknown", "repeated", "cut_ties", "without_history", "unmet")
    assert read["counts"] == counts | {f"num_{name}": 0 for name in (*of_lists, "excluded")}
    assert "\n" not in found.to_json(indent=None)


def test_tables():
    """Markdown and LaTeX leave out empty columns and escape special characters."""
    assert made(["HR", "RPrecision"]).to_markdown() == (
        "| metric     |   k |  value | standard_error |    low |   high | num_users |\n"
        "| ---------- | --: | -----: | -------------: | -----: | -----: | --------: |\n"
        "| HR         |   1 | 0.0000 |         0.0000 | 0.0000 | 0.9878 |         2 |\n"
        "| HR         |   2 | 0.5000 |         0.5000 | 0.0015 | 0.9985 |         2 |\n"
        "| RPrecision |     | 0.0000 |         0.0000 | 0.0000 | 0.9878 |         2 |"
    )

    def hits(ranking, k, *, scale_by=1):
        return ranking.hits(k).sum(-1).double() * scale_by

    class Hits(trm.RankingMetric):
        formula = staticmethod(hits)

    assert made([Hits(2, scale_by=3)]).to_latex() == (
        "% \\usepackage{booktabs}\n\\begin{tabular}{lrrrrrr}\n\\toprule\n"
        "metric & k & value & standard\\_error & low & high & num\\_users \\\\\n\\midrule\n"
        "Hits-scale\\_by3 & 2 & 1.5000 & 1.5000 & $-$17.5593 & 20.5593 & 2 \\\\\n\\bottomrule\n\\end{tabular}"
    )


def test_a_library_that_is_not_there(monkeypatch):
    """A missing library is named in the error, with the way to install it."""
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ImportError, match="pandas is not installed: pip install pandas"):
        made().to_pandas()


def test_results_can_be_pickled():
    """Results are pickled with their counts, and recommendations with their ids."""
    found = made()
    assert pickle.loads(pickle.dumps(found)).to_dict() == found.to_dict()
    had = trm.Interactions.from_frame(TRUTH)
    recommended = trm.recommend(torch.eye(2), torch.eye(2), 1, exclude=had)
    assert pickle.loads(pickle.dumps(recommended)).to_dict() == recommended.to_dict()


def test_a_collection_returns_the_same_result_as_evaluate():
    """`collection.result()` has the values, errors, counts and table of `evaluate`; `compute()` stays a plain dict."""
    test = trm.Interactions.from_columns([0, 1, 2], [0, 1, 1], num_users=3, num_items=2)
    by_evaluate = trm.evaluate(["HR", "MRR"], torch.eye(3, 2), torch.eye(2), target=test, k=1)
    collection = trm.RecMetricCollection(["HR", "MRR"], k=1)
    collection.update(torch.eye(3, 2), torch.tensor([0, 1, 1]))
    found = collection.result()
    assert type(found) is type(by_evaluate) is trm.Evaluation
    assert found.to_dict() == by_evaluate.to_dict()
    assert (str(found), found.counts()) == (str(by_evaluate), by_evaluate.counts())
    assert type(collection.compute()) is dict
    assert collection.compute() == found


@pytest.mark.parametrize("metric", [trm.MRR(2), trm.MedianRank(), trm.NDCG(1, empty_target_action="neg")])
def test_one_metric_has_a_result_as_a_collection_has(metric):
    """`metric.result()` prints, exports and counts as the result of a collection of this metric, after each update."""
    collection = trm.RecMetricCollection([metric])
    for target in ([0, 1, -1], [1, 1, 0]):
        for updated in (metric, collection):
            updated.update(torch.eye(3, 2), torch.tensor(target))
        found, expected = metric.result(), collection.result()
        assert type(found) is trm.Evaluation
        assert (str(found), found.counts(), found.to_dict()) == (str(expected), expected.counts(), expected.to_dict())
        assert found[metric.label] == metric.compute()


def test_a_result_of_a_collection_has_groups_rows_and_the_counts_of_all_updates():
    """Accumulators show in the result, and a later result counts later updates too."""
    collection = trm.RecMetricCollection("HR", k=1, accumulators=[trm.ByGroup("cold", "warm"), trm.KeptRows()])
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
    collection.update(scores, torch.tensor([1, 1]), groups=torch.tensor([0, 1]), row_ids=torch.tensor([4, 5]))
    assert collection.result().floats() == {"HR@1": 0.5, "HR@1/cold": 1.0, "HR@1/warm": 0.0}
    collection.update(scores[:1], torch.tensor([1]), groups=torch.tensor([1]), row_ids=torch.tensor([6]))
    found = collection.result()
    assert found.groups.to_dict()["value"] == [1.0, 0.5]
    assert found.rows.to_dict() == {"id": [4, 5, 6], "HR@1": [1.0, 0.0, 1.0]}
    assert found.num_users == 3


def test_one_user_has_no_interval_in_words():
    """One user has neither error nor interval, and the table says so; of several groups the others keep theirs."""
    one = trm.evaluate_lists("HR@1", **ONE_USER)
    assert str(one) == "HR@1  1.0000\n1 user\nno standard error and no interval for one user"
    collection = trm.RecMetricCollection("HR", k=1, accumulators=[trm.ByGroup("cold", "warm")])
    scores, groups = torch.tensor([[0.1, 0.9]]).expand(3, 2), torch.tensor([0, 1, 1])
    collection.update(scores, torch.tensor([1, 1, 0]), groups=groups)
    assert str(collection.result()).splitlines()[1:] == [
        "HR@1/cold  1.0000",
        "HR@1/warm  0.5000 ± 0.5000",
        "3 users",
        "± standard error; no interval for fewer than 10 users",
    ]
    assert "<td>cold</td><td>1.0000</td>" in collection.result().groups._repr_html_()


def test_notebooks_show_a_table():
    """HTML holds the cells and lines of the text, escaped."""
    found = trm.evaluate_lists({"<HR>": trm.HR(1)}, {"al": ["x"], "bo": ["x"]}, target=TRUTH)
    assert found._repr_html_() == (
        "<table>\n<tr><td>metric</td><td>value, error</td></tr>\n"
        "<tr><td>&lt;HR&gt;</td><td>0.5000 ± 0.5000</td></tr>\n</table>\n"
        "<p>2 users, 1 relevant item in no list (such as &#x27;y&#x27;; lists have such as &#x27;x&#x27;)</p>\n"
        "<p>± standard error; no interval for fewer than 10 users</p>"
    )


def test_table_of_few_users():
    """Fewer than 10 users have standard errors but no intervals, as the table's last line says; 10 users have both."""
    ten = [trm.Interactions.from_columns(range(n), range(n), num_users=n, num_items=20) for n in (9, 10)]
    users = torch.eye(20).where(torch.arange(20)[:, None] < 6, 0)  # six hit at k = 1
    few, enough = (trm.evaluate("HR", users[: len(t)], torch.eye(20), target=t, k=1, ties="realistic") for t in ten)
    low, high = few.confidence_intervals["HR@1"]
    assert low < few["HR@1"] == 6 / 9 < high
    assert str(few).splitlines() == [
        f"HR@1  {6 / 9:.4f} ± {math.sqrt(6 / 9 * 3 / 9 / 8):.4f}",
        "9 users",
        "± standard error; no interval for fewer than 10 users",
    ]
    low, high = enough.confidence_intervals["HR@1"]
    assert str(enough).splitlines() == [
        f"HR@1  0.6000 ± {math.sqrt(0.6 * 0.4 / 9):.4f}  [{low:.4f}, {high:.4f}]",
        "10 users",
        "± standard error, [95 % interval]; compare models with trm.compare, not by intervals",
    ]
    groups = trm.Groups(torch.tensor([0] * 8 + [1] * 2), ["many", "two"])
    lines = str(trm.evaluate("HR", users[:10], torch.eye(20), target=ten[1], k=1, groups=groups)).splitlines()
    assert ["[" in line for line in lines[:3]] == [True, False, False]
    assert lines[-1].startswith("± standard error, [95 % interval] from 10 users on; compare models")


def test_table_stays_within_bounds():
    """Intervals of metrics with only one known bound, such as Novelty, end at this bound."""
    names = ["AveragePopularity", "CategoryShare", "Novelty", "PopularityLift"]
    assert [getattr(trm, name).bounds for name in names] == [(0, math.inf)] * 3 + [(-1, math.inf)]
    novelty = trm.Novelty(1, catalogue=trm.Catalogue(3, popularity=torch.tensor([8, 1, 2]), num_users=8))
    novelty.update(torch.tensor([[0.9, 0.1, 0.5]] * 11 + [[0.1, 0.9, 0.5]]))
    assert novelty.compute() == pytest.approx(3 / 12)  # -log2(1 / 8) in one of 12 rows
    low, high = novelty.confidence_interval()
    assert low == 0 < 3 / 12 < high
    assert novelty.confidence_interval(method="student")[0] < 0
