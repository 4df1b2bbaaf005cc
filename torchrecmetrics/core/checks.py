"""Argument checks and their messages: dtypes, shapes, devices, k; and `Checks`, which rejects rows with bad values."""

from __future__ import annotations

import difflib
import importlib
import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor, peek_interpreter_stack

Validation: TypeAlias = bool | Literal["deferred"]
"""True: bad values raise at once on the CPU, else in `compute`; "deferred": in `compute` everywhere; False: never."""

#: Kinds of violations. `RankedRows.violations` counts the bad rows in this order.
VIOLATIONS = {
    "target_range": "with a target id beyond the last item",
    "target_repeat": "with an item listed twice in target",
    "labels": "whose labels are not pairs of a row of the batch and an item >= 0",
    "target_width": "with more relevant items than max_relevant",
    "offsets": "with invalid offsets (they must start at 0, never descend and end at len(values); no row may exceed "
    "max_length)",
    "gains": "with a gain that is NaN or infinite",
    "negative_label": "with a label below 0 (use 0 for not relevant; for penalties pass item ids with gains=)",
    "exclude_range": "with an excluded id beyond the last item",
    "exclude_matrix": "whose exclude, in the scores' shape, holds 0 and 1 alone (pass a 0/1 matrix as exclude.bool(); "
    "if these are ids, pad them with -1)",
    "overlap": "with a target that is also excluded",
    "scores": "with a score that is NaN or +inf",
    "list_repeat": "with an item recommended twice",
    "list_order": "whose scores rise along the list, or hold NaN or +inf",
    "list_short": "with fewer than k known ranks (excluded and repeated items leave the list: recommend that many "
    "more, or pass complete=True)",
    "target_whole": "whose target holds every item in every row (for grades pass target.float(), for a 0/1 matrix "
    "target.bool(); if it is ids of all items, add a column of -1)",
    "ranks": "with invalid ranks (NaN, between 0 and 1, repeated, such as the k + 1 of misses without depth=k, beyond "
    "num_ranked, or marked invalid; or 0 or less in [B] or [B, 1], since ranks start at 1: Ranks(miss=, "
    "zero_based=, padding=); pass item ids as Lists, flags of hits as Hits)",
    "hits": "with more hits than relevant items (num_relevant counts found and missed ones; only the first rank of a "
    "repeated item is a hit: hits & (hits.cumsum(1) <= 1))",
    "catalogue_range": "with an item in the list or history that is not in the catalogue",
    "groups": "with an unknown group",
    "weights": "with a weight that is negative, NaN or too large",
    "missing": "with a target that is not a candidate (missing='error')",
    "session": "of sessions whose entries differ in weight or group",
    "negatives": "without a negative (a positive alone is always a hit)",
    "shard_rows": "of a batch whose targets, gains or row_ids differ between processes",
    "empty": "without a relevant item (empty_target_action='error')",
}
SCORE_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
ID_DTYPES = (torch.int64, torch.int32, torch.int16)
NAMES_OF_OTHERS = {"top_k": "k", "topk": "k", "preds": "scores", "pred_scores": "scores", "y_true": "target"}
"""Names of arguments in torchmetrics and scikit-learn, with ours."""
_MAX_COMPARED, _MAX_SHOWN, _SHOWN_LENGTH = 10_000, 50, 80
"""Maximum numbers of names that a message compares and shows, and of characters per name."""


class Checks:
    """Collector of the rows of one batch whose values violate a check; `finish` is called once, after all checks.

    On the CPU (`validate_args=True`) `finish` raises an error that describes the first bad row. Elsewhere, or with
    "deferred", nothing waits for the device: bad rows are left out and counted, and the metric raises in `compute`.
    """

    def __init__(
        self, validate_args: Validation, device: torch.device, num_rows: int, own_rows: Tensor | None = None
    ) -> None:
        self.enabled: bool = validate_args is not False
        self.at_once: bool = validate_args is True and device.type == "cpu"
        self.device: torch.device = device
        self.num_rows: int = num_rows
        self.own_rows: Tensor | None = own_rows
        """Bool [B]: rows whose violations this process counts, if several processes have the same rows; None = all."""
        self._violations: list[tuple[str, Tensor, Callable[[int], str]]] = []

    def reject(self, kind: str, rows: Tensor, detail: Callable[[int], str]) -> None:
        """Reject the rows in which `rows`, bool [B] or [B, n], is True; `detail(row)` describes the first of them."""
        if self.enabled:
            self._violations.append((kind, rows, detail))

    def finish(self) -> tuple[Tensor | None, Tensor | None]:
        """Raise, or return a mask of the valid rows, bool [B], and the number of bad rows per kind, int64 [kinds].

        Both are None if no check was made, or if all rows passed on the CPU.

        Raises:
            ValueError: on the CPU, if a row was rejected; names the first kind of violation and its first row.
        """
        if not self._violations:
            return None, None
        if self.at_once:
            if torch.cat([rows.reshape(-1) for _, rows, _ in self._violations]).count_nonzero():
                self._raise()
            return None, None
        by_kind: dict[str, Tensor] = {}
        for kind, rows, _ in self._violations:  # a row counts once per kind
            rows = any_of_row(rows)
            by_kind[kind] = by_kind[kind] | rows if kind in by_kind else rows
        masks = torch.stack([*by_kind.values()])
        counted = masks if self.own_rows is None else masks & self.own_rows
        numbers = dict(zip(by_kind, counted.sum(1).unbind(), strict=True))
        none = torch.zeros((), dtype=torch.int64, device=self.device)
        return ~masks.any(0), torch.stack([numbers.get(kind, none) for kind in VIOLATIONS])

    def _raise(self) -> None:
        for kind, rows, detail in self._violations:
            rows = any_of_row(rows)
            if number := int(rows.count_nonzero()):
                first_row = int(rows.nonzero()[0])
                raise ValueError(f"{in_words(number, len(rows))} {VIOLATIONS[kind]}: {detail(first_row)}")


def any_of_row(mask: Tensor) -> Tensor:
    """Return which rows of a mask [B] or [B, n] hold True, bool [B]."""
    if mask.dim() == 1:
        return mask
    return mask[:, 0] if mask.shape[1] == 1 else mask.any(1)


def check_k(k: Any, name: str = "k", least: int = 1) -> int:
    """Return `k` as an int from `least` to 2^53 - 1, which float64 holds exactly, or raise."""
    if isinstance(k, bool):
        raise TypeError(f"{name} must be an integer >= {least}, got {k!r}")
    try:
        value = operator.index(k)
    except TypeError:
        cure = '; several cut-offs go to RecMetricCollection(["HR"], k=[5, 10])' if isinstance(k, (list, tuple)) else ""
        raise TypeError(f"{name} must be an integer >= {least}, got {k!r} ({type(k).__name__}){cure}") from None
    if not least <= value < 2**53:
        accepted = f"at least {least}" if value < least else "below 2^53, where float64 begins to skip whole numbers"
        raise ValueError(f"{name} must be {accepted}, got {value}")
    return value


MAX_COUNTED = 2**28
"""Largest number of int64 counts in a state, 2 GB."""


def check_counted(number: int, name: str) -> int:
    """Return `number`, the number of counts in a state, or raise if it is above 2^28."""
    if number > MAX_COUNTED:
        raise ValueError(f"{name} must be at most 2^28, since the state has one count per number, got {number}")
    return number


def check_padding_idx(padding_idx: Any) -> int | None:
    """Return `padding_idx` as an int >= 0, or None, or raise."""
    if padding_idx is None:
        return None
    if isinstance(padding_idx, bool) or not hasattr(padding_idx, "__index__"):
        raise TypeError(f"padding_idx must be an item id, got {padding_idx!r}")
    if operator.index(padding_idx) < 0:
        raise ValueError(f"padding_idx must be an item id >= 0 (negative ids are padding anyway), got {padding_idx}")
    return operator.index(padding_idx)


def check_score_threshold(threshold: Any) -> float | None:
    """Return `threshold` as a finite float, or None, or raise."""
    if threshold is None:
        return None
    if isinstance(threshold, (bool, str)) or not hasattr(threshold, "__float__"):
        raise TypeError(f"score_threshold must be a number, got {threshold!r}")
    if not math.isfinite(threshold):
        raise ValueError(f"score_threshold must be finite, got {threshold!r}")
    return float(threshold)


def check_scores(scores: Tensor, dims: int) -> None:
    """Raise unless `scores` is a strided tensor of an accepted float dtype: [rows, items] (2 dims) or [entries] (1)."""
    check_tensor("scores", scores)
    check_strided("scores", scores, "-torch.inf")
    if scores.dtype not in SCORE_DTYPES:
        if scores.is_complex():
            cure = "; items are ordered by a real number: scores.real or scores.abs()"
        elif scores.is_floating_point():
            cure = "; pass scores.float()"
        else:
            cure = "; for lists of recommended item ids use Lists(item_ids, target)" if dims == 2 else ""
            cure += "; for whole-number scores pass scores.double()"
        raise TypeError(f"scores must be float64, float32, float16 or bfloat16, got {describe(scores)}{cure}")
    if scores.dim() != dims or (dims == 2 and scores.shape[1] == 0):
        accepted = "[rows, items] with at least one item" if dims == 2 else "[entries]"
        hints = {
            1: "; one row: scores[None]; flat rows of sessions: update(Sessions(scores, labels, indexes=session_ids)); "
            "positives and their negatives: update(Negatives(positive, negative))",
            3: "; for one position per sequence pass scores[:, -1]",
        }
        hint = hints.get(scores.dim(), "") if dims == 2 else ""
        if dims == 1 and scores.shape[1:] == (1,):
            hint = "; pass scores[:, 0]"
        raise ValueError(f"scores must be {accepted}, got shape {list(scores.shape)}{hint}")


def check_ids(name: str, ids: Any) -> None:
    """Raise unless `ids` is a strided tensor of int64, int32 or int16."""
    interactions = None if isinstance(ids, Tensor) else as_interactions(name, ids)
    if interactions is not None:
        raise TypeError(f"{name} must be a tensor, got {describe(ids)}: pass {interactions}.select(user_ids).items")
    uneven = ", or for lists of uneven length torch.nn.utils.rnn.pad_sequence(..., batch_first=True, padding_value=-1)"
    check_tensor(name, ids, uneven)
    check_strided(name, ids)
    if ids.dtype not in ID_DTYPES:
        is_mask = ids.dtype == torch.uint8 and name in ("exclude", "target")
        mask = f": ids are {name}.long(), a mask is {name}.bool()" if is_mask else ""
        raise TypeError(f"{name} must hold int64, int32 or int16, got {describe(ids)}{mask}")


def check_tensor(name: str, value: Any, otherwise: str = "") -> None:
    """Raise unless `value` is a tensor; `otherwise` is one more cure at the end of the message."""
    if isinstance(value, (torch.return_types.topk, torch.return_types.sort)):
        kind = type(value).__name__
        cure = f"Lists({kind}.indices, target)" if name == "scores" else f"{kind}.indices"
        raise TypeError(f"{name} must be a tensor, got the (values, indices) of torch.{kind}: pass {cure}")
    if isinstance(value, tuple) and hasattr(value, "items"):  # a result of Interactions.select
        raise TypeError(f"{name} must be a tensor, got {describe(value)}: pass {name}.items")
    if hasattr(value, "codes") and hasattr(value, "of"):
        raise TypeError(f"{name} must be a tensor, got {describe(value)}: pass {name}=groups.of(train)[user_ids]")
    if (
        hasattr(value, "columns")
        and name == "scores"
        and {"user", "user_id", "item", "item_id"} & {*map(str, value.columns)}
    ):
        cure = "rows of user, item and score go to trm.evaluate_lists(metrics, lists, target=...)"
        raise TypeError(f"{name} must be a tensor, got {describe(value)}: {cure}")
    if not isinstance(value, Tensor):
        array = f"{name}.to_numpy()" if hasattr(value, "to_numpy") else name  # a frame of pandas or polars
        array += _conversion(name, value)
        raise TypeError(f"{name} must be a tensor, got {describe(value)}: torch.as_tensor({array}){otherwise}")


_FILLS = {"scores": "-torch.inf", "gains": "0", "weights": "0"}
"""Entry that leaves out a masked entry of an argument of floats; of ids and ranks it is -1."""


def _conversion(name: str, value: Any) -> str:
    """Return the method call, for a message, without which `torch.as_tensor` drops the mask of an array, or raises."""
    if hasattr(value, "filled"):
        return f".filled({_FILLS.get(name, -1)})"
    if str(getattr(value, "dtype", None)) == "object":
        return ".astype('float64')" if name in _FILLS else ".astype('int64')"
    return ""


def is_dense(target: Any) -> bool:
    """Return True if a target is a dense tensor: bool or float with one column per item; ids are integers."""
    return (
        isinstance(target, Tensor)
        and not target.is_nested
        and (target.dtype == torch.bool or target.is_floating_point())
    )


def plain(tensor: Tensor) -> Tensor:
    """Return the tensor behind a subclass such as PyG's `EdgeIndex` and `Index`, whose in-place operations differ."""
    if type(tensor) is Tensor:
        return tensor
    unwrap: Callable[[], Tensor] | None = getattr(tensor, "as_tensor", None)
    return tensor.as_subclass(Tensor) if unwrap is None else unwrap()


def as_interactions(name: str, value: Any) -> str | None:
    """Return code, for a message, that makes `Interactions` of a file or a container of users x items; or None."""
    if isinstance(value, Tensor):
        if value.is_nested:
            return f"Interactions.from_jagged({name}, num_items=...)"
        if value.layout != torch.strided:
            return f"Interactions.from_scipy({name})"
        return f"Interactions.from_dense({name})" if value.dim() == 2 and is_dense(value) else None
    if isinstance(value, (str, Path)):
        return f"Log.from_file({str(value)!r}).to_interactions()"
    if isinstance(value, Mapping):
        return f"Interactions.from_dict({name}, user_ids=..., item_ids=...)"
    if hasattr(value, "to_edge_index"):
        return name
    if hasattr(value, "tocoo"):
        return f"Interactions.from_scipy({name})"
    if hasattr(value, "columns") and len(getattr(value, "shape", ())) == 2:
        return f"Interactions.from_columns({name}['user'], {name}['item'], num_users=..., num_items=...)"
    return None


def warn_caller(message: str) -> None:
    """Warn at the line that called this package."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals["__name__"].partition(".")[0] in (
        "torchrecmetrics",
        "torch",
        "torchmetrics",
    ):
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module, line = frame.f_globals["__name__"], frame.f_lineno
    warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, line, module, registry)


def check_strided(name: str, tensor: Tensor, padding: str = "-1") -> None:
    """Refuse nested and sparse tensors, DTensors, and tensors inside torch.func; `padding` is named in a message."""
    is_compiling = torch.compiler.is_dynamo_compiling()  # which cannot compile the look-ups that follow
    if not is_compiling and (is_functorch_wrapped_tensor(tensor) or peek_interpreter_stack() is not None):
        raise TypeError(
            f"{name} is given inside torch.func (grad, vmap, jvp, ...), whose tensors a metric cannot keep. Return "
            f"{name} from the function (grad, jvp: has_aux=True) and call update outside, with {name}.detach()"
        )
    if type(tensor) is not Tensor and hasattr(tensor, "full_tensor"):
        raise TypeError(
            f"{name} is a DTensor: pass {name}.to_local() if each process holds its own rows (Shard(0)), and "
            "scores with sharded columns (Shard(1)) as ItemShard(scores, target, offset=, num_items=); or pass "
            f"{name}.full_tensor(), all rows on every process (make the metric with sync_on_compute=False)"
        )
    if tensor.is_nested:
        raise TypeError(f"{name} is a nested tensor: pass torch.nested.to_padded_tensor({name}, {padding})")
    if tensor.layout != torch.strided:
        ids = "" if tensor.is_floating_point() else "this batch's item ids, or "
        raise TypeError(f"{name} is sparse ({tensor.layout}): pass {ids}{name}.to_dense()")


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Raise unless `tensor` is on `device`, that of the scores or lists."""
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, but the scores (or lists) are on {device}")


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def in_words(rows: int, of: int | None = None) -> str:
    """Return a number of rows in words for a message: "3 rows", or with `of` "3 of 5 rows"."""
    counted = rows if of is None else of
    return f"{rows}{'' if of is None else f' of {of}'} {'row' if counted == 1 else 'rows'}"


def extra(name: str) -> str:
    """Return the command that installs an extra of this package, for a message."""
    return f"pip install 'torchrecmetrics[{name}]', or in a copy of the repository pip install -e '.[{name}]'"


def nearest(name: object, known_names: Iterable[object]) -> str:
    """Return the end of a message about an unknown name: the closest of `known_names`, and a list of all."""
    known = [str(known_name)[:_SHOWN_LENGTH] for known_name in known_names]
    ours = NAMES_OF_OTHERS.get(str(name))
    close = [ours] if ours in known else difflib.get_close_matches(str(name), known[:_MAX_COMPARED], n=1)
    if name == "weights" and not close:
        return ": pass weights of rows to update(..., weights=) of a metric or a RecMetricCollection"
    more = f" and {len(known) - _MAX_SHOWN} more" if len(known) > _MAX_SHOWN else ""
    return f"{f'; did you mean {close[0]!r}?' if close else '.'} There are {', '.join(known[:_MAX_SHOWN])}{more}"


def describe(value: object) -> str:
    """Return a description of a value for a message: dtype and shape of a tensor, else its type."""
    if isinstance(value, Tensor) and value.is_nested:
        return "a nested tensor"  # some nested tensors have no shape that can be read
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {list(value.shape)}"
    return f"{type(value).__name__}"


def shown(values: Tensor) -> str:
    """Return the first 8 entries of a row as text, with the number of further entries, for a message."""
    return str(values[:8].tolist()) + ("" if len(values) <= 8 else f" and {len(values) - 8} more")


def check_group_names(names: Any) -> tuple[str, ...]:
    """Return the names of groups, or raise for names that cannot be parts of keys.

    Raises:
        TypeError: if there are not several names.
        ValueError: for no name, a repeated name, or a name that is empty or contains '/'.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        cure = "groups.names" if hasattr(names, "names") else "['cold', 'warm']"
        raise TypeError(f"names of groups must be several strings, such as {cure}, got {describe(names)}")
    words = tuple(names)
    for name in words:
        if not isinstance(name, str) or not name or "/" in name:
            raise ValueError(f"the name of a group must be a string without '/', got {name!r}")
        if words.count(name) > 1:
            raise ValueError(f"two groups have the name {name!r}")
    if not words:
        raise ValueError("groups needs at least one name")
    return words


_MAKERS = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "table"}
_NULLABLE = {  # types that hold missing entries, by the kind of a column
    "pandas": {"whole numbers": "Int64", "floats": "float64", "text": "object"},
    "polars": {"whole numbers": "Int64", "floats": "Float64", "text": "String"},
    "pyarrow": {"whole numbers": "int64", "floats": "float64", "text": "string"},
}


def frame_of(library: str, columns: dict[str, list[Any]], gaps: Mapping[str, str] | None = None) -> Any:
    """Make a frame of columns.

    Args:
        library: "pandas", "polars" or "pyarrow".
        columns: lists of entries by column name.
        gaps: kind of each column that may hold None, "whole numbers", "floats" or "text"; it fixes the column's type.

    Raises:
        ImportError: if the library is not installed.
        ValueError: for any other library.
    """
    check_choice("library", library, tuple(_MAKERS))
    try:
        module = importlib.import_module(library)
    except ImportError as error:
        raise ImportError(f"{library} is not installed: pip install {library}") from error
    types = {name: _NULLABLE[library][kind] for name, kind in (gaps or {}).items()}
    if library == "pyarrow":
        return module.table({n: module.array(c, types[n]) if n in types else c for n, c in columns.items()})
    frame = getattr(module, _MAKERS[library])(columns)
    if library == "pandas":
        return frame.astype(types)
    return frame.cast({name: getattr(module, type_) for name, type_ in types.items()})


def needed(module: str, purpose: str) -> Any:
    """Import a module of the extra `frames`.

    Raises:
        ImportError: if the module is not installed; names its purpose and the extra that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{purpose} needs {module.partition('.')[0]}: {extra('frames')}") from error


def ids_beside_rows(role: str, has: str, lacks: str, call: str) -> ValueError:
    """Return the error for an argument without ids of a role beside one with ids, which `call` gives to both."""
    return ValueError(
        f"{has} has {role}_ids, {lacks} has none: row 5 could mean two {role}s. If their rows are the same, say so: "
        f"{call}; if not, make {lacks} with ids, too (from_frame)"
    )
