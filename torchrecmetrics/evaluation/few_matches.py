"""Ask about lists and a ground truth of which nothing, or hardly a user, meets."""

from __future__ import annotations

import math

import torch

from torchrecmetrics.core.checks import warn_caller
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.matching import called
from torchrecmetrics.evaluation.recommended_lists import RecommendedLists

_FEW = 10
"""Number of users below which nothing is asked: lists of a few users may well hit nothing."""
_CHANCE = 1e-6
"""Chance of random lists to hit nothing below which no accident explains it."""
_MOST = 0.9
"""Share of the users of both sides who do not meet that is asked about."""


def check_users(num_users: int, num_unserved: int, num_left_out: int) -> None:
    """Warn if most users of the ground truth have no list, while most lists are of other users."""
    num_lists = num_users - num_unserved + num_left_out
    few_meet = num_unserved >= _MOST * num_users and num_left_out >= _MOST * num_lists
    if few_meet and min(num_users, num_lists) >= _FEW:
        warn_caller(
            f"{num_unserved} of {num_users} users of target have no list, while {num_left_out} of {num_lists} lists "
            "are of users without ground truth: are these ids of one kind, and of one split?"
        )


def check_hits(lists: RecommendedLists, target: Interactions) -> None:
    """Ask about lists of which no item is relevant to its user: a warning, from ten users on.

    Args:
        lists: the lists.
        target: the ground truth, with the row numbers of the lists.

    Raises:
        ValueError: if random lists of the items of both sides would hit nothing with a chance below one in a million.
    """
    lengths = lists.lengths * (target.host_degree > 0)
    num_users = int((lengths > 0).sum())
    if num_users < _FEW:
        return
    num_distinct = len(torch.unique(torch.cat([lists.items.long(), target.items.long()])))
    mean_hits = float((lengths * target.host_degree).sum()) / num_distinct
    pair = f"{called(lists.item_ids, int(lists.items[0]))} and {called(lists.item_ids, int(target.items[0]))}"
    text = (
        f"no list of {num_users} users holds an item that is relevant to its user; items of {lists.entries.what} and "
        f"of target are such as {pair}"
    )
    if math.exp(-mean_hits) < _CHANCE:
        raise ValueError(f"{text}; random lists would hold {mean_hits:.0f}: are these ids of one kind?")
    warn_caller(f"{text}: are these ids of one kind?")
