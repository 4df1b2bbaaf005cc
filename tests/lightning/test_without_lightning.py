"""The documentation's code for Accelerate and transformers.Trainer, against values of a single update."""

import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from values import near, numbers

import torchrecmetrics as trm

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # warnings of the frameworks

HOW_TO = Path(__file__).parents[2] / "docs/how-to"
PAGE = "".join((HOW_TO / page).read_text() for page in ("hugging-face.md", "fabric.md"))


def run_block(start, names):
    """Run the page's Python block that begins with `start`; return all names."""
    block = re.search(rf"```python\n({re.escape(start)}.*?)```", PAGE, re.DOTALL)[1]
    names |= {"torch": torch, "trm": trm}
    exec(block, names)
    return names


class Model(nn.Module):
    """A model whose scores are its scaled features, with the loss that transformers asks for."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, features, labels=None):
        scores = features * self.scale
        return scores if labels is None else {"loss": scores.mean(), "logits": scores}


def data(n):
    generator = torch.Generator().manual_seed(n)
    return torch.rand(n, 50, generator=generator), torch.randint(50, (n,), generator=generator)


def by_hand(n, names, k, history=False):
    metrics = trm.RecMetricCollection(names, k=k)
    scores, target = data(n)
    metrics.update(scores, target, exclude=(target + 1) % 50 if history else None)
    return near(metrics.compute())


SIZES = (7, 8, 9, 10)  # batches of 4 leave 3, 0, 1 and 2 rows


def accelerate(rank, world_size):
    """Run the page's loop over samples of each number; return values and num_users."""
    os.environ |= {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501", "ACCELERATE_USE_CPU": "true"}
    done = []
    for n in SIZES:
        features, target = data(n)
        samples = torch.utils.data.TensorDataset(torch.arange(n), features, target)
        names = {"model": Model(), "loader": DataLoader(samples, batch_size=4)}
        names["history"] = trm.Interactions.from_padded((target[:, None] + 1) % 50, num_items=50)
        metrics = run_block("from accelerate import Accelerator", names)["metrics"]
        done.append((numbers(metrics.compute()), metrics["HR@10"].num_users))
    # Accelerate's state outlives the process group
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return done


@pytest.mark.parametrize("world_size", [1, 2])
def test_accelerate(world_size, processes):
    """Gathered ranks give the values of one process, for data sets of 7 to 10 rows in batches of 4."""
    pytest.importorskip("accelerate")
    expected = [(by_hand(n, ["HR", "NDCG"], [10], history=True), n) for n in SIZES]
    assert processes.run(accelerate, world_size) == [expected] * world_size
