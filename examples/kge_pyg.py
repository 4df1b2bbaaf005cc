"""Evaluate PyG's TransE on a small knowledge graph: heads and tails are ranked among all entities, filtered.

    python examples/kge_pyg.py    # a generated graph: no download, half a minute
    python examples/kge_pyg.py --data FB15k-237 --epochs 500 --hidden 50

`--data` is a folder of train.txt, valid.txt and test.txt with lines "head relation tail", such as FB15k-237 or WN18RR.
Filtered means that known triples of all three files are no candidates, except the tested triple. AMRI and AdjustedHR
are 0 for a ranking in random order.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.nn.kge import TransE

import torchrecmetrics as trm
from torchrecmetrics import pyg


def planted_graph(side: int = 15) -> dict[str, Tensor]:
    """Make a graph whose entities are points of a grid and whose relations are steps on it; a step has two ends."""
    generator = torch.Generator().manual_seed(0)
    points = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    triples = []
    for relation, step in enumerate([(1, 0), (0, 1), (3, 2), (-2, 3), (4, -1), (-3, -3)]):
        for wobble in [(0, 0), (0, 1)]:
            ends = points + torch.tensor(step) + torch.tensor(wobble)
            inside = ((ends >= 0) & (ends < side)).all(1)
            heads = inside.nonzero()[:, 0]
            tails = (ends[:, 0] * side + ends[:, 1])[inside]
            triples.append(torch.stack([heads, torch.full_like(heads, relation), tails]))
    everything = torch.cat(triples, 1)
    everything = everything[:, torch.randperm(everything.shape[1], generator=generator)]
    valid, test, train = everything.split([100, 200, everything.shape[1] - 300], 1)
    return {"train": train, "valid": valid, "test": test}


def read_graph(folder: Path) -> dict[str, Tensor]:
    """Read lines of "head relation tail", and number the entities and relations."""
    files = {part: [line.split() for line in (folder / f"{part}.txt").open()] for part in ("train", "valid", "test")}
    rows = [row for part in files.values() for row in part]
    entities = trm.Vocabulary(sorted({row[column] for row in rows for column in (0, 2)}))
    relations = trm.Vocabulary(sorted({row[1] for row in rows}))
    graph = {}
    for part, lines in files.items():
        heads, kinds, tails = (list(column) for column in zip(*lines, strict=True))
        graph[part] = torch.stack([entities.rows(heads), relations.rows(kinds), entities.rows(tails)])
    return graph


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of train.txt, valid.txt and test.txt; default: generated")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--hidden", type=int, default=16)
    given = parser.parse_args()

    torch.manual_seed(0)
    graph = planted_graph() if given.data is None else read_graph(given.data)
    known = torch.cat([graph["train"], graph["valid"], graph["test"]], 1)
    num_entities, num_relations = int(known[[0, 2]].max()) + 1, int(known[1].max()) + 1
    print(f"{num_entities:,} entities, {num_relations} relations, {known.shape[1]:,} triples")

    model = TransE(num_entities, num_relations, given.hidden, p_norm=2.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    metrics = ["MRR", "HR@1", "HR@10", "MeanRank", "AMRI", "AdjustedHR@10"]

    def show(title: str, split: str) -> None:
        print(f"\n{title}\n{pyg.evaluate_triples(metrics, model, *graph[split], known=known)}")

    show("untrained, test", "test")
    for epoch in range(1, given.epochs + 1):
        model.train()
        total = 0.0
        order = torch.randperm(graph["train"].shape[1])
        for batch in order.split(500):
            optimizer.zero_grad()
            loss = model.loss(*graph["train"][:, batch])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        if epoch % 50 == 0 or epoch == given.epochs:
            found = pyg.evaluate_triples("MRR", model, *graph["valid"], known=known, groups=None)
            print(f"epoch {epoch:3}  loss {total / len(order):.3f}  validation MRR {found['MRR']:.3f}")
    show("TransE, test", "test")


if __name__ == "__main__":
    main()
