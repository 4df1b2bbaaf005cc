"""`evaluate_lists(label=)` and the command's `--label` evaluate one table that holds lists and labels."""

import pytest
import torch

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


def test_by_hand(tmp_path):
    """Session s has its click, item c, at rank 2 of 3, session t at rank 2 of 2, and session u has no click."""
    expected = {"MRR": 0.5, "AUROC": (0.5 + 0) / 2}
    FRAME.to_parquet(tmp_path / "sessions.parquet")
    FRAME.to_csv(tmp_path / "sessions.csv", index=False)
    for lists in (FRAME, tmp_path / "sessions.parquet", tmp_path / "sessions.csv"):
        found = trm.evaluate_lists(["MRR", "AUROC"], lists, score="score", keep_rows=True, **OPTIONS)
        assert {key: value.item() for key, value in found.items()} == expected
        assert (found.num_users, found.num_skipped) == (2, 1)
        assert sorted(found.rows.values["MRR"].nan_to_num(-1).tolist()) == [-1, 0.5, 0.5]
    by_rank = FRAME.assign(place=FRAME.groupby("session").score.rank(ascending=False))
    assert trm.evaluate_lists("MRR", by_rank, rank="place", **OPTIONS)["MRR"] == 0.5


def test_labels_are_gains():
    """NDCG reads labels as gains, such as ratings."""
    rated = FRAME.assign(clicked=[3, 0, 1, 2, 0, 0])
    found = trm.evaluate_lists("NDCG", rated, k=2, score="score", **OPTIONS)
    metric = trm.NDCG(2)
    scores = torch.tensor([[0.1, 0.8, 0.5], [0.9, 0.2, -torch.inf]])
    metric.update(scores, torch.tensor([[3.0, 1, 0], [0, 2, 0]]))
    assert found["NDCG@2"].item() == pytest.approx(metric.compute().item())


def test_repeated_items(tmp_path, capsys):
    """With `first`, an item that a session repeats is one candidate, with its highest score and its highest label."""
    twice = pd.concat([FRAME, FRAME.assign(score=[0.9, 0.1, 0.1, 0.1, 0.1, 0.1], clicked=0)])
    expected = {"MRR": (1 / 3 + 1 / 2) / 2, "AUROC": 0.0}
    found = trm.evaluate_lists(["MRR", "AUROC"], twice, score="score", duplicates="first", **OPTIONS)
    assert {key: value.item() for key, value in found.items()} == expected
    assert found.num_repeated == 6
    path = str(tmp_path / "sessions.csv")
    twice.to_csv(path, index=False)
    words = ["evaluate", path, "--user", "session", "--score", "score", "-m", "AUROC", "--label", "clicked"]
    assert main(words) == 2
    assert "--first lets its best place stand alone" in capsys.readouterr().err
    assert main([*words, "--first"]) == 0
    assert "AUROC  0.0000" in capsys.readouterr().out


def test_sessions_without_items(tmp_path):
    """In sessions without a column of items each row is a candidate of its own."""
    bare = FRAME.drop(columns="item")
    bare.to_parquet(tmp_path / "sessions.parquet")
    bare.to_csv(tmp_path / "sessions.csv", index=False)
    for lists in (bare, tmp_path / "sessions.parquet", tmp_path / "sessions.csv"):
        for item in ({}, {"item": None}):
            found = trm.evaluate_lists(["MRR", "AUROC"], lists, score="score", **item, **OPTIONS)
            assert {key: value.item() for key, value in found.items()} == {"MRR": 0.5, "AUROC": 0.25}


def test_the_command(tmp_path, capsys):
    """`--label` takes the place of TRUTH, the file of ground truth, and of its options."""
    path = str(tmp_path / "sessions.csv")
    FRAME.to_csv(path, index=False)
    words = ["evaluate", path, "--user", "session", "--score", "score", "-m", "MRR"]
    assert main([*words, "--label", "clicked"]) == 0
    assert "MRR  0.5000" in capsys.readouterr().out
    for more, message in (
        ([], "give TRUTH, a file of ground truth, or --label COLUMN"),
        (["--label", "clicked", "--history", path], "--history and --train are for TRUTH"),
    ):
        assert main([*words, *more]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (FRAME, {}, "give score= or rank=, one of the two"),
        (FRAME, {"score": "score", "rank": "score"}, "give score= or rank=, one of the two"),
        (FRAME, {"score": "clicked"}, "column 'clicked' cannot be the label and the order of the rows at once"),
        (FRAME, {"score": "scores"}, "no column 'scores'; did you mean 'score'"),
        (FRAME.assign(item="a"), {"score": "score"}, "item 'a' twice for session 's'.*row 0.*duplicates='first'"),
        (FRAME, {"score": "score", "duplicates": "keep_place"}, "duplicates='keep_place' is for target="),
        (FRAME.to_dict("list") | {"score": [1] * 7}, {"score": "score", "duplicates": "first"}, "must be equally long"),
        (FRAME.to_dict("list") | {"item": ["a"]}, {"score": "score"}, "columns of lists must be equally long"),
        (FRAME.assign(Place=1), {"score": "Place"}, "score='Place'.*upside down.*pass rank='Place'"),
        (FRAME.drop(columns="item"), {"score": "score", "item": "sku"}, "no column 'sku'"),
        (FRAME.assign(score=None), {"score": "score"}, "column 'score' of lists"),
        (FRAME, {"score": "score", "target": FRAME}, "target was given beside label="),
    ],
)
def test_bad_input(frame, options, message):
    """The error names the column or the argument."""
    with pytest.raises(ValueError, match=message):
        trm.evaluate_lists("MRR", frame, **OPTIONS, **options)
