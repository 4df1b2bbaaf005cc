"""`evaluate` on a GPU that runs out of memory: batches are halved and repeated, and the results are the same."""

import pytest
import torch
from values import numbers

import torchrecmetrics as trm
from torchrecmetrics import kernels as counting
from torchrecmetrics.evaluation import scorers as scoring

KERNELS = ["eager", "triton"]


def world(users, items, d, listed, device):
    """Return whole-number embeddings, whose scores are exact in every batch, with ground truth and history."""
    vectors = [torch.randint(-3, 4, (n, d), device=device).float() for n in (users, items)]
    first = torch.randint(items, (users, 1), device=device)
    ids = (first + torch.arange(listed + 5, device=device) * 31) % items
    target, history = (trm.Interactions.from_padded(part, items) for part in (ids[:, :5], ids[:, 5:]))
    return vectors, {"target": target, "exclude": history, "k": [5, 100]}


def evaluate(vectors, kernels, **options):
    # overlap="miss" avoids the search for overlaps, which is for all users at once and is not repeated in halves
    found = trm.evaluate(["HR", "NDCG", "MAP", "AUROC"], *vectors, kernels=kernels, overlap="miss", **options)
    assert found.kernels == kernels
    return numbers(found), found.num_users


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_batch_that_fails_is_repeated_in_halves(kernels, place, monkeypatch):
    """A batch is repeated in halves if memory runs out, which it does during the first three attempts."""
    vectors, options = world(*place.pick((2000, 5000, 32, 50), (40, 300, 8, 6)), place.device)
    wanted = evaluate(vectors, kernels, **options)
    module = counting.eager if kernels == "eager" else counting
    count, attempts = module.count, []

    def failing(scores, question, *args):
        attempts.append(len(question.thresholds))
        if len(attempts) <= 3:
            raise torch.cuda.OutOfMemoryError("pretended")
        return count(scores, question, *args)

    monkeypatch.setattr(module, "count", failing)
    found = evaluate(vectors, kernels, **options)
    assert attempts[:3] == sorted(attempts[:3], reverse=True)
    assert max(attempts[3:]) <= attempts[0] // 4
    assert found[0] == pytest.approx(wanted[0], abs=1e-12)
    assert found[1] == wanted[1]


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_card_that_is_full(kernels, cuda, monkeypatch):
    """Results are the same if only 256 MiB more may be taken; the first batch would take several times that."""
    shape = {"eager": (4096, 100_000, 32, 50), "triton": (100_000, 20_000, 32, 200)}[kernels]
    vectors, options = world(*shape, cuda)
    wanted = evaluate(vectors, kernels, **options)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(cuda).total_memory
    torch.cuda.reset_peak_memory_stats()
    cap = torch.cuda.memory_reserved() + 2**28
    torch.cuda.set_per_process_memory_fraction(cap / whole)
    retried = torch.cuda.memory_stats()["num_ooms"]
    try:
        monkeypatch.setattr(scoring, "memory_on", lambda device: 2**40)
        found = evaluate(vectors, kernels, **options)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.cuda.memory_stats()["num_ooms"] > retried
    assert torch.cuda.max_memory_allocated() <= cap
    assert found[0] == pytest.approx(wanted[0], abs=1e-12)
    assert found[1] == wanted[1]
