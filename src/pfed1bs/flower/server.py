"""The server's round loop over a network: the same rounds as in the simulator, with clients that fail."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter

import torch
from torch import Tensor

from pfed1bs.engine.contract import Algorithm, Cohort
from pfed1bs.engine.ledger import traffic
from pfed1bs.engine.rounds import Plan, Progress, Round, begin, conclude, prepare
from pfed1bs.engine.scores import Score
from pfed1bs.engine.turns import Diverged, counted
from pfed1bs.flower.judging import needed, possible
from pfed1bs.flower.link import LATE, Content, Link, Question, Reply, ask, logged, reals, told, usual, whole
from pfed1bs.flower.roster import Roster, holding
from pfed1bs.flower.settings import Rules
from pfed1bs.runs.config import Config
from pfed1bs.wire.messages import Decoder, decoder

PAUSE = 1.0  # seconds between looks at who is connected
AGAIN = 10  # looks after which nodes that did not introduce themselves well are asked once more


class Stopped(RuntimeError):
    """Too few clients answered, too often."""


@dataclass(frozen=True)
class Answer:
    """A client's part in a round, found valid."""

    up: bytes
    samples: int
    log: dict[str, float]


@dataclass
class Server:
    """One federation, seen from its server."""

    algorithm: Algorithm
    link: Link
    config: Config
    rules: Rules
    federation: str  # tells this federation's client states from others'
    event: Callable[[str], None]  # where to say who was not counted, and why
    told: str = ""  # what clients must know of the run beside Flower's run config

    address: Content = field(init=False)  # what stands in every letter
    roster: Roster = field(init=False)
    differing: list[bytes] = field(init=False, default_factory=list)  # who has another replica says so in a round
    evaluations: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Nobody is known yet."""
        self.address = {"federation": self.federation, **({"run": self.told} if self.told else {})}
        self.roster = Roster(self.address, self.config.clients, self.rules.max_samples, self.event)

    def rounds(self, resume: Progress | None = None) -> Iterator[Round]:
        """Do the rounds one by one, until all rest; the caller must save each before it takes the next."""
        now = resume or start(self.algorithm, self.config.clients)
        wanted = self.config.clients  # the first round waits for all of them
        while now.round < self.config.rounds and not self._over(now):
            done = self.round(now, wanted)
            yield done
            now, wanted = done.progress, self.rules.min_clients

    def _over(self, now: Progress) -> bool:
        """Whether all clients have said that they rest."""
        return len(now.resting) == self.config.clients

    def round(self, now: Progress, wanted: int) -> Round:
        """One round, repeated until enough clients have answered; waits a while for `wanted` clients to be there."""
        began, answers, asked = perf_counter(), dict[int, Answer](), list[Plan]()
        self.differing.clear()
        for attempt in range(1, self.rules.attempts + 1):
            here = self._present(wanted)
            held = self.roster.reconciled(now)
            plan = prepare(self.algorithm, held, self.roster.sizes, self.config.seed_of("batches"), self.config.sampled)
            worth = here if attempt > 1 else self.roster.awake(here, now.round, self.rules.min_clients)
            asked.append(plan.part(torch.tensor(sorted(worth - {*answers}), dtype=torch.int64)))
            answers |= self._answers(held, asked[-1])
            while (counted := len({*plan.cohort.ids.tolist()} & {*answers})) >= self.rules.min_clients:
                try:
                    done = self._counted(held, plan, answers, asked, perf_counter() - began)
                    # Who says that it has lost states is believed when it has worked: another may speak for it.
                    seen = torch.where(done.progress.seen == now.round, now.round, now.seen)
                    return replace(done, progress=replace(done.progress, seen=seen))
                except Diverged as error:
                    self._undo(now, answers, error)
            few = f"round {now.round}: {counted} valid answers, {self.rules.min_clients} are needed"
            self.event(f"{few}; attempt {attempt} of {self.rules.attempts}")
        raise Stopped(f"{few}, after {self.rules.attempts} attempts; the run can go on with resume=true")

    def _undo(self, now: Progress, answers: dict[int, Answer], error: Diverged) -> None:
        """Leave out those who would spoil the shared state, all if it cannot be said who; the round left no trace."""
        reason = "its message makes" if error.clients else "the messages together make"
        for client in error.clients or [*answers]:
            self.event(f"round {now.round}: client {client} is not counted: {reason} the shared state NaN or infinite")
            del answers[client]

    def _present(self, wanted: int) -> set[int]:
        """The clients that are connected; waits a while if there are fewer than wanted."""
        looks = 0
        while True:
            if looks % AGAIN == 0:  # whoever was not admitted may try again
                self.roster.refused.clear()
            here = self.roster.refresh(self.link, self.rules.timeout)
            waited = looks * PAUSE >= self.rules.wait and (
                len(here) >= self.rules.min_clients or not self.roster.tickets
            )
            if len(here) >= wanted or waited:
                return here
            self.link.pause(PAUSE)
            looks += 1

    def _answers(self, now: Progress, plan: Plan) -> dict[int, Answer]:
        """Ask the clients of a round; the valid answers, at most one of each."""
        sampled = {*plan.cohort.ids.tolist()}
        letters: dict[int, Content] = {
            client: {"news": [item.data for item in items], "speak": client in sampled}
            for client, items in zip(plan.active.ids.tolist(), plan.news, strict=True)
        }
        valid: dict[int, Answer] = {}
        read = self._reader(now)
        for client, reply in self._asked("train", now, letters):
            try:
                if client in valid:
                    raise ValueError("it has answered already")
                valid[client] = self._answer(now, client, reply, client in sampled, read)
                self.roster.note(client, None)
                self.roster.lost.discard(client)
            except ValueError as error:
                self.event(f"round {now.round}: client {client} is not counted: {told(error)}")
                if reply.error == LATE:
                    self.roster.late(client, now.round)
        return valid

    def _asked(self, question: Question, now: Progress, letters: dict[int, Content]) -> Iterator[tuple[int, Reply]]:
        """Send letters to clients; what comes back from the nodes that were asked, in the order of clients."""
        nodes = {self.roster.members[client].node: client for client in letters}
        common: Content = {**self.address, "round": now.round}
        sent = {node: {**common, **letters[k], "base": int(now.seen[k])} for node, k in nodes.items()}
        replies = ask(self.link, question, sent, self.rules.timeout)
        for reply in replies:
            if reply.node not in nodes:
                self.event(f"round {now.round}: an answer of node {reply.node}, which was not asked, is dropped")
        yield from sorted(
            ((nodes[reply.node], reply) for reply in replies if reply.node in nodes), key=lambda item: item[0]
        )

    def _content(self, now: Progress, client: int, reply: Reply) -> Content:
        """The content of a reply, if it is this client's answer to this round."""
        content = reply.content
        if content is None:
            raise ValueError(reply.error)
        for key, expected in (("partition", client), ("round", now.round)):
            if (found := whole(content, key)) != expected:
                raise ValueError(f"its {key} is {found}, expected {expected}")
        if "held" in content:
            held = holding(content)
            self.roster.note(client, held)
            raise ValueError(f"it holds the states of rounds {held}, not that of {int(now.seen[client])}")
        return content

    def _reader(self, now: Progress) -> Decoder:
        """What reads the messages of a round."""
        known = self.algorithm.known(now.server, "up", now.round)
        return decoder(self.algorithm.up, kind="up", round=now.round, known=known, packed=True)

    def _answer(self, now: Progress, client: int, reply: Reply, sampled: bool, read: Decoder) -> Answer:
        content, samples = self._content(now, client, reply), self.roster.members[client].samples
        up = content.get("up")
        if not isinstance(up, bytes):
            raise ValueError(f"its message must be bytes, got {type(up).__name__}")
        if not (sampled and self.algorithm.up):
            return Answer(b"", samples, logged(content))
        message = read(up, samples)
        if not message and self.algorithm.replicates:
            self.roster.lost.add(client)
            self.differing.append(up)
            raise ValueError("its replica is not the server's; it is sent the snapshot next")
        if not message:
            raise ValueError("its message is empty")
        return Answer(up, samples, logged(content))  # it is decoded again when it is counted: bytes are the least

    def _counted(
        self, now: Progress, plan: Plan, answers: dict[int, Answer], asked: list[Plan], seconds: float
    ) -> Round:
        """The round, closed with the answers there are."""
        part = plan.part(torch.tensor(sorted(answers)))
        sizes = torch.tensor([answers[client].samples for client in part.cohort.ids.tolist()])
        part = replace(part, cohort=replace(part.cohort, sizes=sizes))
        heard = [answers[client] for client in part.cohort.ids.tolist()] if self.algorithm.up else []
        sent = [answer.up for answer in heard]
        after, shared = conclude(self.algorithm, now, part, sent, self.config.trust, pairs=False)
        news, active = [items for one in asked for items in one.news], [one.active for one in asked]
        parts = (torch.cat([getattr(one, name) for one in active]) for name in ("ids", "sizes", "seen"))
        everyone = Cohort(self.config.seed_of("batches"), now.round, *parts)
        resting = self.roster.resting(now, {client: one.log.get("rest") == 1 for client, one in answers.items()})
        after = replace(after, lost=after.lost | self.roster.lost, resting=resting)
        logs = [answers[client].log for client in sorted(answers)]
        log = {name: torch.tensor([one[name] for one in logs if name in one]) for name in sorted(usual(logs))}
        bill = traffic(self.algorithm, news, [*sent, *self.differing], everyone)
        log |= {**shared, **counted(self.differing)}
        sizes, last = self.roster.sizes, self._over(after)
        return Round(now.round, part.cohort, bill, sent, log, seconds, after, sizes, last=last)

    def judge(self, now: Progress) -> tuple[Tensor, dict[str, Score]]:
        """The connected clients, and how good their models are on their own test samples."""
        there = self.roster.awake(self.roster.refresh(self.link, self.rules.timeout), now.round, 1)
        turn, self.evaluations = self.evaluations, self.evaluations + 1
        here = torch.tensor(sorted(self.roster.awake(there, turn, 1, "evaluation")), dtype=torch.int64)
        now = self.roster.reconciled(now)
        cohort = Cohort(self.config.seed_of("batches"), now.round, here, self.roster.sizes[here], now.seen[here])
        sent = needed(self.algorithm, now, cohort) if len(here) else []
        letters: dict[int, Content] = {k: {"news": news} for k, news in zip(here.tolist(), sent, strict=True)}
        found: dict[int, dict[str, list[float]]] = {}
        for client, reply in self._asked("evaluate", now, letters):
            try:
                found[client] = self._scores(self._content(now, client, reply))
                self.roster.naps.pop(("evaluation", client), None)
            except ValueError as error:
                self.event(f"round {now.round}: client {client} is not judged: {told(error)}")
                if reply.error == LATE:
                    self.roster.late(client, turn, "evaluation")
        names = usual([*found.values()])
        found = {client: one for client, one in found.items() if {*names} <= {*one}}
        stacked = {name: torch.tensor([one[name] for one in found.values()], dtype=torch.float64) for name in names}
        kinds = self._counts, self.algorithm.task.loss.metrics
        return torch.tensor([*found]), {name: Score.of(values, *kinds) for name, values in stacked.items()}

    @property
    def _counts(self) -> dict[str, tuple[int, ...]]:
        """What a client counts on its test samples beside their number and loss."""
        return self.algorithm.task.loss.shapes(self.rules.problem(self.config)[1])

    def _scores(self, content: Content) -> dict[str, list[float]]:
        scores = reals(content, "score/")
        for name, values in scores.items():
            possible(name, values, self._counts, self.rules.max_samples)
        if "personal" not in scores:
            raise ValueError("its answer has no score of the personal model")
        return scores


def start(algorithm: Algorithm, clients: int) -> Progress:
    """Before round 0; the clients' states are with the clients."""
    return replace(begin(algorithm, clients), clients={})
