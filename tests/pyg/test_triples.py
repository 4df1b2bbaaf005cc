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
    known = set(map(tuple, known.T.tolist()))
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
TIES = pytest.mark.parametrize("ties", ["optimistic", "realistic", "pessimistic"])


@pytest.mark.parametrize("name", MODELS)
@TIES
@pytest.mark.parametrize("filtered", [True, False])
def test_models_of_pyg_give_the_values_of_plain_python(filtered, ties, name):
    model, (test, facts) = make(name), graph(1)
    known = facts if filtered else facts[:, :0]  # without known triples the setting is raw
    result = pyg.evaluate_triples(NAMES, model, *test, known=known, ties=ties, batch_size=4)

    assert numbers(result) == pytest.approx(plain_values(table(model), test, known, ties))
    assert result.num_users == 2 * 9  # rows: heads and tails


SCORES = torch.randint(5, (ENTITIES, RELATIONS, ENTITIES), generator=torch.Generator().manual_seed(0)).double()
FUNCTIONS = {
    "tail": lambda head, relation: SCORES[head, relation],
    "head": lambda relation, tail: SCORES[:, relation, tail].T,
}


@pytest.mark.parametrize("batch_size", [None, 1, 7])
@TIES
def test_functions_by_side_give_the_values_of_plain_python(ties, batch_size):
    test, known = graph(0, num_known=150, num_test=40)
    options = {"ties": ties, "batch_size": batch_size, "num_entities": ENTITIES, "known": tuple(known)}
    calls = []
    result = pyg.evaluate_triples(NAMES, FUNCTIONS, *test, progress=lambda *done: calls.append(done), **options)

    assert calls[-1] == (2 * 40, 2 * 40)
    assert numbers(result) == pytest.approx(plain_values(lambda *triple: SCORES[triple].item(), test, known, ties))


@pytest.mark.parametrize(("known", "rank"), [(None, 2), (torch.tensor([[0], [0], [0]]), 1)], ids=["raw", "filtered"])
def test_a_known_triple_with_a_higher_score_does_not_compete(known, rank):
    """Tails are scored 3, 1 and 2; that of the test triple is entity 2, and entity 0 is known."""
    functions, test = {"tail": lambda head, relation: torch.tensor([[3.0, 1.0, 2.0]])}, torch.tensor([[0], [0], [2]])
    result = pyg.evaluate_triples("MRR", functions, *test, known=known, sides="tail", num_entities=3)

    assert result == {"MRR": 1 / rank, "MRR/tail": 1 / rank}


def test_a_function_is_asked_for_as_many_rows_as_fit_the_memory(monkeypatch):
    monkeypatch.setattr("torchrecmetrics.pyg.triples.memory_on", lambda device: 3 * 8 * ENTITIES)  # 8 bytes a score
    sizes = []

    def tails(head, relation):
        sizes.append(len(head))
        return torch.zeros(len(head), ENTITIES)

    pyg.evaluate_triples("MRR", {"tail": tails}, *graph(0)[0], sides="tail", num_entities=ENTITIES)

    assert sizes == [3, 3, 3]


@pytest.mark.parametrize("name", MODELS)
def test_entities_with_equal_embeddings_tie_however_calls_are_split(name, monkeypatch):
    torch.manual_seed(0)
    model = getattr(kge, name)(num_nodes=ENTITIES, num_relations=RELATIONS, hidden_channels=37)
    with torch.no_grad():
        for part in (value for key, value in model.named_parameters() if key.startswith("node_emb")):
            part.copy_(part[torch.arange(ENTITIES) % 4])
    test, known = graph(7)
    values = set()
    for most in (1, 2, 5, 13, 50, 2**14):
        monkeypatch.setattr("torchrecmetrics.pyg.triples._MAX_PAIRS_CPU", most)
        values.add(pyg.evaluate_triples("MRR", model, *test, known=known)["MRR"].item())

    assert len(values) == 1


def test_each_relation_has_a_group_with_the_rows_of_both_sides():
    """Tail 2 of relation 0 is second, tail 0 of relation 1 is first, and both heads 0 are third."""
    scores = {"tail": torch.tensor([3.0, 1.0, 2.0]), "head": torch.tensor([1.0, 2.0, 3.0])}
    functions = {side: lambda first, _, side=side: scores[side].expand(len(first), 3) for side in scores}
    test = torch.tensor([[0, 0], [0, 1], [2, 0]])
    result = pyg.evaluate_triples("MRR", functions, *test, num_entities=3, groups="relation")

    assert result["MRR/relation 0"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert result["MRR/relation 1"] == pytest.approx((1 / 1 + 1 / 3) / 2)


def test_kept_rows_are_heads_and_then_tails_and_a_triple_is_one_cluster():
    model, (test, known) = make("TransE"), graph(8)
    score = table(model)
    expected = [1 / rank for side in ("head", "tail") for rank in plain_ranks(score, test, known, side)]
    metrics = trm.RecMetricCollection("MRR", accumulators=[trm.KeptRows()], ties="realistic")
    rows = pyg.evaluate_triples(metrics, model, *test, known=known, batch_size=4).rows
    by_row = dict(zip(rows.ids.tolist(), rows.values["MRR"].tolist(), strict=True))

    assert [by_row[number] for number in range(2 * 9)] == pytest.approx(expected)
    assert (rows.clusters == rows.ids % 9).all()


class Noisy(torch.nn.Module):
    """It scores in eval mode alone."""

    def forward(self, given, other):
        assert not self.training
        return torch.eye(ENTITIES)[given]

    heads = forward


@pytest.mark.parametrize("training", [True, False])
def test_modules_of_functions_score_in_eval_mode_and_get_their_mode_back(training):
    tails, heads = Noisy().train(training), Noisy().train(training)
    pyg.evaluate_triples("MRR", {"tail": tails, "head": heads.heads}, *graph(9)[0], num_entities=ENTITIES)

    assert (tails.training, heads.training) == (training, training)


def call(**changed):
    head, relation, tail = graph(6)[0]
    given = {"model": make("TransE"), "head": head, "relation": relation, "tail": tail, "known": graph(6)[1]}
    return pyg.evaluate_triples("MRR", **given | changed)


def test_a_model_that_fails_keeps_its_mode():
    model = make("TransE").train()
    model.forward = lambda *triple: 1 / 0

    with pytest.raises(ZeroDivisionError):
        call(model=model)
    assert model.training


def test_ids_may_be_small_integers():
    test, known = graph(6)
    head, relation, tail = test.short()

    assert numbers(call(head=head, relation=relation, tail=tail, known=known.int())) == numbers(call())


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
def test_bad_input_is_refused(changed, error, message):
    with pytest.raises(error, match=message):
        call(**changed)


def test_raw_tails_without_ties_have_the_values_of_the_test_method():
    """The mean rank of `KGEModel.test` counts from 0."""
    torch.manual_seed(0)
    model = kge.TransE(num_nodes=30, num_relations=4, hidden_channels=8)
    test = torch.stack([torch.randint(n, (20,)) for n in (30, 4, 30)])
    mean_rank, mrr, hits = model.test(*test, batch_size=10, k=10, log=False)
    result = pyg.evaluate_triples(["MeanRank", "MRR", "HR@10"], model, *test, sides="tail", groups=None)

    assert numbers(result) == pytest.approx({"MeanRank": mean_rank + 1, "MRR": mrr, "HR@10": hits}, abs=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_values_are_those_of_pykeen_on_nations():
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
    result = pyg.evaluate_triples(list(names), functions, *parts[2].T, known=torch.cat(parts).T, num_entities=14)

    assert numbers(result) == pytest.approx(
        {
            f"{name}{key}": theirs.get_metric(f"{side}.realistic.{other}")
            for name, other in names.items()
            for side, key in (("both", ""), ("head", "/head"), ("tail", "/tail"))
        },
        abs=1e-6,
    )
