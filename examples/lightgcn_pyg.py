"""PyG's LightGCN with BPR loss, all users evaluated on the full catalogue with torchrecmetrics.

    python examples/lightgcn_pyg.py    # generated data: no download, a minute
    python examples/lightgcn_pyg.py --data gowalla --epochs 32 --batch-size 32768 --lr 0.02 --eval-every 8

The second command takes about three minutes on two cores and ends at a Recall@20 of 0.15; the paper's 0.18 takes far
more epochs. Where other work shares the cores, `OMP_WAIT_POLICY=passive` in the environment keeps torch's threads from
busy waiting: minutes become seconds.

`--data` is a folder of train.txt and test.txt with lines "user item item ...", such as LightGCN-PyTorch's gowalla,
yelp2018 and amazon-book. Every item is a candidate except those that the user has in train.txt. The table shows the
last epoch, because choosing the best epoch of the curve would need a validation set.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
from matplotlib.figure import Figure  # no pyplot, no display
from torch import Tensor
from torch_geometric.nn import LightGCN
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import to_torch_csr_tensor
from tqdm.auto import tqdm

import torchrecmetrics as trm
from torchrecmetrics import pyg

# ----------------------------------------------------------------------------------------------------------- the model


class Propagate(torch.autograd.Function):
    """`adjacency @ x` for a symmetric adjacency: torch's own gradient would transpose the matrix at every step."""

    @staticmethod
    def forward(ctx, adjacency: Tensor, x: Tensor) -> Tensor:
        ctx.adjacency = adjacency
        return adjacency @ x

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[None, Tensor]:
        return None, ctx.adjacency @ gradient


class SymmetricLightGCN(LightGCN):
    """LightGCN for an adjacency that is symmetric and normalised already; several times as fast to train on a CPU."""

    def get_embedding(self, edge_index: Tensor, edge_weight: None = None) -> Tensor:
        x = self.embedding.weight
        out = self.alpha[0] * x
        for alpha in self.alpha[1:]:
            x = Propagate.apply(edge_index, x)
            out = out + alpha * x
        return out


def normalised_adjacency(train: trm.Interactions) -> Tensor:
    """Return D^-1/2 A D^-1/2 of the bipartite graph, users first, items after, as sparse CSR."""
    nodes = train.num_users + train.num_items
    edges = train.to_edge_index(item_offset=train.num_users, undirected=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
        adjacency, _ = gcn_norm(to_torch_csr_tensor(edges, size=(nodes, nodes)), add_self_loops=False)
    return adjacency


def bpr_loss(model: LightGCN, adjacency: Tensor, edges: Tensor, num_users: int) -> Tensor:
    """Return the BPR loss of each edge's item [2, B] against a random item, which is sometimes relevant, too."""
    negatives = torch.randint(num_users, model.num_nodes, edges.shape[1:])
    embedding = model.get_embedding(adjacency)
    user, positive, negative = embedding[edges[0]], embedding[edges[1]], embedding[negatives]
    nodes = torch.cat([edges.flatten(), negatives])  # the L2 penalty is on the embeddings before propagation
    return model.recommendation_loss((user * positive).sum(1), (user * negative).sum(1), nodes, lambda_reg=1e-3)


# ------------------------------------------------------------------------------------------------------------ the data


def generate(
    num_users: int = 3000, num_items: int = 2000, length: int = 30, num_communities: int = 25
) -> tuple[trm.Interactions, trm.Interactions]:
    """Generate interactions: users prefer items of their community and popular items; a fifth is held out."""
    popularity = torch.arange(1, num_items + 1).pow(-0.6)[torch.randperm(num_items)]
    communities = [torch.randint(num_communities, (count,)) for count in (num_users, num_items)]
    weights = popularity * torch.where(communities[0][:, None] == communities[1], 40.0, 1.0)
    edges = torch.stack([torch.arange(num_users).repeat_interleave(length), weights.multinomial(length).flatten()])
    held_out = torch.rand(edges.shape[1]) < 0.2
    train, test = (
        trm.Interactions.from_edge_index(edges[:, part], num_users, num_items) for part in (~held_out, held_out)
    )
    return train, test


# --------------------------------------------------------------------------------------------------------- the program


def draw(curve: dict[int, trm.Evaluation], baseline: trm.Evaluation, path: Path) -> None:
    """Plot every metric by epoch, with a band of one standard error, and the baseline dashed."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for color, label in enumerate(baseline):
        values = torch.stack([evaluation[label] for evaluation in curve.values()])
        errors = torch.stack([evaluation.standard_errors[label] for evaluation in curve.values()])
        axes.plot(list(curve), values, marker=".", color=f"C{color}", label=label)
        axes.fill_between(list(curve), values - errors, values + errors, color=f"C{color}", alpha=0.2)
        axes.axhline(baseline[label], color=f"C{color}", linestyle="--", linewidth=0.8)
    axes.set(xlabel="epoch", ylabel="test", title="LightGCN (dashed: popularity)", ylim=(0, None))
    axes.legend()
    figure.savefig(path)


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Train, evaluate the model and a baseline, print a table and draw the curve; return the model's values."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of train.txt and test.txt; without it data are generated")
    parser.add_argument("--out", type=Path, help="the learning curve; default: lightgcn.png in the temporary folder")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=8192, help="edges a step; each step propagates over all")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--eval-every", type=int, default=3, help="epochs between evaluations")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    out = args.out or Path(tempfile.gettempdir(), "lightgcn.png")
    torch.manual_seed(args.seed)

    if args.data:
        try:
            train, test = trm.Interactions.from_text(args.data / "train.txt", args.data / "test.txt")
        except (OSError, ValueError) as error:
            parser.error(str(error))
    else:
        train, test = generate()
    print(f"{args.data or 'generated data'}\n  train {train}\n  test  {test}", flush=True)

    # overlap: a test item that the user also has in train counts as not found, as in LightGCN-PyTorch. Neither Gowalla
    # nor the generated data have any; "error", the default, would say how many there are.
    metrics = trm.RecMetricCollection(["Recall", "NDCG", "HR", "RPrecision"], k=20, overlap="miss")
    popularity = trm.evaluate(metrics, trm.Embeddings(bias=train.popularity), target=test, exclude=train)

    adjacency = normalised_adjacency(train)
    model = SymmetricLightGCN(len(adjacency), args.dim, args.layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    edges = train.to_edge_index(item_offset=train.num_users)

    curve = {}
    with tqdm(total=args.epochs * -(-len(train) // args.batch_size), unit="step", disable=None) as bar:
        for epoch in range(1, args.epochs + 1):
            losses = []
            for batch in torch.randperm(len(train)).split(args.batch_size):
                loss = bpr_loss(model, adjacency, edges[:, batch], train.num_users)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                bar.update()
            line = f"epoch {epoch:3}  loss {sum(losses) / len(losses):.4f}"
            if epoch % args.eval_every == 0 or epoch == args.epochs:
                start = time.perf_counter()
                curve[epoch] = now = pyg.evaluate(metrics, model, adjacency, target=test, exclude=train)
                speed = now.num_users / (time.perf_counter() - start)
                line += f"  Recall@20 {now['Recall@20']:.4f}  NDCG@20 {now['NDCG@20']:.4f}  ({speed:,.0f} users/s)"
            if epoch in curve or bar.disable:  # without a terminal there is no bar: a line for each epoch
                bar.write(line)
                sys.stdout.flush()

    results = {"popularity": popularity, f"LightGCN, epoch {epoch}": now}
    print(f"\nTest, {now.num_users:,} users, all items but those in train; ± standard error")
    print(" " * 10 + "".join(f"{name:>20}" for name in results))
    for label in now:
        cells = (f"{result[label]:.4f} ± {result.standard_errors[label]:.4f}" for result in results.values())
        print(f"{label:10}" + "".join(f"{cell:>20}" for cell in cells))
    draw(curve, popularity, out)
    print(f"Learning curve: {out}")
    return now.floats()


if __name__ == "__main__":
    main()
