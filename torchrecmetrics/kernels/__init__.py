"""How the counts behind every rank are made: scores in, numbers of better and of equal items out.

    count(scores, thresholds, *, depth=None, floors=(), masks=(), removed=None) -> Counts

One contract, whatever the device and the strategy: exact integers, the same from all of them. Nothing here knows of
metrics, targets' ids, ties or padding.

- `scores` [B, I] in any float dtype and layout, read and never written. NaN is no candidate; `+inf` is one.
- `thresholds` [B, T], T >= 1, in the scores' dtype: scores to be placed, above -inf. NaN = not asked for: any answer.
- `depth`: places that matter; `better` and `equal` are exact where `better < depth`, elsewhere `better >= depth` is all
  that holds. None = exact everywhere.
- `floors`: finite numbers, the same for every row: how many candidates are >= each.
- `masks`: bool [I] or [B, I], True = no candidate.
- `removed` [B, H], ascending: scores of further items that are no candidates, taken off the counts (-inf = none).
"""

from torchrecmetrics.kernels.eager import Counts, count

__all__ = ["Counts", "count"]
