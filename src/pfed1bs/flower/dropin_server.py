"""Two lines in an existing Flower app, the second: OneBitFedAvg around its strategy (docs/flower-dropin.md)."""

from collections.abc import Iterable
from dataclasses import dataclass
from logging import getLogger
from typing import cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from torch import Tensor

from pfed1bs.algorithms.base.by_hand import OneBitCode
from pfed1bs.algorithms.base.onebit import SAFE, bounded
from pfed1bs.core.errors import UserError
from pfed1bs.core.votes import unpack
from pfed1bs.engine.trust import Trust, clamped
from pfed1bs.flower.dropin_arrays import OTHERS, First, Frame, agreed, framed, made, recorded, values
from pfed1bs.flower.dropin_inner import composable
from pfed1bs.flower.dropin_letters import NAME, Letter, deflated, only, opened
from pfed1bs.flower.dropin_nodes import Nodes
from pfed1bs.flower.dropin_trust import averaged, believed
from pfed1bs.flower.grid import Timely
from pfed1bs.flower.link import whole
from pfed1bs.wire.messages import Message as WireMessage
from pfed1bs.wire.messages import Refused, decode

log = getLogger("flwr")  # Flower's own


@dataclass
class Sizes:
    """Serialised bytes of one exchange, and what they would be with whole models."""

    up: int = 0
    down: int = 0
    full_up: int = 0
    full_down: int = 0
    lacking: int = 0  # nodes that could not work because they had lost what the news build on

    def report(self, metrics: MetricRecord | None) -> MetricRecord | None:
        """The metrics of the inner strategy and these; None, if nobody was asked."""
        own = {f"onebit-{name.replace('_', '-')}": value for name, value in vars(self).items()}
        return MetricRecord({**(metrics or {}), **own}) if self.down else metrics


class OneBitFedAvg(Strategy):
    """A strategy that averages, with one-bit news in the place of models; `inner` chooses nodes and averages sketches.

    `ratio` is m / n, bits a weight. `first`: a function that makes the model, the same as OneBit has; both sides call
    it under `seed`, and nobody is sent the first model. Without it every node is sent the whole model once. `local`:
    patterns of names of arrays that stay at the nodes, beside whole numbers and running statistics. `max_weight`: what
    a node weighs in the mean, at most, in medians of the round; None: what it says.
    """

    def __init__(
        self,
        inner: Strategy,
        *,
        ratio: float = 0.1,
        seed: int = 0,
        rotate: bool = True,
        first: First | None = None,
        local: Iterable[str] = (),
        max_weight: float | None = 10.0,
    ) -> None:
        self.inner, self.first, self.local = composable(inner), first, tuple(local)
        self.max_weight = Trust(max_weight).max_weight
        self.agreed = OneBitCode(1, ratio, seed, rotate)  # checked before anybody waits
        if seed >> 63:
            raise UserError(f"seed must be in 0 .. 2^63 - 1, which Flower's records carry, got {seed}", "try 0")
        self.frame: Frame | None = None  # of the model, from the first round on
        self._sent = Sizes()
        self._averaged = set[str]()  # questions whose answers have been

    def summary(self) -> None:
        """Log what the inner strategy does, and what is sent instead of its models."""
        self.inner.summary()
        log.info("\tOne-bit news: %g bits a weight, seed %d", self.agreed.ratio, self.agreed.seed)
        if self.first:
            log.info("\tThe first model is what `first` makes under this seed; values of initial arrays are not used")

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: object, **kwargs: object) -> Result:
        """The rounds of Flower's own loop; with `first`, its model takes the place of the initial arrays."""
        self._begin(initial_arrays)
        return super().start(cast(Grid, Timely(grid)), self.arrays, *args, **kwargs)  # type: ignore[arg-type]

    @property
    def arrays(self) -> ArrayRecord:
        """The shared model as it is now, with the first values of local arrays."""
        if self.frame is None:
            raise UserError("there is no model before the first round", "call start, or configure_train")
        return recorded(self.frame.model(self.nodes.theta, self._local))

    def _begin(self, arrays: ArrayRecord) -> None:
        ratio, seed, rotate = self.agreed.ratio, self.agreed.seed, self.agreed.rotate
        self.frame, model = made(self.first, seed, self.local) if self.first else framed(values(arrays), self.local)
        self.frame.check(values(arrays), OTHERS)
        self._local = {name: model[name] for name in self.frame.local}
        self.nodes = Nodes(agreed(self.frame.flat(model), ratio, seed, rotate, coded=self.first is not None))
        self._full = deflated(recorded(model))  # bytes of a model, for the report

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the inner strategy, with news in the place of the model."""
        return self._addressed(self.inner.configure_train(server_round, self._now(arrays), config, grid))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the inner strategy, with news in the place of the model."""
        return self._addressed(self.inner.configure_evaluate(server_round, self._now(arrays), config, grid))

    def _now(self, arrays: ArrayRecord) -> ArrayRecord:
        """The arrays, if they are those that the last round returned."""
        if self.frame is None:
            self._begin(arrays)
            return self.arrays
        model = values(arrays)
        self.frame.check(model)
        if not torch.equal(self.frame.flat(model), self.nodes.theta):
            raise UserError(
                "these arrays are not those that aggregate_train returned, and nodes cannot know them",
                "hand back what it returned; begin anew with another OneBitFedAvg for another model",
            )
        return arrays

    def _addressed(self, messages: Iterable[Message]) -> list[Message]:
        """The messages, each with what its node lacks; the model itself to nodes that have none and cannot make it."""
        messages, agreed = list(messages), self.agreed
        sizes = {id(one.content): deflated(one) for one in reversed(messages)}
        self._sent = Sizes(full_down=sum(sizes[id(one.content)] for one in messages))
        lacking = self.nodes.news([one.metadata.dst_node_id for one in messages])
        for message, news in zip(messages, lacking, strict=True):
            key, model = only(message.content, f"a message of {type(self.inner).__name__}")
            whole = bool(news) and news[0].kind == "snapshot" and self.first is None
            letter = Letter(
                self.nodes.version,
                self.nodes.counted.get(message.metadata.dst_node_id, -1),
                *(agreed.seed, agreed.ratio, agreed.rotate, self.first is not None, key, self.local),
                [] if whole else [one.data for one in news],
            )
            others = {name: record for name, record in message.content.items() if whole or name != key}
            message.content = RecordDict({**others, NAME: letter.record()})
        self._sent.down = sum(map(deflated, messages))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The whole model after the step that the inner strategy's mean of sketches leads to."""
        errors, valid = self._opened(replies, "train")
        answers, now = self._updates(valid), self.nodes.version
        told = [reply for reply, _ in answers.values()]
        mean, metrics = self.inner.aggregate_train(server_round, [*errors, *told])
        if mean is None or not told:
            return None, self._sent.report(metrics)
        step = next(iter(values(mean).values())).float()
        if not self.nodes.move(step, bounded(self._shares(told), self.agreed.ratio, most=SAFE)):
            log.warning("round %d is undone: its messages make the model NaN or infinite", server_round)
            return None, self._sent.report(metrics)
        self.nodes.counted.update(dict.fromkeys(answers, now))
        return self.arrays, self._sent.report(metrics)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The metrics of the inner strategy, and the bytes."""
        errors, valid = self._opened(replies, "evaluate")
        metrics = self.inner.aggregate_evaluate(server_round, [*errors, *(reply for reply, _ in valid)])
        return self._sent.report(metrics)

    def _opened(
        self, replies: Iterable[Message], question: str
    ) -> tuple[list[Message], list[tuple[Message, ConfigRecord]]]:
        """Replies that are errors, and those that the app has answered, ascending by node, with our record apart."""
        errors, valid, wrong = list[Message](), list[tuple[Message, ConfigRecord]](), list[ValueError]()
        for reply in sorted(replies, key=lambda one: int(one.metadata.src_node_id)):
            if reply.has_error():
                errors.append(reply)
                continue
            try:
                record = opened(reply.content, f"node {reply.metadata.src_node_id}")
                if self._noted(reply, record, whole(record, "held")):
                    valid.append((reply, record))
            except ValueError as error:
                log.warning("node %d is not counted: %s", reply.metadata.src_node_id, error)
                wrong.append(error)
        if wrong and not self.nodes.seen:  # nobody has ever spoken: more likely a mistake of ours than an attack
            raise wrong[0]
        if question == "train" or type(self.inner).aggregate_evaluate is FedAvg.aggregate_evaluate:
            valid = averaged(valid, self._weight, question in self._averaged)
        found = believed(valid, self._weight, self.max_weight)
        self._averaged |= {question} if found else set()
        return errors, found

    def _noted(self, reply: Message, record: ConfigRecord, held: int) -> bool:
        """Whether the app has answered; what the node holds and the bytes are noted."""
        size = deflated(reply)
        self.nodes.seen[reply.metadata.src_node_id] = held if 0 <= held <= self.nodes.version else -1
        self._sent.up += size
        reply.content = RecordDict({name: one for name, one in reply.content.items() if name != NAME})
        if not reply.content:
            self._sent.lacking += 1
            return False
        self._sent.full_up += size - deflated(record) + self._full if "up" in record else deflated(reply)
        return True

    def _updates(self, valid: list[tuple[Message, ConfigRecord]]) -> dict[int, tuple[Message, WireMessage]]:
        """The updates by node; s z (m,) goes into every reply where the inner strategy expects the model."""
        answers, method = dict[int, tuple[Message, WireMessage]](), self.nodes.method
        for reply, record in valid:
            node, up = reply.metadata.src_node_id, record.get("up")
            try:
                data = up if isinstance(up, bytes) else b""
                answers[node] = (reply, decode(method.up, data, kind="up", round=self.nodes.version, packed=True))
            except Refused as error:
                log.warning("node %d is not counted: %s", node, error)
        answers = {node: (reply, said) for node, (reply, said) in answers.items() if said}
        scales = [said["scale"] for _, said in answers.values()]
        bounds = clamped(torch.stack(scales))[0] if scales else ()
        for (reply, said), scale in zip(answers.values(), bounds, strict=True):
            sketch = recorded({"sketch": scale * unpack(said["signs"], method.m)})
            reply.content = RecordDict({**reply.content, "arrays": sketch})
        return answers

    @property
    def _weight(self) -> str:
        """The name of what the inner strategy weighs with."""
        return getattr(self.inner, "weighted_by_key", "")

    def _shares(self, replies: list[Message]) -> Tensor:
        """The shares of nodes in the mean, by the metric that the inner strategy weighs with; equal without one."""
        metrics = [next(iter(reply.content.metric_records.values()), MetricRecord()) for reply in replies]
        found = [one.get(self._weight, 1) for one in metrics]
        weights = torch.tensor(found, dtype=torch.float64)
        return weights / weights.sum()
