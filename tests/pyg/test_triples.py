"""`pyg.evaluate_triples` against loops over triples and entities in plain Python."""

import pytest
import torch
from values import numbers

import torchrecmetrics as trm

kge = pytest.importorskip("torch_geometric.nn.kge")
from torchrecmetrics import pyg  # noqa: E402

ENTITIES, RELATIONS = 13, 3
NAMES = ["MRR", "MeanRank", "HR@3"]


def graph(seed, num_known=60, num_test=9):
    """Return random test triples, of which some are known, and known triples, of which some are repeated."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([[ENTITIES], [RELATIONS], [ENTITIES]])
    known = (torch.rand(3, num_known, generator=generator) * sizes).long()
    test = torch.cat([known[:, :5], (torch.rand(3, num_test - 5, generator=generator) * sizes).long()], 1)
    return test, torch.cat([known, known[:, :7]], 1)


def make(name):
    """Return a model with few distinct scores, so that some are equal."""
    torch.manual_seed(3)
    model = getattr(kge, name)(num_nodes=ENTITIES, num_relations=RELATIONS, hidden_channels=4)
    with torch.no_grad():
        model.node_emb.weight.copy_(model.node_emb.weight[torch.arange(ENTITIES) % 6])
    return model


def plain_ranks(score, test, known, side, ties="realistic"):
    """Return the rank of each triple, entity by entity; `score` is a function of (head, relation, tail), numbers."""
    known = set() if known is None else set(map(tuple, known.T.tolist()))
    ranks = []
    for head, relation, tail in test.T.tolist():
        own, better, equal = score(head, relation, tail), 0, 0
        for entity in range(ENTITIES):
            triple = (head, relation, entity) if side == "tail" else (entity, relation, tail)
            if triple != (head, relation, tail) and triple not in known:
                better, equal = better + (score(*triple) > own), equal + (score(*triple) == own)
        ranks.append(better + 1 + {"optimistic": 0, "realistic": equal / 2, "pessimistic": equal}[ties])
    return ranks


def plain_values(score, test, known, ties="realistic"):
    """Return MRR, MeanRank and HR@3 of both sides together and of each side."""
    ranks = {side: plain_ranks(score, test, known, side, ties) for side in ("head", "tail")}
    expected = {}
    for key, values in {"": ranks["head"] + ranks["tail"], "/head": ranks["head"], "/tail": ranks["tail"]}.items():
        expected[f"MRR{key}"] = sum(1 / rank for rank in values) / len(values)
        expected[f"MeanRank{key}"] = sum(values) / len(values)
        expected[f"HR@3{key}"] = sum(rank <= 3 for rank in values) / len(values)
    return expected


def table(model):
    """Return the scores of all triples, from one call of the model each, as a function of numbers."""
    every = torch.cartesian_prod(*map(torch.arange, (ENTITIES, RELATIONS, ENTITIES)))
    with torch.no_grad():
        scores = {tuple(row.tolist()): model(*row[:, None]).item() for row in every}
    return lambda *triple: scores[triple]


MODELS = ("TransE", "DistMult", "ComplEx", "RotatE")


@pytest.mark.parametrize("name", MODELS)
def test_equals_plain_python(name):
    """PyG's models give the values of plain Python, filtered and raw, for both sides, all ties and any batches."""
    model = make(name).train()
    score = table(model)
    for seed, (ties, batch_size) in enumerate({"optimistic": None, "realistic": 1, "pessimistic": 4}.items()):
        test, facts = graph(seed)
        for known in (facts, None):
            found = pyg.evaluate_triples(NAMES, model, *test, known=known, ties=ties, batch_size=batch_size)
            assert numbers(found) == pytest.approx(plain_values(score, test, known, ties))
    assert model.training
    assert found.num_users == 18


@pytest.mark.parametrize("batch_size", [None, 7])
@pytest.mark.parametrize("ties", ["optimistic", "realistic", "pessimistic"])
def test_functions_of_ones_own(ties, batch_size):
    """Score functions by side, with many equal scores, give the values of plain Python."""
    test, known = graph(0, num_known=150, num_test=40)
    scores = torch.randint(5, (ENTITIES, RELATIONS, ENTITIES), generator=torch.Generator().manual_seed(0)).double()
    functions = {
        "tail": lambda head, relation: scores[head, relation],
        "head": lambda relation, tail: scores[:, relation, tail].T,
    }
    expected = plain_values(lambda *triple: scores[triple].item(), test, known, ties)
    seen = []
    options = {"ties": ties, "batch_size": batch_size, "num_entities": ENTITIES, "known": tuple(known)}
    found = pyg.evaluate_triples(NAMES, functions, *test, progress=lambda *done: seen.append(done), **options)
    assert numbers(found) == pytest.approx(expected)
    assert seen[-1] == (80, 80)
    tails = pyg.evaluate_triples(NAMES, {"tail": functions["tail"]}, *test, sides="tail", **options)
    of_tails = {key: expected[f"{name}/tail"] for name in NAMES for key in (name, f"{name}/tail")}
    assert numbers(tails) == pytest.approx(of_tails)


def test_scores_of_a_batch_fit_the_memory(monkeypatch):
    """Without `batch_size` a function is asked for as many rows as fit the memory, at 8 bytes per entity."""
    monkeypatch.setattr("torchrecmetrics.pyg.triples.memory_on", lambda device: 3 * 8 * ENTITIES)
    test, _ = graph(0)
    sizes = []

    def tails(head, relation):
        sizes.append(len(head))
        return torch.zeros(len(head), ENTITIES)

    pyg.evaluate_triples(NAMES, {"tail": tails}, *test, sides="tail", num_entities=ENTITIES)
    assert sizes == [3, 3, 3]


@pytest.mark.parametrize("name", MODELS)
def test_equal_entities_tie_in_all_chunks(name, monkeypatch):
    """Entities with equal embeddings have equal scores, however the model's calls are split."""
    torch.manual_seed(0)
    model = getattr(kge, name)(num_nodes=ENTITIES, num_relations=RELATIONS, hidden_channels=37)
    with torch.no_grad():
        for part in (value for key, value in model.named_parameters() if key.startswith("node_emb")):
            part.copy_(part[torch.arange(ENTITIES) % 4])
    test, known = graph(7)
    found = set()
    for most in (1, 2, 5, 13, 50, 2**14):
        monkeypatch.setattr("torchrecmetrics.pyg.triples._MAX_PAIRS_CPU", most)
        found.add(pyg.evaluate_triples("MRR", model, *test, known=known)["MRR"].item())
    assert len(found) == 1


def test_values_of_relations():
    """Each relation has a group, whose rows are those of both sides."""
    model, (test, known) = make("TransE"), graph(4)
    found = pyg.evaluate_triples("MRR", model, *test, known=known, groups="relation")
    for number in test[1].unique().tolist():
        part = test[:, test[1] == number]
        alone = pyg.evaluate_triples("MRR", model, *part, known=known, groups=None)

        assert found[f"MRR/relation {number}"].item() == pytest.approx(alone["MRR"].item())


def test_rows_are_kept():
    """Row i is the head of triple i and row n + i its tail; both are one cluster."""
    model, (test, known) = make("TransE"), graph(8)
    score = table(model)
    expected = [1 / rank for side in ("head", "tail") for rank in plain_ranks(score, test, known, side)]
    metrics = trm.RecMetricCollection("MRR", accumulators=[trm.KeptRows()], ties="realistic")
    rows = pyg.evaluate_triples(metrics, model, *test, known=known, batch_size=4).rows
    found = dict(zip(rows.ids.tolist(), rows.values["MRR"].tolist(), strict=True))
    assert [found[number] for number in range(18)] == pytest.approx(expected)
    assert (rows.clusters == rows.ids % 9).all()


def test_modules_of_functions_are_evaluated():
    """A module, also one whose method is passed, scores in eval mode and is back in its own mode afterwards."""

    class Noisy(torch.nn.Module):
        def forward(self, given, other):
            assert not self.training
            return torch.eye(ENTITIES)[given]

        heads = forward

    tails, heads = Noisy(), [Noisy().eval(), Noisy()]
    test, _ = graph(9)
    pyg.evaluate_triples("MRR", {"tail": tails, "head": heads[1].heads}, *test, num_entities=ENTITIES)
    pyg.evaluate_triples("MRR", {"head": heads[0].heads}, *test, sides="head", num_entities=ENTITIES)
    assert [part.training for part in (tails, *heads)] == [True, False, True]


def test_a_model_that_fails_keeps_its_mode():
    model = make("TransE").train()
    model.forward = lambda *triple: 1 / 0
    with pytest.raises(ZeroDivisionError):
        call(model=model)
    assert model.training


def test_known_triples_need_not_be_there():
    """An empty set of known triples is the raw setting, as is None; ids may be small integers."""
    raw = numbers(call(known=None))
    assert numbers(call(known=torch.zeros(3, 0, dtype=torch.int64))) == pytest.approx(raw)
    test, known = graph(6)
    narrow = dict(zip(("head", "relation", "tail"), test.short(), strict=True))
    assert numbers(call(**narrow, known=known.int())) == pytest.approx(numbers(call()))


def call(**changed):
    test, known = graph(6)
    head, relation, tail = test
    given = {"model": make("TransE"), "head": head, "relation": relation, "tail": tail, "known": known} | changed
    return pyg.evaluate_triples("MRR", **given)


NONE = torch.zeros(0, dtype=torch.int64)
NAN = {side: lambda first, second: torch.full((len(first), 13), torch.nan) for side in ("head", "tail")}
OWN = {"model": NAN, "num_entities": 13}
BAD = [
    ({"head": NONE, "relation": NONE, "tail": NONE}, ValueError, "there is no test triple"),
    ({"head": torch.ones(9)}, TypeError, "test triples must hold int64"),
    ({"tail": torch.full((9,), -1)}, ValueError, r"test triples hold entity -1\.\.12, expected 0\.\.12"),
    ({"known": torch.full((3, 2), 20)}, ValueError, r"known triples hold entity 20\.\.20, expected 0\.\.12"),
    ({"relation": torch.full((9,), 3)}, ValueError, r"test triples hold relation 3\.\.3, expected 0\.\.2"),
    ({"known": torch.zeros(2, 3, dtype=torch.int64)}, ValueError, r"known triples must be \(head, relation, tail\)"),
    ({"known": torch.zeros(5, 3, dtype=torch.int64)}, ValueError, "got 5 rows: pass known.T"),
    ({"sides": "tails"}, ValueError, "sides must be one of 'both', 'head', 'tail', got 'tails'"),
    ({"model": torch.nn.Linear}, TypeError, "model must be a KGEModel"),
    ({"model": torch.nn.Linear(2, 2)}, ValueError, "the model has no num_nodes: pass num_entities="),
    ({"model": {"tail": lambda h, r: h}}, TypeError, "model has no function 'head'"),
    ({**OWN, "model": {"tail": lambda h, r: h, "head": lambda r, t: t}}, ValueError, r"must return scores \[9, 13\]"),
    ({"overlap": "miss"}, ValueError, "overlap"),
    ({"num_entities": 12}, ValueError, r"num_entities is 12, but the model has 13 \(num_nodes\)"),
    ({**OWN, "relation": torch.full((9,), 2**40)}, ValueError, "hold relation .* expected 0..1048575"),
    (OWN, ValueError, "with a score that is NaN"),
    ({"filter": True}, ValueError, "has no option 'filter'.* There are known, sides, groups,"),
]


@pytest.mark.parametrize(("changed", "error", "message"), BAD)
def test_bad_input(changed, error, message):
    """The error for bad input names the value that was given or the values that are accepted."""
    with pytest.raises(error, match=message):
        call(**changed)


def test_twenty_lines_become_three():
    """For raw tails without ties, values equal those of `KGEModel.test`, whose mean rank counts from 0."""
    torch.manual_seed(0)
    model = kge.TransE(num_nodes=30, num_relations=4, hidden_channels=8)
    test = torch.stack([torch.randint(n, (20,)) for n in (30, 4, 30)])
    theirs = model.test(*test, batch_size=10, k=10, log=False)
    found = pyg.evaluate_triples(["MeanRank", "MRR", "HR@10"], model, *test, sides="tail", groups=None)
    assert [found["MeanRank"] - 1, found["MRR"], found["HR@10"]] == pytest.approx(theirs, abs=1e-6)
    assert isinstance(found, trm.Evaluation)


@pytest.mark.filterwarnings("ignore")
def test_pykeen_evaluates_nations():
    """Every value of both sides is that of PyKEEN's filtered evaluation of its own model on its data set Nations."""
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
    found = pyg.evaluate_triples(list(names), functions, *parts[2].T, known=torch.cat(parts).T, num_entities=14)
    for name, other in names.items():
        for side, key in (("both", name), ("head", f"{name}/head"), ("tail", f"{name}/tail")):
            assert found[key].item() == pytest.approx(theirs.get_metric(f"{side}.realistic.{other}"), abs=1e-6)
