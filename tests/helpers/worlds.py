"""Embeddings, training and test interactions for tests of whole evaluations."""

import torch

from torchrecmetrics import Interactions

USERS, ITEMS = 40, 60


def world(integer=True, dtype=torch.float32):
    """Return embeddings, train and test without overlap, with users who lack either.

    Embeddings are small integers by default, so that scores are exact and tied.
    """
    generator = torch.Generator().manual_seed(0)
    users, items = torch.randn(USERS, 8, generator=generator), torch.randn(ITEMS, 8, generator=generator)
    if integer:
        users, items = users.mul(2).round(), items.mul(2).round()
    cells = torch.rand(USERS, ITEMS, generator=generator)
    density = torch.rand(USERS, 1, generator=generator) * 0.4
    density[::7] = 0
    train = Interactions.from_dense(cells < density)
    test = Interactions.from_dense((cells > 0.95) & (torch.arange(USERS) % 5 > 0)[:, None])
    return users.to(dtype), items.to(dtype), train, test
