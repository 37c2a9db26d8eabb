"""Errors that speak to the user: what is wrong, and the way out."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Told(Exception):
    """An error with a hint; as text it is both."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.message, self.hint)  # between processes


class UserError(Told, ValueError):
    """A mistake in what the user asked for."""


class Failure(Told, RuntimeError):
    """Something went wrong that nobody asked for."""


class Interrupted(Told, KeyboardInterrupt):
    """The user stopped a run; the hint says how it goes on."""


@contextmanager
def naming(path: object) -> Iterator[None]:
    """Have the system's complaint say which file it is about."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def close(word: str, known: Iterable[str]) -> str | None:
    """The known word that is near, if one is."""
    words = list(known)
    begun = [other for other in words if len(word) > 2 and other.startswith(word)]
    found = begun or difflib.get_close_matches(word, words, n=1, cutoff=0.65)
    return found[0] if found else None


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint with the known word that is near, or with all that are known."""
    words = list(known)
    found = close(word, words)
    return f"did you mean {found}?" if found else f"known are {', '.join(words)}."
