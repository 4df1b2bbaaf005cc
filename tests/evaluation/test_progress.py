"""Progress is shown by tqdm, or told to a function."""

import sys

import pytest
from worlds import world

import torchrecmetrics as trm


def test_progress(capsys):
    """With `progress=True` tqdm shows users and the running value of the first metric."""
    pytest.importorskip("tqdm")
    users, items, train, test = world()
    trm.evaluate(["NDCG"], users, items, target=test, exclude=train, k=10, batch_size=8, progress=True)
    shown = capsys.readouterr().err
    assert "user/s" in shown
    assert "NDCG@10=0." in shown


def test_progress_told_to_a_function():
    """A progress function gets the number of users done so far and the total; the last call is for all users."""
    users, items, train, test = world()
    heard = []
    trm.evaluate(
        "HR@5", users, items, target=test, exclude=train, batch_size=8, progress=lambda *told: heard.append(told)
    )
    total = len(test.users.unique())
    assert heard[-1] == (total, total)
    assert heard == sorted(heard)


def test_progress_without_tqdm(monkeypatch):
    """Without tqdm `progress=True` raises an error that names the extra."""
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    users, items, train, test = world()
    with pytest.raises(ImportError, match=r"progress=True needs tqdm: pip install 'torchrecmetrics\[progress\]'"):
        trm.evaluate("HR@5", users, items, target=test, exclude=train, progress=True)
