"""`Recommendations`: the result of `recommend`, the best items of each user with their scores."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchrecmetrics.core.extras import frame_of
from torchrecmetrics.tables.vocabulary import Vocabulary


class Recommendations(tuple[Tensor, Tensor]):
    """Result of `recommend`: a tuple, `ids, scores = recommendations`, that also holds the users.

    `ids` int64 [n, k] are row numbers of items, best first, -1 = no candidate; `scores` [n, k] are the items' scores;
    `users` int64 [n] are row numbers of users. `user_ids` and `item_ids` are the ids of these row numbers, or None if
    neither the history (`exclude`) has vocabularies nor `with_ids` gave them.
    """

    users: Tensor
    user_ids: Vocabulary | None
    item_ids: Vocabulary | None

    def __new__(
        cls,
        ids: Tensor,
        scores: Tensor,
        users: Tensor,
        user_ids: Vocabulary | None = None,
        item_ids: Vocabulary | None = None,
    ) -> Recommendations:
        """Return the tuple (ids, scores), with users and vocabularies as attributes."""
        made = super().__new__(cls, (ids, scores))
        made.users, made.user_ids, made.item_ids = users, user_ids, item_ids
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (*self, self.users, self.user_ids, self.item_ids)

    @property
    def ids(self) -> Tensor:
        """Row numbers of items, int64 [n, k]."""
        return self[0]

    @property
    def scores(self) -> Tensor:
        """Scores of the items, [n, k]."""
        return self[1]

    def with_ids(self, user_ids: Any = None, item_ids: Any = None) -> Recommendations:
        """Return the recommendations with other vocabularies; None = keep the present vocabulary.

        Raises:
            ValueError: for a vocabulary that is too short.
        """
        users = self.user_ids if user_ids is None else Vocabulary.named("user_ids", user_ids)
        items = self.item_ids if item_ids is None else Vocabulary.named("item_ids", item_ids)
        for name, ids, rows in (("user_ids", users, self.users), ("item_ids", items, self.ids)):
            if ids is not None and rows.numel() and len(ids) <= int(rows.max()):
                raise ValueError(f"{name} holds {len(ids)} ids, but row {int(rows.max())} is recommended")
        return Recommendations(self.ids, self.scores, self.users, user_ids=users, item_ids=items)

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns user, item, rank (from 1) and score, a row per recommended item; ids where known."""
        ids, scores = self.ids.cpu(), self.scores.cpu()
        row, column = (ids >= 0).nonzero(as_tuple=True)
        users, items = self.users.cpu()[row], ids[row, column]
        return {
            "user": users.tolist() if self.user_ids is None else self.user_ids.ids(users),
            "item": items.tolist() if self.item_ids is None else self.item_ids.ids(items),
            "rank": (column + 1).tolist(),
            "score": scores[row, column].tolist(),
        }

    def to_frame(self, library: str = "pandas") -> Any:
        """Return the columns of `to_dict` as a frame of "pandas", "polars" or "pyarrow".

        Raises:
            ImportError: where that library is not installed.
        """
        return frame_of(library, self.to_dict())
