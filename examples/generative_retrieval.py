"""A small generative recommender: a GRU generates codes of the next item, level by level, by constrained beam search.

    python examples/generative_retrieval.py    # generated data: no download, half a minute

Items have codes of three levels; some items share a code, as after residual quantisation. The table evaluates the same
beams with three rules for shared codes and at each level, and popularity as a baseline.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn

import torchrecmetrics as trm

ITEMS, LEVELS, SIZE, LENGTH = 300, 3, 8, 6


def planted(num_users: int) -> tuple[Tensor, Tensor]:
    """Make item codes, and sequences in which the next item is mostly in the family of the one before."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(SIZE, (ITEMS, LEVELS), generator=generator)
    weight = torch.rand(ITEMS, generator=generator) ** 3
    family = (codes[:, None, :2] == codes[None, :, :2]).all(-1)
    neighbour = (codes[:, None, 0] == codes[None, :, 0]) * 0.05
    transition = (family + neighbour + 0.001) * weight
    sequences = [torch.multinomial(weight, num_users, replacement=True, generator=generator)]
    for _ in range(LENGTH):
        sequences.append(torch.multinomial(transition[sequences[-1]], 1, generator=generator)[:, 0])
    return codes, torch.stack(sequences, 1)


class Generator(nn.Module):
    """A GRU that reads a sequence of items and generates the levels of a code."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, width)
        self.levels = nn.Embedding(LEVELS * SIZE + 1, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRUCell(width, width)
        self.heads = nn.ModuleList(nn.Linear(width, SIZE) for _ in range(LEVELS))

    def start(self, history: Tensor) -> Tensor:
        """Return the state after a history, [B, width]."""
        return self.encoder(self.items(history))[1][0]

    def step(self, level: int, before: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of a level's codes, [B, SIZE], and the new state."""
        token = torch.full_like(before, LEVELS * SIZE) if level == 0 else (level - 1) * SIZE + before
        state = self.decoder(self.levels(token), state)
        return self.heads[level](state).log_softmax(-1), state

    def loss(self, history: Tensor, codes: Tensor) -> Tensor:
        """Return the negative log-likelihood of the next items' codes."""
        state, total = self.start(history), torch.zeros(())
        for level in range(LEVELS):
            log_probability, state = self.step(level, codes[:, max(level - 1, 0)], state)
            total = total - log_probability.gather(1, codes[:, level, None]).mean()
        return total

    @torch.no_grad()
    def beams(self, history: Tensor, valid: list[Tensor], width: int) -> Tensor:
        """Return the best codes that `valid` allows, [B, width, LEVELS]; rows with fewer codes are padded with -1."""
        rows = len(history)
        state = self.start(history)[:, None]
        score, code = torch.zeros(rows, 1), torch.zeros(rows, 1, 0, dtype=torch.int64)
        prefix = torch.zeros(rows, 1, dtype=torch.int64)
        for level in range(LEVELS):
            before = code[..., -1] if level else torch.zeros_like(prefix)
            log_probability, state = self.step(level, before.flatten(), state.flatten(0, 1))
            scores = score[..., None] + log_probability.view(rows, -1, SIZE)
            scores = scores.masked_fill(~valid[level][prefix], -torch.inf).flatten(1)
            score, chosen = scores.topk(min(width, scores.shape[1]))
            parent, token = chosen // SIZE, chosen % SIZE
            state = state.view(rows, -1, state.shape[-1]).gather(1, parent[..., None].expand(-1, -1, state.shape[-1]))
            code = torch.cat([code.gather(1, parent[..., None].expand(-1, -1, level)), token[..., None]], -1)
            prefix = prefix.gather(1, parent) * SIZE + token
        return code.masked_fill(score.isinf()[..., None], -1)


def allowed(codes: Tensor) -> list[Tensor]:
    """Return, per level, which codes may follow each prefix: bool [prefixes, SIZE]."""
    tables = []
    for level in range(LEVELS):
        table = torch.zeros(SIZE**level, SIZE, dtype=torch.bool)
        prefix = sum(codes[:, at] * SIZE ** (level - 1 - at) for at in range(level)) + torch.zeros(
            ITEMS, dtype=torch.int64
        )
        table[prefix, codes[:, level]] = True
        tables.append(table)
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--users", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=15)
    given = parser.parse_args()

    torch.manual_seed(0)
    matrix, sequences = planted(given.users)
    codes = trm.SemanticIds(matrix)
    print(codes)
    train, test = sequences[:, :-1], sequences[:, -1]
    model = Generator()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(1, given.epochs + 1):
        total = 0.0
        for rows in torch.randperm(len(train)).split(256):
            optimizer.zero_grad()
            cut = int(torch.randint(1, LENGTH, ()))
            loss = model.loss(train[rows, :cut], matrix[train[rows, cut]])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows) / len(train)
        print(f"epoch {epoch:2}  loss {total:.3f}")

    beams = model.beams(train, allowed(matrix), 20)

    def show(name: str, ranked: Any) -> None:
        metrics = trm.RecMetricCollection(["Recall", "NDCG"], k=10)
        metrics.update(ranked)
        print(f"{name:26}" + "  ".join(f"{label} {value:.4f}" for label, value in metrics.compute().items()))

    show("items, shared codes tied", codes.beams(beams, test))
    show("first item of a code", codes.beams(beams, test, shared="first"))
    show("codes", codes.beams(beams, test, shared="code"))
    for level in range(1, LEVELS):
        show(f"codes, level {level}", codes.beams(beams, test, prefix=level, complete=True))
    popularity = torch.bincount(train.flatten(), minlength=ITEMS).double()
    show("popularity", trm.Scores(popularity.expand(len(test), -1), test))


if __name__ == "__main__":
    main()
