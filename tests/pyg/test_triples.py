"""`pyg.evaluate_triples` against loops over triples and entities in plain Python."""

import pytest
import torch
from values import numbers

import torchrecmetrics as trm

kge = pytest.importorskip("torch_geometric.nn.kge")
from torchrecmetrics import pyg  # noqa: E402

ENTITIES, RELATIONS = 13, 3


def graph(seed, num_known=60, num_test=9):
    """Random known triples, some twice, and test triples of which some are known."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([[ENTITIES], [RELATIONS], [ENTITIES]])
    known = (torch.rand(3, num_known, generator=generator) * sizes).long()
    test = torch.cat([known[:, :5], (torch.rand(3, num_test - 5, generator=generator) * sizes).long()], 1)
    return test, torch.cat([known, known[:, :7]], 1)


def make(name):
    """A model of few distinct scores, so that some are equal."""
    torch.manual_seed(3)
    model = getattr(kge, name)(num_nodes=ENTITIES, num_relations=RELATIONS, hidden_channels=4)
    with torch.no_grad():
        model.node_emb.weight.copy_(model.node_emb.weight[torch.arange(ENTITIES) % 6])
    return model


def plain_ranks(model, test, known, side):
    """The realistic rank of each triple, one entity at a time."""
    known = set() if known is None else set(map(tuple, known.T.tolist()))
    ranks = []
    for head, relation, tail in test.T.tolist():
        own, better, equal = None, 0, 0
        scores = {}
        for entity in range(ENTITIES):
            triple = (head, relation, entity) if side == "tail" else (entity, relation, tail)
            scores[triple] = model(*(torch.tensor([part]) for part in triple)).item()
        own = scores.pop((head, relation, tail))
        for triple, score in scores.items():
            if triple not in known:
                better, equal = better + (score > own), equal + (score == own)
        ranks.append(better + 1 + equal / 2)
    return ranks


@pytest.mark.parametrize("name", ["TransE", "DistMult", "ComplEx", "RotatE"])
@pytest.mark.parametrize("filtered", [True, False])
def test_equals_plain_python(name, filtered):
    """PyG's models as they are, filtered and raw, for both sides, whatever the batches."""
    model = make(name).train()
    test, known = graph(1)
    known = known if filtered else None
    with torch.no_grad():
        ranks = {side: plain_ranks(model, test, known, side) for side in ("head", "tail")}
    expected = {}
    for key, values in {"": ranks["head"] + ranks["tail"], "/head": ranks["head"], "/tail": ranks["tail"]}.items():
        expected[f"MRR{key}"] = sum(1 / rank for rank in values) / len(values)
        expected[f"MeanRank{key}"] = sum(values) / len(values)
        expected[f"HR@3{key}"] = sum(rank <= 3 for rank in values) / len(values)
    for options in ({}, {"batch_size": 1}, {"memory_budget": 700}):
        found = pyg.evaluate_triples(["MRR", "MeanRank", "HR@3"], model, *test, known=known, **options)
        assert numbers(found) == pytest.approx(expected)
    assert model.training
    assert found.num_users == 18


def test_functions_of_ones_own():
    """Functions by side give the numbers of the model; one side alone needs one of them."""
    model, (test, known) = make("DistMult"), graph(2)
    nodes, relations = model.node_emb.weight.detach(), model.rel_emb.weight.detach()
    functions = {
        "tail": lambda head, relation: (nodes[head] * relations[relation]) @ nodes.T,
        "head": lambda relation, tail: (nodes[tail] * relations[relation]) @ nodes.T,
    }
    names = ["MRR", "HR@3"]
    expected = pyg.evaluate_triples(names, model, *test, known=tuple(known))
    assert numbers(pyg.evaluate_triples(names, functions, *test, known=known)) == pytest.approx(numbers(expected))
    tails = pyg.evaluate_triples(names, {"tail": functions["tail"]}, *test, known=known, sides=["tail"], groups=None)
    assert numbers(tails) == pytest.approx({key: expected[f"{key}/tail"].item() for key in names})


def test_values_of_relations():
    """A group for each relation; its rows are those of both sides."""
    model, (test, known) = make("TransE"), graph(4)
    found = pyg.evaluate_triples("MRR", model, *test, known=known, groups="relation")
    for number in range(RELATIONS):
        part = test[:, test[1] == number]
        if part.shape[1]:
            alone = pyg.evaluate_triples("MRR", model, *part, known=known, groups=None)
            assert found[f"MRR/relation {number}"].item() == pytest.approx(alone["MRR"].item())


def test_ties_and_progress():
    """Options of metrics pass through; progress tells of rows done."""
    model, (test, _) = make("TransE"), graph(5)
    seen = []
    best, worst = (
        pyg.evaluate_triples("MeanRank", model, *test, ties=ties, progress=lambda *done: seen.append(done))["MeanRank"]
        for ties in ("optimistic", "pessimistic")
    )
    assert best < worst
    assert seen[-1] == (18, 18)


def call(**changed):
    test, known = graph(6)
    head, relation, tail = test
    given = {"model": make("TransE"), "head": head, "relation": relation, "tail": tail, "known": known} | changed
    return pyg.evaluate_triples("MRR", **given)


NONE = torch.zeros(0, dtype=torch.int64)
BAD = [
    ({"head": NONE, "relation": NONE, "tail": NONE}, ValueError, "there is no test triple"),
    ({"head": NONE}, ValueError, r"three tensors of one length \[n\], got \[0\], \[9\]"),
    ({"head": torch.ones(9)}, TypeError, "head of the test triples must hold int64"),
    ({"tail": torch.full((9,), -1)}, ValueError, "tail of the test triples must be ids from 0, got -1"),
    ({"tail": torch.full((9,), 13)}, ValueError, "test triples hold entity 13; the model has 13"),
    ({"known": torch.full((3, 2), 20)}, ValueError, "known triples hold entity 20; the model has 13"),
    ({"known": torch.zeros(2, 3, dtype=torch.int64)}, ValueError, r"known triples must be \(head, relation, tail\)"),
    ({"sides": ["tails"]}, ValueError, "sides must be one of 'head', 'tail', got 'tails'"),
    ({"sides": []}, ValueError, "sides must be 'head', 'tail' or both"),
    ({"groups": "relations"}, ValueError, "groups must be one of"),
    ({"model": torch.nn.Linear(2, 2)}, TypeError, "model must be a KGEModel"),
    ({"model": {"tail": lambda h, r: h}}, TypeError, "model has no function 'head'"),
    ({"model": {"tail": lambda h, r: h, "head": lambda r, t: t}}, ValueError, r"must return scores \[9, entities\]"),
    ({"overlap": "miss"}, ValueError, "overlap"),
    ({"relation": torch.full((9,), 3)}, ValueError, "test triples hold relation 3; the model has 3"),
]


@pytest.mark.parametrize(("changed", "error", "message"), BAD)
def test_bad_input(changed, error, message):
    """Each names what was given and what is accepted."""
    with pytest.raises(error, match=message):
        call(**changed)


def test_twenty_lines_become_three():
    """`KGEModel.test` ranks tails, raw, and counts from 0; without ties its numbers are ours."""
    torch.manual_seed(0)
    model = kge.TransE(num_nodes=30, num_relations=4, hidden_channels=8)
    test = torch.stack([torch.randint(n, (20,)) for n in (30, 4, 30)])
    theirs = model.test(*test, batch_size=10, k=10, log=False)
    found = pyg.evaluate_triples(["MeanRank", "MRR", "HR@10"], model, *test, sides=["tail"], groups=None)
    assert [found["MeanRank"] - 1, found["MRR"], found["HR@10"]] == pytest.approx(theirs, abs=1e-6)
    assert isinstance(found, trm.Evaluation)


@pytest.mark.filterwarnings("ignore")
def test_pykeen_evaluates_nations():
    """PyKEEN's filtered evaluation of its own model on a data set of its own: every value, both sides."""
    evaluation = pytest.importorskip("pykeen.evaluation")
    from pykeen.datasets import Nations
    from pykeen.models import TransE

    data = Nations()
    parts = [part.mapped_triples for part in (data.training, data.validation, data.testing)]
    model = TransE(triples_factory=data.training, embedding_dim=8, random_seed=0)
    theirs = evaluation.RankBasedEvaluator(filtered=True).evaluate(
        model, parts[2], additional_filter_triples=parts[:2], use_tqdm=False
    )
    functions = {
        "tail": lambda head, relation: model.predict_t(torch.stack([head, relation], 1)),
        "head": lambda relation, tail: model.predict_h(torch.stack([relation, tail], 1)),
    }
    names = {
        "MeanRank": "arithmetic_mean_rank",
        "MRR": "inverse_harmonic_mean_rank",
        "HR@10": "hits_at_10",
        "AMRI": "adjusted_arithmetic_mean_rank_index",
        "AdjustedMRR": "adjusted_inverse_harmonic_mean_rank",
        "AdjustedHR@10": "adjusted_hits_at_k",
    }
    found = pyg.evaluate_triples(list(names), functions, *parts[2].T, known=torch.cat(parts).T)
    for name, other in names.items():
        for side, key in (("both", name), ("head", f"{name}/head"), ("tail", f"{name}/tail")):
            assert found[key].item() == pytest.approx(theirs.get_metric(f"{side}.realistic.{other}"), abs=1e-6)
