"""`evaluate_lists(label=)` and the command's `--label` evaluate one table that holds lists and labels."""

import pytest
import torch
from said import evaluate_lists
from values import numbers

import torchrecmetrics as trm
from torchrecmetrics.cli import main

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
FRAME = pd.DataFrame(
    {
        "session": ["s", "t", "s", "t", "s", "u"],
        "item": ["a", "a", "b", "c", "c", "a"],
        "score": [0.1, 0.9, 0.8, 0.2, 0.5, 0.3],
        "clicked": [0, 0, 0, 1, 1, 0],
    }
)
OPTIONS = {"user": "session", "label": "clicked"}


def forms(frame, folder):
    """Return a frame, and paths of files that hold it."""
    frame.to_parquet(folder / "sessions.parquet")
    frame.to_csv(folder / "sessions.csv", index=False)
    return frame, folder / "sessions.parquet", folder / "sessions.csv"


def test_by_hand(tmp_path):
    """Session s has its click, item c, at rank 2 of 3, session t at rank 2 of 2, and session u has no click."""
    for lists in forms(FRAME, tmp_path):
        found = evaluate_lists(["MRR", "AUROC"], lists, score="score", keep_rows=True, **OPTIONS)
        assert numbers(found) == {"MRR": 0.5, "AUROC": (0.5 + 0) / 2}
        assert (found.num_users, found.num_skipped) == (2, 1)
        assert sorted(found.rows.values["MRR"].nan_to_num(-1).tolist()) == [-1, 0.5, 0.5]
    by_rank = FRAME.assign(place=FRAME.groupby("session").score.rank(ascending=False))
    assert evaluate_lists("MRR", by_rank, rank="place", **OPTIONS)["MRR"] == 0.5


def test_sessions_without_items(tmp_path):
    """In sessions without a column of items each row is a candidate of its own."""
    for lists in forms(FRAME.drop(columns="item"), tmp_path):
        for item in ({}, {"item": None}):
            found = evaluate_lists(["MRR", "AUROC"], lists, score="score", **item, **OPTIONS)
            assert numbers(found) == {"MRR": 0.5, "AUROC": 0.25}


def test_labels_are_gains():
    """NDCG reads labels as gains, such as ratings."""
    rated = FRAME.assign(clicked=[3, 0, 1, 2, 0, 0])
    found = evaluate_lists("NDCG", rated, k=2, score="score", **OPTIONS)
    metric = trm.NDCG(2)
    scores = torch.tensor([[0.1, 0.8, 0.5], [0.9, 0.2, -torch.inf]])
    metric.update(scores, torch.tensor([[3.0, 1, 0], [0, 2, 0]]))
    assert found["NDCG@2"].item() == pytest.approx(metric.compute().item())


def test_the_command_and_repeated_items(tmp_path, capsys):
    """`--label` takes the place of TRUTH, the file of ground truth, and of its options.
    With `first`, an item that a session repeats is one candidate, with its highest score and its highest label.
    """
    twice = pd.concat([FRAME, FRAME.assign(score=[0.9, 0.1, 0.1, 0.1, 0.1, 0.1], clicked=0)])
    found = evaluate_lists(["MRR", "AUROC"], twice, score="score", duplicates="first", **OPTIONS)
    assert numbers(found) == {"MRR": (1 / 3 + 1 / 2) / 2, "AUROC": 0}
    assert found.num_repeated == 6
    once, path = str(forms(FRAME, tmp_path)[-1]), str(tmp_path / "twice.csv")
    twice.to_csv(path, index=False)
    label = ["--label", "clicked"]
    for file, more, code, message in (
        (once, label, 0, "MRR  0.5000"),
        (path, [*label, "--first"], 0, "MRR  0.4167"),
        (path, label, 2, "--first keeps its best rank"),
        (once, [], 2, "pass either TRUTH, a file of ground truth, or --label COLUMN"),
        (once, [*label, "--history", once], 2, "--history and --train cannot be combined with --label"),
    ):
        assert main(["evaluate", file, "--user", "session", "--score", "score", "-m", "MRR", *more]) == code
        assert message in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (FRAME, {"score": None}, "pass score= or rank= to trm.Table"),
        (FRAME, {"rank": "score"}, "are both to order frame: give one of the two"),
        (FRAME, {"score": "clicked"}, "column 'clicked' cannot be (order|score|label) and (score|label) at once"),
        (FRAME, {"score": "scores"}, "no column 'scores'; did you mean 'score'"),
        (FRAME.assign(item="a"), {}, "item 'a' twice for session 's'.*row 0.*duplicates='first'"),
        (FRAME, {"duplicates": "keep_place"}, "duplicates='keep_place' needs target="),
        (FRAME.to_dict("list") | {"score": [1] * 7}, {"duplicates": "first"}, "must be equally long"),
        (FRAME.to_dict("list") | {"item": ["a"]}, {}, "columns of lists must be equally long"),
        (FRAME.drop(columns="item"), {"item": "sku"}, "no column 'sku'"),
        (FRAME.assign(score=None), {}, "column 'score' of lists"),
        (FRAME, {"target": FRAME}, "target cannot be combined with label="),
    ],
)
def test_bad_input(frame, options, message):
    """The error names the column or the argument."""
    with pytest.raises(ValueError, match=message):
        evaluate_lists("MRR", frame, **{"score": "score", **OPTIONS, **options})
