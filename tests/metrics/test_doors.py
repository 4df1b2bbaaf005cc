"""Every door has the same value under inference mode, `no_grad` and autocast as outside, and asks for scores once."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

import torchrecmetrics as trm

USERS, ITEMS, WIDTH = 40, 50, 7
DRAWN = torch.Generator().manual_seed(0)
U, V = torch.rand(USERS, WIDTH, generator=DRAWN), torch.rand(ITEMS, WIDTH, generator=DRAWN)
SCORES, TARGET = U @ V.T, torch.randint(ITEMS, (USERS,), generator=DRAWN)
TRUTH = trm.Interactions.from_dense(torch.rand(USERS, ITEMS, generator=DRAWN) < 0.2)
CATALOGUE = trm.Catalogue(ITEMS, popularity=torch.arange(ITEMS), num_users=60)
NAMES = ["HR", "NDCG", "Coverage", "Novelty"]
MODES = {
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


def of_collection():
    accumulators = [trm.ByGroup("a", "b"), trm.Window(updates=2), trm.KeptRows()]
    collection = trm.RecMetricCollection(NAMES, k=9, catalogue=CATALOGUE, accumulators=accumulators)
    batch = {"scores": SCORES.clone(), "target": TARGET, "groups": torch.arange(USERS) % 2}
    collection.update(**batch)
    collection(**batch)
    return collection.compute()


def of_embeddings():
    return trm.evaluate(NAMES, U.clone(), V.clone(), target=TRUTH, k=9, catalogue=CATALOGUE, keep_rows=True)


def of_lists():
    lists = SCORES.topk(9).indices
    return trm.evaluate_lists(NAMES, dict(enumerate(lists.tolist())), target=TRUTH, k=9, catalogue=CATALOGUE)


def of_top_items():
    return {"ids": trm.recommend(U.clone(), V.clone(), k=9).ids.flatten()}


def of_pyg():
    pytest.importorskip("torch_geometric")
    from torchrecmetrics import pyg

    model = torch.nn.Module()
    model.get_embedding = lambda edges: torch.cat([U, V])
    edges = trm.Interactions.from_dense(SCORES > 2).to_edge_index(USERS, undirected=True)
    return dict(pyg.evaluate(NAMES, model, edges, target=TRUTH, k=9, catalogue=CATALOGUE, overlap="miss"))


def of_callbacks():
    """Validation comes first, in the Trainer's own inference mode, too."""
    pl = pytest.importorskip("pytorch_lightning")
    from trainers import trainer

    from torchrecmetrics.lightning import CatalogueEvaluationCallback, RecMetricsCallback

    class Module(pl.LightningModule):
        def validation_step(self, batch, batch_idx):
            return {"scores": SCORES[batch], "target": TARGET[batch]}

    options = {"k": 9, "catalogue": CATALOGUE}
    steps = RecMetricsCallback(NAMES, prefix="steps/", **options)
    whole = CatalogueEvaluationCallback(NAMES, embed=lambda module: (U, V), target=TRUTH, **options)
    (values,) = trainer(pl, steps, whole).validate(Module(), DataLoader(torch.arange(USERS), USERS), verbose=False)
    return values


DOORS = [of_collection, of_embeddings, of_lists, of_top_items]
DOORS += [of_pyg, pytest.param(of_callbacks, marks=pytest.mark.filterwarnings("ignore:.*does not have many workers"))]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("door", DOORS)
def test_a_door_has_the_same_values_in_a_mode_as_outside(door, mode):
    outside = door()
    with MODES[mode]():
        inside = door()

    assert lists_of(inside) == lists_of(outside)


def lists_of(values):
    return {key: torch.as_tensor(value).tolist() for key, value in values.items()}


class Products(TorchDispatchMode):
    """Counts the scores that products of embeddings make."""

    num_scores = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Call a function of torch."""
        result = function(*args, **(kwargs or {}))
        if (
            function.name().startswith(("aten::mm", "aten::addmm"))
            and WIDTH in args[-1 - ("addmm" in function.name())].shape
        ):
            self.num_scores += result.numel()
        return result


@pytest.mark.parametrize("mode", MODES)
def test_products_of_an_evaluation_are_made_once(mode):
    """40 users and 50 items have 2,000 scores, also where most rows are tied and a warning says so."""
    with MODES[mode](), Products() as products, pytest.warns(UserWarning, match="shares its score"):
        trm.evaluate(["HR", "NDCG"], torch.zeros_like(U), V, target=TRUTH, k=9)

    assert products.num_scores == USERS * ITEMS


def test_a_function_is_called_once_for_each_user():
    """The question about ties reads the ranking, and asks for no further scores."""
    users = []
    with pytest.warns(UserWarning, match="shares its score"):
        trm.evaluate("HR", lambda ids: users.extend(ids.tolist()) or SCORES[ids] * 0, target=TRUTH, k=9)

    assert sorted(users) == TRUTH.users.unique().tolist()
