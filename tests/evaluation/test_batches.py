"""Users are evaluated in batches that fit the memory, those with short lists first."""

from types import SimpleNamespace

import torch

from torchrecmetrics.evaluation.batches import batches


def made(users, sizes, batch_size=None, **scorer):
    """Return pairs of a batch, as a list, and the number of users to score at once."""
    scorer, seen = SimpleNamespace(device=torch.device("cpu"), **scorer), []
    for batch in batches(scorer, users, sizes, lambda batch, rows: seen.append((batch.tolist(), rows)), batch_size):
        assert batch.tolist() == seen[-1][0]
    return seen


def test_batches_fit_the_memory():
    """Padded lists count in the memory as scores do: a user with a long list is in a batch alone."""
    sizes = torch.tensor([1] * 50 + [100_000])
    seen = made(torch.arange(51), sizes, row_bytes=4000, reuses_memory=False, memory=50_000)
    assert max(len(batch) for batch, _ in seen) == 50_000 // (4000 + 160)
    assert seen[-1] == ([50], 1)
    assert [user for batch, _ in seen for user in batch] == [*range(51)]


def test_sizes_are_of_users():
    """Sizes belong to user ids, not to positions in the batch: users may come in another order or be left out."""
    sizes, users = torch.tensor([1000] * 4 + [4, 1, 3, 2]), torch.tensor([4, 6, 7, 5])
    seen = made(users, sizes, row_bytes=0, reuses_memory=False, memory=9 * 160)
    assert [batch for batch, _ in seen] == [[5, 7, 6], [4]]


def test_scores_are_made_for_a_few_users_at_once():
    """On the CPU a small buffer of scores is reused within a batch of many users whose lists are read together."""
    users, sizes = torch.arange(10_000), torch.ones(10_000, dtype=torch.int64)
    memory = {"reuses_memory": True, "memory": 256 * 2**20}
    for batch_size, at_once in ((None, 16), (5, 5)):
        seen = made(users, sizes, batch_size, row_bytes=4 * 2**20, **memory)
        assert [(len(batch), rows) for batch, rows in seen] == [(4096, at_once), (4096, at_once), (1808, at_once)]
    for number, at_once in ((256, 31), (257, 64)):  # up to 256 MB in all, the C library reuses a buffer so small
        assert [rows for _, rows in made(users[:number], sizes, row_bytes=2**20, **memory)] == [at_once]
