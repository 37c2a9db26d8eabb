"""A method inside of something that changes a part of it."""

from dataclasses import dataclass

from pfed1bs.engine.contract import Algorithm


@dataclass(frozen=True)
class Around:
    """What a subclass does not say is as the method says it."""

    method: Algorithm

    def __getattr__(self, name: str) -> object:
        if name == "method":  # not yet there, while a copy is made
            raise AttributeError(name)
        return getattr(self.method, name)
