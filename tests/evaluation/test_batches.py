"""Users are evaluated in batches that fit the memory, those with short lists first."""

import torch

from torchrecmetrics.evaluation.batches import batches


def test_batches_fit_the_memory():
    """Padded lists count in the memory as scores do: a user with a long list is in a batch alone."""
    sizes = torch.tensor([1] * 50 + [100_000])
    seen = []

    class Scorer:
        device, row_bytes, reuses_memory, memory = torch.device("cpu"), 4000, False, 50_000

    list(batches(Scorer(), torch.arange(51), sizes, lambda batch, _: seen.append(len(batch)), None))
    assert max(seen) == 50_000 // (4000 + 160)
    assert seen[-1] == 1
    assert sum(seen) == 51


def test_sizes_are_of_users():
    """Sizes belong to user ids, not to positions in the batch: users may come in another order or be left out."""
    sizes, seen = torch.tensor([1000] * 4 + [4, 1, 3, 2]), []

    class Scorer:
        device, row_bytes, reuses_memory, memory = torch.device("cpu"), 0, False, 9 * 160

    def use(batch, at_once):
        seen.append(batch.tolist())

    list(batches(Scorer(), torch.tensor([4, 6, 7, 5]), sizes, use, None))
    assert seen == [[5, 7, 6], [4]]


def test_scores_are_made_for_a_few_users_at_once():
    """On the CPU a small buffer of scores is reused within a batch of many users whose lists are read together."""
    used = []

    class Scorer:
        device, row_bytes, reuses_memory, memory = torch.device("cpu"), 4 * 2**20, True, 256 * 2**20

    users, sizes = torch.arange(10_000), torch.ones(10_000, dtype=torch.int64)
    for batch_size in (None, 5):
        list(batches(Scorer(), users, sizes, lambda batch, rows: used.append((len(batch), rows)), batch_size))
    assert used[:3] == [(4096, 16), (4096, 16), (1808, 16)]
    assert used[3:] == [(4096, 5), (4096, 5), (1808, 5)]
    used.clear()
    Scorer.row_bytes = 2**20
    for number in (256, 257):  # up to 256 MB in all, the buffer is so small that the C library reuses memory
        list(batches(Scorer(), users[:number], sizes, lambda batch, rows: used.append(rows), None))
    assert used == [31, 64]
