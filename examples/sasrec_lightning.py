"""SASRec in Lightning, evaluated over the full catalogue with torchrecmetrics.

    python examples/sasrec_lightning.py                         # generated data: no download, about a minute
    python examples/sasrec_lightning.py --data ml-100k/u.data   # MovieLens: user, item, rating, timestamp
    python examples/sasrec_lightning.py --data Beauty.txt       # lines of "user item item ...", oldest item first
    python examples/sasrec_lightning.py --out best              # keeps the best checkpoint in that folder
    python examples/sasrec_lightning.py --checkpoint best/*.ckpt --devices 2    # tests it on two processes: same table

Leave-one-out: a user's last item is the test target, the item before it the validation target. Every item is a
candidate except those of the user's whole history, even if the model reads only the end of it. In the test, the history
includes the validation item.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
import tempfile
import warnings
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import LambdaCallback, ModelCheckpoint
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from torchrecmetrics.lightning import RecMetricsCallback

PAD = 0  # items are numbered from 1
pad = partial(pad_sequence, batch_first=True, padding_value=PAD)
say = rank_zero_only(print)  # prints from one process only


# ---------------------------------------------------------------------------------------------------------- the models


class NextItemModule(pl.LightningModule):
    """A module that returns scores of the catalogue for `RecMetricsCallback`; a subclass defines `score`."""

    def score(self, window: Tensor) -> Tensor:
        """Score all items after `window`, int64 [B, L]: float [B, 1 + num_items]."""
        raise NotImplementedError

    def validation_step(self, batch: Batch) -> dict[str, Tensor]:
        return {"scores": self.score(batch.window), "target": batch.target, "exclude": batch.history}

    test_step = validation_step


class SASRec(NextItemModule):
    """Causal self-attention over the user's last items (Kang and McAuley, 2018).

    The item embeddings are both input and output layer, and the loss is the cross entropy over the whole catalogue; for
    millions of items, sample the negatives instead.
    """

    def __init__(
        self, num_items: int, max_len: int, dim: int, lr: float, layers: int = 2, dropout: float = 0.2
    ) -> None:
        super().__init__()
        self.lr = lr
        self.items = nn.Embedding(1 + num_items, dim, padding_idx=PAD)
        self.positions = nn.Embedding(max_len, dim)
        nn.init.normal_(self.items.weight[1:], std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(dim, 1, dim, dropout, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(dim), enable_nested_tensor=False)

    def forward(self, window: Tensor) -> Tensor:
        """Encode items [B, L] as [B, L, dim]. Padding is on the right, where causal attention does not look."""
        length = window.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(length, device=window.device)
        return self.encoder(self.dropout(self.items(window) + self.positions.weight[:length]), causal, is_causal=True)

    def score(self, window: Tensor) -> Tensor:
        last = (window != PAD).sum(1) - 1
        return self(window)[torch.arange(len(window), device=window.device), last] @ self.items.weight.T

    def training_step(self, sequence: Tensor) -> Tensor:
        window, target = sequence[:, :-1], sequence[:, 1:]
        real = target != PAD
        loss = F.cross_entropy(self(window)[real] @ self.items.weight.T, target[real])
        self.log("train/loss", loss, prog_bar=True, batch_size=len(sequence))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.1)


class Popularity(NextItemModule):
    """A baseline that scores items by their number of training events, the same for every user."""

    def __init__(self, data: LeaveOneOut) -> None:
        super().__init__()
        self.register_buffer("counts", torch.cat(data.train).bincount(minlength=1 + data.num_items).float())

    def score(self, window: Tensor) -> Tensor:
        return self.counts.expand(len(window), -1)


class Random(NextItemModule):
    """A baseline that scores items at random: an arbitrary order for each window, the same on every process."""

    def __init__(self, data: LeaveOneOut) -> None:
        super().__init__()
        self.register_buffer(
            "angles", torch.rand(1 + data.num_items, generator=torch.Generator().manual_seed(0)).double()
        )

    def score(self, window: Tensor) -> Tensor:
        number = (window * torch.arange(1, window.shape[1] + 1, device=window.device)).sum(1)
        return torch.frac(number[:, None] * 1e3 * self.angles)


# ------------------------------------------------------------------------------------------------------------ the data


class LeaveOneOut(NamedTuple):
    """Item sequences split by time; users with fewer than 3 events are in the training data only."""

    train: list[Tensor]
    validation: list[tuple[Tensor, Tensor]]  # a user's whole history and the next item
    test: list[tuple[Tensor, Tensor]]
    num_items: int

    @classmethod
    def split(cls, sequences: list[list[int]]) -> LeaveOneOut:
        numbers = {item: n for n, item in enumerate(sorted({i for items in sequences for i in items}), start=1)}
        users = [torch.tensor([numbers[item] for item in items], dtype=torch.int64) for items in sequences]
        tested = [items for items in users if len(items) >= 3]
        return cls(
            train=[items[:-2] if len(items) >= 3 else items for items in users],
            validation=[(items[:-2], items[-2]) for items in tested],
            test=[(items[:-1], items[-1]) for items in tested],
            num_items=len(numbers),
        )


class Batch(NamedTuple):
    """A batch of users to recommend to."""

    window: Tensor  # [B, L] each user's last items, at most max_len, which the model reads
    history: Tensor  # [B, H] each user's whole history, which is not recommended again
    target: Tensor  # [B]


def collate(users: list[tuple[Tensor, Tensor]], max_len: int) -> Batch:
    histories, targets = zip(*users, strict=True)
    return Batch(pad([items[-max_len:] for items in histories]), pad(histories), torch.stack(targets))


def cut(items: Tensor, max_len: int) -> list[Tensor]:
    """Cut a training sequence into inputs of at most `max_len`, such that every item but the first is a target once."""
    return [items[max(0, end - max_len - 1) : end] for end in range(len(items), 1, -max_len)]


def read(path: Path) -> list[list[int]]:
    """Read every user's items in time order; events at the same time keep the file's order."""
    lines = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    sequences = defaultdict(list)
    if all(re.fullmatch(r"\d+\t\d+\t\S+\t\d+", line) for line in lines):
        for user, item, _, _ in sorted((line.split("\t") for line in lines), key=lambda event: int(event[3])):
            sequences[user].append(int(item))
    elif all(re.fullmatch(r"\d+( \d+)*", line) for line in lines):
        for user, *items in map(str.split, lines):
            if user in sequences:
                raise ValueError(f"{path}: user {user} has several lines; a line must hold all of a user's items")
            sequences[user] = [int(item) for item in items]
    else:
        raise ValueError(
            f"{path}: neither lines of user, item, rating, timestamp with tabs nor of 'user item item ...'"
        )
    if not any(len(items) >= 3 for items in sequences.values()):
        raise ValueError(f"{path}: no user has 3 events, one each to train, validate and test")
    return list(sequences.values())


def generate(num_users: int = 2000, num_items: int = 1000, length: int = 20, num_genres: int = 20) -> list[list[int]]:
    """Generate item sequences: a user often takes the last item's sequel, else mostly a popular item of its genre.

    No user takes an item twice.
    """
    popularity = torch.arange(1, num_items + 1).pow(-0.8)[torch.randperm(num_items)]
    genre, sequel = torch.randint(num_genres, (num_items,)), torch.randperm(num_items)
    unseen = torch.ones(num_users, num_items)
    walk = [popularity.expand(num_users, -1).multinomial(1)]
    for _ in range(length - 1):
        last = walk[-1]
        unseen.scatter_(1, last, 0)
        weights = popularity * torch.where(genre[last] == genre, 20, 1)
        weights /= weights.sum(1, keepdim=True)
        weights.scatter_add_(1, sequel[last], torch.full(last.shape, 0.5))
        walk.append((weights * unseen).multinomial(1))
    return torch.cat(walk, 1).tolist()


# --------------------------------------------------------------------------------------------------------- the program


def tell(trainer: pl.Trainer, module: pl.LightningModule) -> None:
    """Print one line for the epoch that has ended, for a log without a progress bar."""
    now = trainer.callback_metrics
    say(
        f"epoch {trainer.current_epoch + 1:3}  loss {now['train/loss']:.4f}  NDCG@10 {now['val/NDCG@10']:.4f}",
        flush=True,
    )


def main(argv: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Train the model, test it and two baselines, and print a table; return the test values by model and metric."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="u.data or a sequence file; without it data are generated")
    parser.add_argument("--out", type=Path, help="folder for the best checkpoint; without it none is kept")
    parser.add_argument("--checkpoint", type=Path, help="test this one, which --out kept, instead of training")
    parser.add_argument("--devices", type=int, default=1, help="GPUs or, without any, processes")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-len", type=int, default=50, help="items that the model reads")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; keep to the cores that are free")
    args = parser.parse_args(argv)

    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers")  # batches are cheap to make
    warnings.filterwarnings("ignore", message=".*LeafSpec", module="pytorch_lightning")  # Lightning 2.6 on torch 2.13
    # Lightning warns that its sampler repeats users so that all processes have equally many: the callback drops them
    warnings.filterwarnings("ignore", message="Using `DistributedSampler` with the dataloaders")
    torch.set_num_threads(args.threads)
    pl.seed_everything(args.seed)

    try:
        sequences = read(args.data) if args.data else generate()
    except (OSError, ValueError) as error:
        parser.error(str(error))
    data = LeaveOneOut.split(sequences)
    source, events = args.data or "generated data", sum(map(len, sequences))
    say(f"{source}: {len(sequences):,} users, {data.num_items:,} items, {events:,} events", flush=True)

    pieces = [piece for items in data.train for piece in cut(items, args.max_len)]
    train = DataLoader(pieces, args.batch_size, shuffle=True, collate_fn=pad)
    for_evaluation = partial(DataLoader, batch_size=args.batch_size, collate_fn=partial(collate, max_len=args.max_len))
    test = for_evaluation(data.test)

    model = SASRec(data.num_items, args.max_len, args.dim, args.lr)
    # padding_idx: row 0 of the item embeddings pads sequences, so column 0 of the scores is never a candidate.
    # overlap: a target that the user had before stays a candidate, though the rest of the history does not ("keep", as
    # in SASRec and RecBole). It matters where users repeat items, so not on MovieLens or the generated data.
    metrics = RecMetricsCallback(["HR", "NDCG", "MRR"], k=[5, 10, 20], padding_idx=PAD, overlap="keep")
    lines = LambdaCallback(on_train_epoch_end=tell)
    bars = sys.stdout.isatty() and sys.stderr.isatty()  # in a file, every update of a bar would be a new line
    results, errors = {}, {}
    with tempfile.TemporaryDirectory() as temporary:
        best = ModelCheckpoint(
            args.out or temporary,
            filename="epoch{epoch}-ndcg{val/NDCG@10:.4f}",
            auto_insert_metric_name=False,
            monitor="val/NDCG@10",
            mode="max",
        )
        trainer = pl.Trainer(
            max_epochs=args.epochs,
            devices=args.devices,
            callbacks=[metrics, *([] if args.checkpoint else [best]), *([] if bars else [lines])],
            enable_checkpointing=not args.checkpoint,
            enable_progress_bar=bars,
            logger=False,
            enable_model_summary=False,
        )
        if not args.checkpoint:
            trainer.fit(model, train, for_evaluation(data.validation))
        for name, module in {"random": Random(data), "popularity": Popularity(data), "SASRec": model}.items():
            checkpoint = (args.checkpoint or "best") if module is model else None
            (logged,) = trainer.test(module, test, ckpt_path=checkpoint, verbose=False)
            results[name] = {key.removeprefix("test/"): value for key, value in logged.items()}
            tested = metrics.collections["test"]
            errors[name] = {key: tested[key].standard_error().item() for key in results[name]}

    say(f"\nTest, {tested['HR@10'].num_users:,} users, all items but their history; ± standard error")
    say(" " * 8 + "".join(f"{name:>18}" for name in results))
    for key in results["SASRec"]:
        cells = (f"{results[name][key]:.4f} ± {errors[name][key]:.4f}" for name in results)
        say(f"{key:8}" + "".join(f"{cell:>18}" for cell in cells))
    return results


if __name__ == "__main__":
    main()
