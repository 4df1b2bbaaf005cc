"""Which columns of a table have which role, and questions about columns that the caller did not name."""

from __future__ import annotations

from collections.abc import Iterable
from types import EllipsisType

from torchrecmetrics.tables.frames import Role, Roles, Source, arrow, check_names, distinct


def roles_of(
    source: Source,
    user: str,
    item: str,
    time: str | EllipsisType | None = None,
    value: str | EllipsisType | None = None,
    reads_gains: bool = True,
) -> Roles:
    """Return the names of the columns to read; `...` = the caller named no column.

    Args:
        source: the table.
        user: column of users, unless the format fixes it.
        item: column of items, unless the format fixes it.
        time: column of times; `...` = the one that the format fixes, or none.
        value: column of values; `...` = the one that the format fixes, or none.
        reads_gains: False if all positive values are alike to the caller.

    Raises:
        ValueError: if the caller named no column of values, but a column may say which rows are relevant.
    """
    user, item = source.known.get("user", user), source.known.get("item", item)
    time = source.known.get("time") if time is ... else time
    if value is not ...:
        return Roles(user, item, time=time, value=value)
    roles = Roles(user, item, time=time, value=source.known.get("value"))
    role: Role = "gains" if reads_gains else "relevance"
    for question in () if roles.value is not None else questions(source, (role,), roles).values():
        raise ValueError(question)
    return roles


def questions(source: Source, unnamed: Iterable[Role], roles: Roles) -> dict[Role, str]:
    """Return an error for each role that other columns may have, with their content; see `data.roles`.

    Args:
        source: the table.
        unnamed: the roles, for which the caller named no column.
        roles: names of the columns that have a role.

    Raises:
        ValueError: if there is no column of users or of items, or if one column has two roles.
    """
    wanted = tuple(unnamed)
    if not source.names or not wanted:
        return {}  # no table, which `read` says
    check_names([roles.user, roles.item], source.names, source.what)
    named = {*distinct(roles)} - {roles.user, roles.item}
    if not {*source.names} - {*roles}:
        return {}
    arrow()  # before `data.roles`, which imports pyarrow
    from torchrecmetrics.data.roles import question

    table = source.all_columns()
    table = table.select([name for name in table.column_names if name not in named])
    texts = {role: question(source.what, role, table, roles.user, roles.item) for role in wanted}
    return {role: text for role, text in texts.items() if text is not None}
