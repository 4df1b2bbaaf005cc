"""Progress is shown by tqdm, or told to a function."""

import sys

import pytest
from worlds import world

import torchrecmetrics as trm


def evaluate(progress):
    users, items, train, test = world()
    options = {"target": test, "exclude": train, "batch_size": 8, "progress": progress}
    trm.evaluate("NDCG@10", lambda ids: users[ids] @ items.T, **options)
    return len(test.users.unique())


def test_progress(capsys):
    """With `progress=True` tqdm shows users and the running value of the first metric; a function is told them."""
    pytest.importorskip("tqdm")
    evaluate(True)
    shown = capsys.readouterr().err
    assert "user/s" in shown
    assert "NDCG@10=0." in shown
    told = []
    total = evaluate(lambda *numbers: told.append(numbers))
    assert told == [(done, total) for done in (*range(8, total, 8), total)]


def test_progress_without_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match=r"progress=True needs tqdm: pip install 'torchrecmetrics\[progress\]'"):
        evaluate(True)
