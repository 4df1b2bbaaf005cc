"""`CuredError`: an error that proposes options, which the command line writes as flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Cure(NamedTuple):
    """A fix that an error proposes: a keyword argument or a call."""

    text: str
    """Python code, as written in the error's text."""
    name: str
    """Name of the option, or of the function that is called."""
    values: Mapping[str, Any] = {}
    """The option's value, or the call's arguments, by name; `...` = only the caller knows the value."""

    @classmethod
    def option(cls, name: str, value: Any) -> Cure:
        """Return the cure `name=value`."""
        return cls(f"{name}={'...' if value is ... else repr(value)}", name, {name: value})

    def __str__(self) -> str:
        return self.text


class CuredError(ValueError):
    """An error with the cures that its text names."""

    def __init__(self, text: str, *cures: Cure) -> None:
        super().__init__(text)
        self.cures = cures

    def __reduce__(self) -> tuple[Any, ...]:
        return CuredError, (str(self), *self.cures)

    def written(self, write: Callable[[Cure], str]) -> str:
        """Return the text with each cure replaced by `write(cure)`."""
        text = str(self)
        for cure in sorted(self.cures, key=lambda cure: -len(cure.text)):
            text = text.replace(cure.text, write(cure))
        return text


def joined(errors: list[CuredError]) -> CuredError:
    """Return one error with the texts of several."""
    return CuredError("\n".join(map(str, errors)), *(cure for error in errors for cure in error.cures))
