"""A client: its data, its model on disk, and its answers to the server's questions."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import torch

from pfed1bs.core.errors import UserError
from pfed1bs.data import Federation, federate, load
from pfed1bs.data.normalise import of_client, with_constants
from pfed1bs.engine.attacking import poisoned
from pfed1bs.engine.contract import Algorithm, Cohort, State
from pfed1bs.engine.exchange import News, agreeing, entering, hear, moved, rows
from pfed1bs.engine.rounds import choose
from pfed1bs.engine.scores import score
from pfed1bs.engine.turns import Turn, early
from pfed1bs.engine.workers import alone
from pfed1bs.flower.judging import shared
from pfed1bs.flower.link import Content, Question, Value, messages, text, whole
from pfed1bs.flower.settings import Rules, Values, read
from pfed1bs.flower.states import Shelf
from pfed1bs.runs.config import Config, DataConfig
from pfed1bs.runs.folder import identity
from pfed1bs.runs.run import federation, method
from pfed1bs.wire.messages import KINDS, read_header


@dataclass(frozen=True)
class Client:
    """One partition of a federation; nothing of its samples is in any answer."""

    config: Config
    rules: Rules
    partition: int
    folder: Path  # for its states
    own: str = ""  # its own data: a .npz file or package.module:function; otherwise its part of data.name

    @classmethod
    def of(cls, run: Values, node: Values) -> "Client":
        """The client that a run config and a node config describe."""
        config, rules = parsed(tuple(sorted(run.items())))
        partition = node.get("partition-id")
        if not isinstance(partition, int) or not 0 <= partition < config.clients:
            raise UserError(
                f"this node's partition-id must be in 0 .. clients - 1 = {config.clients - 1}, got {partition}",
                "start the SuperNode with --node-config 'partition-id=0'",
            )
        torch.set_num_threads(config.threads or 1)
        return cls(config, rules, partition, Path(str(node.get("state", rules.state))), str(node.get("data", "")))

    @cached_property
    def data(self) -> Federation:
        """A federation in which this client's samples stand at its place."""
        if not self.own:
            everyone = dealt(self.config.data, self.config.clients, self.config.seed_of("partition"))
            return poisoned(everyone, self.config.attacks).to(choose(self.config.device))
        part, (shape, classes) = self.config.data, self.rules.problem(self.config)
        options = (part.cap, self.config.seed_of("partition"), part.min_size, part.augment, part.validate)
        samples = load(self.own, num_classes=classes)
        if part.constants:
            samples = with_constants(samples, part.constants)
        elif part.normalise == "shared" and samples.mean:
            raise UserError(
                "this client has data of its own and cannot know the mean and deviation of all clients' samples",
                "set data.normalise to none, to client for its own, or data.constants to a file with both",
            )
        alone = federate(samples, 1, "iid", "official", *options, part.normalise)
        if alone.shape != shape:
            raise UserError(f"samples of {self.own} have shape {alone.shape}, the federation's {shape}", "reshape them")
        empty = tuple(torch.empty(0, dtype=torch.int64) for _ in range(self.partition))
        placed = replace(alone, train=[*empty, *alone.train], test=[*empty, *alone.test])
        return poisoned(placed, self.config.attacks, self.config.clients).to(choose(self.config.device))

    @cached_property
    def algorithm(self) -> Algorithm:
        """The method."""
        return method(self.config, *self.rules.problem(self.config))

    def answer(self, question: Question, content: Content) -> dict[str, Value]:
        """What the server gets to hear; a ValueError for a question that breaks a rule."""
        shelf = Shelf.of(self.folder, text(content, "federation"), self.partition, identity(self.config))
        if question == "query":
            return {"partition": self.partition, "samples": self.samples, "held": [*shelf.states()]}
        with shelf.alone() if question == "train" else nullcontext():
            return self._worked(question, content, shelf)

    def _worked(self, question: Question, content: Content, shelf: Shelf) -> dict[str, Value]:
        """What the client answers from the states that it holds."""
        base, round = whole(content, "base"), whole(content, "round")
        if not -1 <= base < round:
            raise ValueError(f"a round is done on an earlier state, got round {round} on the state of round {base}")
        own: dict[str, Value] = {"partition": self.partition, "round": round}
        states = shelf.states()
        held = [*states]
        if base >= 0 and base not in held:
            return {**own, "held": held}
        if base < 0 and len(held) > 1:  # one may be of a round that was never counted
            raise ValueError(
                f"the server has forgotten that this client is in round {held[0]}: its checkpoint is older than the "
                f"client's model; put the newer one back, or begin a new run without resume"
            )
        state = states[base] if base >= 0 else self.first
        state = moved(state, choose(self.config.device))
        work = self.train if question == "train" else self.judge
        with alone(choose(self.config.device)):
            return {**own, **work(content, shelf, base, round, state)}

    @property
    def samples(self) -> int:
        """Training samples, as it claims."""
        return int(self.data.sizes[self.partition])

    @property
    def first(self) -> State:
        """The state before the first round, the same as in a simulator."""
        return rows(self.algorithm.init(self.config.clients)[1], torch.tensor([self.partition]))

    @property
    def about(self) -> str:
        """What its model needs after training beside its weights, as JSON."""
        shape, classes = self.rules.problem(self.config)
        own = of_client(self.data.constants, 0 if self.own else self.partition)
        told = {"client": self.partition, "shape": shape, "classes": classes, "samples": self.samples}
        return json.dumps({**own, **told})

    def cohort(self, base: int, round: int) -> Cohort:
        """The client alone in its round."""
        alone = (torch.tensor([value]) for value in (self.partition, self.samples, base))
        return Cohort(self.config.seed_of("batches"), round, *alone)

    def train(self, content: Content, shelf: Shelf, base: int, round: int, state: State) -> dict[str, Value]:
        """Do a round, keep what came of it, and say it."""
        news = checked(self.algorithm, messages(content, "news"), base, round)
        size = (self.config.steps, self.config.batch)
        only = torch.tensor([0])  # the one row of its state
        work = Turn(self.algorithm, self.data, state, [news], self.cohort(base, round), *size, places=only)(only)
        if work.differing:  # nothing is kept; the server sends the snapshot next
            return {"up": work.differing[self.partition]}
        before = {base: state} if base >= 0 else {}
        shelf.put({**before, round: work.state}, self.about)
        log: dict[str, Value] = {f"log/{name}": [float(value.double().mean())] for name, value in work.log.items()}
        said = work.messages[0] if work.messages and content.get("speak") is True else b""
        return {"up": said, **log}

    def judge(self, content: Content, shelf: Shelf, base: int, round: int, state: State) -> dict[str, Value]:
        """What is counted of each kind of model on the client's own test samples; nothing is kept."""
        sent, at = messages(content, "news"), torch.tensor([self.partition])
        later = state  # after the news, which show what the shared model is now; judged is what the client has
        if self.algorithm.judged_with == "replica":
            news = [checked(self.algorithm, sent, base, round)]
            right = entering(self.algorithm, state, news, torch.tensor([base < 0 and early(state)]))
            later, _ = hear(self.algorithm, state, news)
            if not bool(right & agreeing(self.algorithm, later, news)):
                raise ValueError("its replica is not the server's")
        size = (self.config.seed_of("batches"), self.config.steps, self.config.batch)
        models = self.algorithm.personal(
            moved(shared(self.algorithm, later, sent, round), choose(self.config.device)),
            state,
            self.cohort(base, round),
            self.data.batches(at, round, *size),
        )
        scores = {name: score(self.algorithm, self.data, model, at) for name, model in models.items()}
        return {f"score/{name}": found.flat() for name, found in scores.items()}


@lru_cache(maxsize=4)  # Flower's simulation asks many clients in one process
def parsed(run: tuple[tuple[str, bool | int | float | str], ...]) -> tuple[Config, Rules]:
    """What a run config says."""
    return read(dict(run))


@lru_cache(maxsize=1)
def dealt(part: DataConfig, clients: int, seed: int) -> Federation:
    """The data of all clients, as the simulator deals them."""
    return federation(Config(data=part, clients=clients, seed=seed))


def checked(algorithm: Algorithm, sent: Sequence[bytes], base: int, round: int) -> list[News]:
    """The news of a round, if they are those that a client with the state of round `base` has to hear."""
    kinds = {number: kind for kind, number in KINDS.items()}
    headers = [read_header(data) for data in sent]
    found = [(kinds.get(header.kind), header.round) for header in headers]
    first = base + 1 if algorithm.replicates else round
    whole = algorithm.down and found == [("down", first + i) for i in range(len(found))] and len(found) > round - first
    anchor = algorithm.anchor(round)
    late = [("snapshot", anchor), *(("down", r) for r in range(anchor + 1, round + 1))]
    short = algorithm.replicates and found == late
    if not (whole or short or (not algorithm.down and not found)):
        raise ValueError(f"on the state of round {base}, round {round} has other news than {found}")
    return [News(kinds[header.kind], header.round, data) for header, data in zip(headers, sent, strict=True)]
