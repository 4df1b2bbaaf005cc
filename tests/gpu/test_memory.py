"""`evaluate` on a GPU that runs out of memory: batches are halved and repeated, and the results are the same."""

import pytest
import torch
from values import near, numbers

import torchrecmetrics as trm
from torchrecmetrics import kernels as counting
from torchrecmetrics.evaluation import scorers as scoring

KERNELS = pytest.mark.parametrize("kernels", ["eager", "triton"])


def world(users, items, d, listed, device):
    """Return whole-number embeddings, whose scores are exact in every batch, with ground truth and history."""
    vectors = [torch.randint(-3, 4, (n, d), device=device).float() for n in (users, items)]
    first = torch.randint(items, (users, 1), device=device)
    ids = (first + torch.arange(listed + 5, device=device) * 31) % items
    target, history = (trm.Interactions.from_padded(part, items) for part in (ids[:, :5], ids[:, 5:]))
    return vectors, {"target": target, "exclude": history, "k": [5, 100]}


def evaluate(vectors, kernels, **options):
    # overlap="miss" avoids the search for overlaps, which is for all users at once and is not repeated in halves
    return trm.evaluate(["HR", "NDCG", "MAP", "AUROC"], *vectors, kernels=kernels, overlap="miss", **options)


@KERNELS
def test_a_batch_that_fails_is_repeated_in_halves(kernels, place, monkeypatch):
    vectors, options = world(*place.pick((2000, 5000, 32, 50), (40, 300, 8, 6)), place.device)
    expected = evaluate(vectors, kernels, **options)
    module = counting.eager if kernels == "eager" else counting
    count, attempts = module.count, []

    def failing(scores, question, *args):
        attempts.append(len(question.thresholds))
        if len(attempts) <= 3:
            raise torch.cuda.OutOfMemoryError("pretended")
        return count(scores, question, *args)

    monkeypatch.setattr(module, "count", failing)
    result = evaluate(vectors, kernels, **options)

    assert max(attempts[3:]) <= attempts[0] // 4
    assert numbers(result) == near(expected)
    assert (result.num_users, result.kernels) == (expected.num_users, kernels)


@KERNELS
def test_a_full_card_gives_the_same_results(kernels, cuda, monkeypatch):
    """Only 256 MiB more may be taken; the first batch would take several times that."""
    shape = {"eager": (4096, 100_000, 32, 50), "triton": (100_000, 20_000, 32, 200)}[kernels]
    vectors, options = world(*shape, cuda)
    expected = evaluate(vectors, kernels, **options)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    cap, failures = torch.cuda.memory_reserved() + 2**28, torch.cuda.memory_stats()["num_ooms"]
    torch.cuda.set_per_process_memory_fraction(cap / torch.cuda.get_device_properties(cuda).total_memory)
    try:
        monkeypatch.setattr(scoring, "memory_on", lambda device: 2**40)
        result = evaluate(vectors, kernels, **options)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)

    assert torch.cuda.memory_stats()["num_ooms"] > failures
    assert torch.cuda.max_memory_allocated() <= cap
    assert numbers(result) == near(expected)
