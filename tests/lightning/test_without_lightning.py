"""The documentation's code for Accelerate, against values of a single update."""

import os
import re
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from values import near, numbers

import torchrecmetrics as trm

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # warnings of the frameworks

PAGE = Path(__file__).parents[2] / "docs/how-to/fabric.md"
SIZES = (7, 8, 9, 10)  # batches of 4 leave 3, 0, 1 and 2 rows


class Model(torch.nn.Module):
    """A model whose scores are its scaled features."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, features):
        return features * self.scale


def data(n):
    """Return scores, targets and a history that excludes one item of each row."""
    generator = torch.Generator().manual_seed(n)
    scores, target = torch.rand(n, 50, generator=generator), torch.randint(50, (n,), generator=generator)
    return scores, target, (target[:, None] + 1) % 50


def accelerate(rank, world_size):
    """Run the page's loop over samples of each number; return values and num_users."""
    os.environ |= {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501", "ACCELERATE_USE_CPU": "true"}
    block = re.search(r"```python\n(from accelerate import Accelerator.*?)```", PAGE.read_text(), re.DOTALL)[1]
    done = []
    for n in SIZES:
        features, target, history = data(n)
        samples = torch.utils.data.TensorDataset(torch.arange(n), features, target)
        names = {"torch": torch, "trm": trm, "model": Model(), "loader": DataLoader(samples, batch_size=4)}
        names["history"] = trm.Interactions.from_padded(history, num_items=50)
        exec(block, names)
        done.append((numbers(names["metrics"].compute()), names["metrics"]["HR@10"].num_users))
    # Accelerate's state outlives the process group
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return done


@pytest.mark.parametrize("world_size", [1, 2])
def test_ranks_that_accelerate_gathers_give_the_values_of_one_process(world_size, processes):
    pytest.importorskip("accelerate")
    expected = []
    for n in SIZES:
        scores, target, history = data(n)
        metrics = trm.RecMetricCollection(["HR", "NDCG"], k=10)
        metrics.update(scores, target, exclude=history)
        expected.append((near(metrics.compute()), n))

    assert processes.run(accelerate, world_size) == [expected] * world_size
