"""The local work of a method as one recorded graph, for methods whose work is the same in every round."""

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn, cast

import torch
from torch import Tensor

from pfed1bs.core.cuda import sent
from pfed1bs.core.graphs import Graphs
from pfed1bs.data.batches import ClientBatches
from pfed1bs.engine.contract import Algorithm, Batches, Cohort, State, under, within
from pfed1bs.engine.pending import Pending, Unknown
from pfed1bs.wire.messages import Message

Asked = list[tuple[str, int]]  # names and numbers of batches


class Recorder:
    """Calls `local`; on a GPU the third call of its kind is recorded and later ones are replayed.

    Methods are pure, so tensors aside their work can depend only on the cohort. On a GPU it is first shown a cohort
    that knows how many clients and samples there are and the sketches of its round, no more: a method that asks for
    the round itself, a client's number or a random draw is not recorded, nor is one that waits for the device. It runs
    step by step.
    """

    def __init__(self) -> None:
        self._graphs = Graphs()
        self._asked: dict[bool, Asked | None] = {}  # by whether anything was received; None: it depends on the round
        self._pending: dict[torch.device, Pending] = {}

    @property
    def asked(self) -> Asked:
        """Which batches the last rounds took."""
        return list(dict.fromkeys(one for asked in self._asked.values() for one in asked or []))

    def foresee(self, round: int) -> None:
        """Have the sketches of a later round filled in, after all that the device was told before."""
        for pending in self._pending.values():
            pending.become(round)

    def __call__(
        self, algorithm: Algorithm, clients: State, received: Message, cohort: Cohort, batches: Batches
    ) -> tuple[State, Message]:
        """algorithm.local(clients, received, cohort, batches)."""
        if not clients["w"].is_cuda or not isinstance(batches, ClientBatches):
            return algorithm.local(clients, received, cohort, batches)
        kind, device = bool(received), clients["w"].device
        if kind not in self._asked or self._asked[kind] is not None:
            pending = self._pending.setdefault(device, Pending(device)).become(cohort.round)
            sized = cast(Cohort, _Sized(len(cohort.ids), sent(cohort.sizes, device), pending))
            try:
                return self._local(algorithm, clients, received, sized, batches)
            except Unknown:
                self._asked[kind] = None
        return algorithm.local(clients, received, cohort, batches)

    def _local(
        self, algorithm: Algorithm, clients: State, received: Message, sized: Cohort, batches: ClientBatches
    ) -> tuple[State, Message]:
        """The same for a cohort that may be any: as it is, listening to which batches are asked for, or recorded."""
        asked = self._asked.get(bool(received))
        if asked is not None:
            drawn = _drawn(batches, asked)
            given = {**under("clients/", clients), **under("received/", received), **drawn, "sizes": sized.sizes}

            def work(own: State) -> State:
                mine, heard = within("clients/", own), within("received/", own)
                replayed = cast(Cohort, _Sized(len(sized.ids), own["sizes"], cast(Pending, sized.round)))
                state, said = algorithm.local(mine, heard, replayed, _replayed(batches, own))
                return {**under("state/", state), **under("said/", said)}

            key = (batches.inputs.data_ptr(), batches.labels.data_ptr(), batches.steps)
            found = self._graphs(key, work, given)
            if found is not None:
                return within("state/", found), within("said/", found)
        asked = []
        done = algorithm.local(clients, received, sized, _listening(batches, asked))
        self._asked[bool(received)] = asked
        return done


class _Sized:
    """A cohort of which only the numbers of clients and samples are known, and a round that stands for all of them."""

    def __init__(self, clients: int, sizes: Tensor, round: Pending) -> None:
        self.ids, self.sizes, self.round = _Ids(clients), sizes, round

    def __getattr__(self, name: str) -> NoReturn:
        raise Unknown(f"the cohort's {name} is another one in every round")


class _Ids:
    """As many clients, of which nobody knows who they are."""

    def __init__(self, clients: int) -> None:
        self._clients = clients

    def __len__(self) -> int:
        return self._clients

    def __getattr__(self, name: str) -> NoReturn:
        raise Unknown(f"the clients' numbers are others in every round, and {name} asks for them")

    def __getitem__(self, at: object) -> NoReturn:
        raise Unknown("the clients' numbers are others in every round")


def _listening(batches: ClientBatches, asked: Asked) -> ClientBatches:
    """The same batches, taking down which are asked for."""

    def rows(name: str, count: int, *only: Tensor) -> Tensor:
        asked.append((name, count))
        return batches.rows(name, count, *only)

    return replace(batches, rows=rows)


def _drawn(batches: ClientBatches, asked: Asked) -> State:
    """The rows of these batches, and which of their images are mirrored, on the device of the inputs."""
    kinds = {"rows": batches.rows, "mirrored": batches.mirrored}
    return {
        f"{kind}/{name}/{count}": draw(name, count).to(batches.inputs.device)
        for kind, draw in kinds.items()
        if draw is not None
        for name, count in dict.fromkeys(asked)
    }


def _replayed(batches: ClientBatches, own: State) -> ClientBatches:
    """Batches whose rows lie in the memory of the graph."""

    def read(kind: str) -> Callable[[str, int], Tensor]:
        return lambda name, count: own[f"{kind}/{name}/{count}"]

    def rows(name: str, count: int, *only: Tensor) -> Tensor:
        if only:
            raise RuntimeError("which samples may be drawn is another matter in every round")
        return read("rows")(name, count)

    return replace(batches, rows=rows, mirrored=None if batches.mirrored is None else read("mirrored"))
