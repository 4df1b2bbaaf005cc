"""Every door has the same value under inference mode, `no_grad` and autocast as outside, and asks for scores once."""

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

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


def lists_of(values):
    return {key: torch.as_tensor(value).tolist() for key, value in values.items()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("door", DOORS)
def test_a_door_has_the_same_values_in_a_mode_as_outside(door, mode):
    outside = door()
    with MODES[mode]():
        inside = door()

    assert lists_of(inside) == lists_of(outside)


@pytest.mark.parametrize("mode", MODES)
def test_products_of_an_evaluation_are_made_once_where_a_warning_speaks_of_ties(mode):
    """The warning reads the ranking."""
    counter = FlopCounterMode(display=False)
    with MODES[mode](), counter, pytest.warns(UserWarning, match="shares its score"):
        trm.evaluate(["HR", "NDCG"], torch.zeros_like(U), V, target=TRUTH, k=9)

    assert counter.get_total_flops() == USERS * ITEMS * WIDTH * 2  # a multiplication and an addition


def test_a_function_is_called_once_for_each_user_where_a_warning_speaks_of_ties():
    users = []

    def equal_scores(ids):
        users.extend(ids.tolist())
        return torch.zeros(len(ids), ITEMS)

    with pytest.warns(UserWarning, match="shares its score"):
        trm.evaluate("HR", equal_scores, target=TRUTH, k=9)

    assert sorted(users) == TRUTH.users.unique().tolist()
