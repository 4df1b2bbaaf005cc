"""A programme that runs every kernel once, on small odd shapes, for compute-sanitizer."""

import torch

from torchrecmetrics.kernels import Question
from torchrecmetrics.kernels import triton as kernels


def main():
    device = torch.device("cpu" if kernels._INTERPRETED else "cuda")
    rows, items = (5, 130) if kernels._INTERPRETED else (131, 201)
    for width in (1, 17, 40, 1100):
        scores = torch.randn(3, 2500, device=device)[:, 1:]
        masks = [torch.rand(shape, device=device) < 0.1 for shape in ((2499,), (3, 2499))]
        thresholds = scores[:, torch.arange(width) % 2499]
        found = kernels.count(scores, Question(thresholds, None, (0.0,), masks, scores[:, :2].sort(1).values))
        found = kernels.count(scores.T.contiguous().T, Question(thresholds))
        print("scores", width, int(found.equal.sum()))
    for d in (24, 300):
        for dtype in (torch.float32, torch.float16):
            for width in (1, 9):
                users, others = (torch.randn(n, d, device=device) for n in (rows, items))
                products = kernels.Products(users.to(dtype), others.to(dtype), torch.zeros(items, device=device))
                own = kernels.pair_scores(products, torch.randint(items, (rows, width), device=device))
                found = kernels.count_products(products, Question(own, min_scores=(0.0,)))
                early = kernels.count_products_until(products, Question(own, 10), 64)
                print("products", d, dtype, width, int(found.equal.sum()), int((early.better < 10).sum()))
    print("done")


if __name__ == "__main__":
    main()
