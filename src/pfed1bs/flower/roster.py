"""Who is who: which node is which client, how many samples it has, which states it holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pfed1bs.engine.rounds import Progress
from pfed1bs.flower.link import Content, Link, Reply, Ticket, numbers, told, whole

LONGEST = 16  # rounds that a client which never answers is left in peace
HELD = 8  # states that a client may say it holds; it keeps two


@dataclass(frozen=True)
class Member:
    """A client as it introduced itself."""

    node: int
    samples: int
    held: tuple[int, ...] | None  # rounds of its states; None: as the server knows


@dataclass
class Roster:
    """The members of a federation. A client is its partition; the node that speaks for it may change."""

    question: Content  # that new nodes are asked
    clients: int
    max_samples: int
    event: Callable[[str], None]
    members: dict[int, Member] = field(default_factory=dict)  # by client
    pins: dict[int, int] | None = None  # by client: the only node that may speak for it; None: any may
    lost: set[int] = field(default_factory=set)  # clients that have said that their replica is not the server's
    refused: set[int] = field(default_factory=set)  # nodes that introduced themselves wrongly, or not at all

    naps: dict[tuple[str, int], tuple[int, int]] = field(
        default_factory=dict
    )  # of what, client: times late, until when

    tickets: list[Ticket] = field(default_factory=list)  # questions to new nodes
    claims: dict[int, Member] = field(default_factory=dict)  # by client: who says it is one that another node is

    def refresh(self, link: Link, timeout: float) -> set[int]:
        """Ask new nodes who they are and hear who has answered; the clients that are connected now."""
        here = link.nodes()
        asked = {node for ticket in self.tickets for node in ticket.waiting.values()}
        known = {member.node for member in [*self.members.values(), *self.claims.values()]}
        strangers = here - known - self.refused - asked
        if strangers:
            self.tickets.append(link.post("query", {node: self.question for node in sorted(strangers)}, timeout))
        for ticket in [*self.tickets]:
            for reply in sorted(link.collect(ticket), key=lambda reply: reply.node):
                self._heard(link, here, reply, timeout)
        self.tickets = [ticket for ticket in self.tickets if ticket.waiting]
        return {client for client, member in self.members.items() if member.node in here}

    def _heard(self, link: Link, here: set[int], reply: Reply, timeout: float) -> None:
        """Admit a node, or settle the claim of another on its place: it keeps it if it answers."""
        for client, rival in [*self.claims.items()]:
            if self.members[client].node == reply.node:
                del self.claims[client]
                if reply.content is None:
                    self._admit(client, rival)
                else:
                    self._refuse(rival.node, f"client {client} is node {reply.node}, which answers")
                return
        if reply.node in {member.node for member in self.members.values()}:
            return  # it was asked because of a claim that is settled; what it held then may be old
        try:
            client, member = self._member(reply)
        except ValueError as error:
            return self._refuse(reply.node, told(error))
        if self.pins is not None and (own := self.pins.setdefault(client, reply.node)) != reply.node:
            return self._refuse(reply.node, f"client {client} is pinned to node {own}")
        before = self.members.get(client, member)
        if client in self.claims:
            return self._refuse(reply.node, f"node {self.claims[client].node} says too that it is client {client}")
        if before.node == reply.node or before.node not in here:
            return self._admit(client, member)
        self.claims[client] = member
        self.tickets.append(link.post("query", {before.node: self.question}, timeout))

    def _admit(self, client: int, member: Member) -> None:
        self.members[client] = member
        self.event(f"client {client} is node {member.node}, {member.samples} samples, states {list(member.held or ())}")

    def _refuse(self, node: int, reason: str) -> None:
        self.refused.add(node)
        self.event(f"node {node} is not admitted: {reason}")

    def _member(self, reply: Reply) -> tuple[int, Member]:
        if reply.content is None:
            raise ValueError(reply.error or "it gave no answer")
        client, samples = whole(reply.content, "partition"), whole(reply.content, "samples")
        if not 0 <= client < self.clients:
            raise ValueError(f"its partition must be in 0 .. {self.clients - 1}, got {client}")
        if not 1 <= samples <= self.max_samples:
            raise ValueError(f"it claims {samples} samples; 1 .. max_samples = {self.max_samples} are believed")
        return client, Member(reply.node, samples, tuple(holding(reply.content)))

    @property
    def sizes(self) -> Tensor:
        """(K,) training samples, 0 for clients that never came."""
        return torch.tensor([self.members[k].samples if k in self.members else 0 for k in range(self.clients)])

    def note(self, client: int, held: list[int] | None) -> None:
        """Write down which states a client really has, now that it has answered; None: those the server counted on."""
        self.naps.pop(("round", client), None)
        if client in self.claims:
            self._refuse(
                self.claims.pop(client).node, f"client {client} is node {self.members[client].node}, which answers"
            )
        self.members[client] = replace(self.members[client], held=None if held is None else tuple(held))

    def late(self, client: int, turn: int, what: str = "round") -> None:
        """A client gave no answer in time; from the second time on it is left in peace for 1, 2, 4, ... turns."""
        times = self.naps.get((what, client), (0, 0))[0] + 1
        pause = min(1 << times - 2, LONGEST) if times > 1 else 0
        self.naps[what, client] = times, turn + 1 + pause
        if pause:
            again = f"it is asked again in {what} {turn + 1 + pause}"
            self.event(f"client {client} was too late {times} times in a row; {again}")

    def awake(self, here: set[int], turn: int, least: int, what: str = "round") -> set[int]:
        """Those who are worth asking in a turn; all, if they would be fewer than `least`."""
        found = {client for client in here if self.naps.get((what, client), (0, 0))[1] <= turn}
        return found if len(found) >= least else here

    def reconciled(self, now: Progress) -> Progress:
        """The progress with `seen` as clients can live up to it: one that lost states starts from an older one."""
        seen = now.seen.clone()
        for client in self.members:
            last, seen[client] = int(seen[client]), self._base(client, now)
            if seen[client] != last:
                self.event(f"client {client} has lost the state of round {last}; it goes on from {int(seen[client])}")
        return replace(now, seen=seen, lost=now.lost | self.lost, resting=self.resting(now, {}))

    def resting(self, now: Progress, said: Mapping[int, bool]) -> frozenset[int]:
        """Who rests, after clients have said whether they do; one that has lost its state is awake until it says so."""
        going_on = {client for client in now.resting if self._base(client, now) == now.seen[client]}
        return frozenset((going_on - said.keys()) | {client for client, rests in said.items() if rests})

    def _base(self, client: int, now: Progress) -> int:
        """The round from whose state a client goes on; -1: from none."""
        held, last = self.members[client].held if client in self.members else None, int(now.seen[client])
        return last if held is None else max((round for round in held if 0 <= round <= last), default=-1)


def holding(content: Content) -> list[int]:
    """The rounds whose states a client says that it holds."""
    held = numbers(content, "held")
    if len(held) > HELD:
        raise ValueError(f"it says that it holds {len(held)} states; a client keeps two")
    return held
