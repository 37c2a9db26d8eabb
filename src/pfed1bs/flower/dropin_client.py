"""Two lines in an existing Flower app, the first: OneBit around its ClientApp (docs/flower-dropin.md)."""

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pfed1bs.core.errors import UserError
from pfed1bs.engine.contract import State, under, within
from pfed1bs.engine.exchange import agreeing, hear
from pfed1bs.engine.trust import finite
from pfed1bs.flower.client import checked
from pfed1bs.flower.dropin_arrays import First, Frame, agreed, framed, made, recorded, values
from pfed1bs.flower.dropin_letters import NAME, Letter, answer, only
from pfed1bs.flower.settings import Rules
from pfed1bs.flower.states import Shelf
from pfed1bs.runs.returned import MODEL
from pfed1bs.wire.messages import encode, read_header

LARGE = 1 << 22  # bytes of weights from which on a state is kept in a file: Flower may lose a larger one on its way
LOCAL = "local/"  # what the keys of arrays that are not shared begin with
SAME_FIRST = (
    "give OneBit and OneBitFedAvg the same `first` and the same version of torch, and draw from torch's generator "
    "alone, or leave `first` out on both sides"
)


@dataclass(frozen=True)
class Memory:
    """A shelf in the context that Flower keeps for a node while it runs; it holds the last state alone."""

    context: Context

    def alone(self) -> AbstractContextManager[None]:
        """Nothing: Flower gives a node's context to one process at a time."""
        return nullcontext()

    def states(self) -> dict[int, State]:
        """The state that is here, by the round it was reached in."""
        record = self.context.state.get(NAME)
        found = values(record) if isinstance(record, ArrayRecord) else {}
        return {int(found.pop("round")): found} if found else {}

    def put(self, states: dict[int, State]) -> None:
        """Replace the state by the last of these, without its personal model."""
        round, state = max(states.items())
        kept = {name: value for name, value in state.items() if not name.startswith(MODEL)}
        self.context.state[NAME] = recorded({"round": torch.tensor(round), **kept})


class OneBit(ClientApp):
    """A ClientApp whose models cross the network as one-bit news; `app` is handed and returns whole models as before.

    `first`: a function that makes the model, the same as OneBitFedAvg has. `state`: a folder for what a node must not
    lose, its personal model among it; a node may name its own in its node config. Without one small models stay in the
    context and large ones go to `pfed1bs-state`.
    """

    def __init__(self, app: ClientApp, *, first: First | None = None, state: str | Path | None = None) -> None:
        if not isinstance(app, ClientApp) or isinstance(app, OneBit):
            raise UserError(f"OneBit goes around a ClientApp once, got {type(app).__name__}", "app = OneBit(app)")
        if getattr(app, "_call", None) is not None:
            raise UserError(
                "this ClientApp is made of a client_fn, whose records are not those of the Message API",
                "register functions with @app.train() and @app.evaluate()",
            )
        super().__init__()
        self.app, self.first, self.state = app, first, state
        for name in ("train", "evaluate", "query", "lifespan"):  # what is registered later belongs to the app, too
            setattr(self, name, getattr(app, name))

    def __call__(self, message: Message, context: Context) -> Message:
        """Hear the news, let the app work on the whole model, and send signs instead of its arrays."""
        content = message.content
        if NAME not in content and not content.array_records:
            return self.app(message, context)  # a question that has nothing to do with models
        letter = Letter.read(content)
        first = self._first(letter, *content.array_records.values())
        shelf = self._shelf(context, letter, first)
        with shelf.alone():
            return self._heard(message, context, letter, shelf, first)

    def _heard(
        self, message: Message, context: Context, letter: Letter, shelf: Memory | Shelf, first: State
    ) -> Message:
        """What the node answers from the states that it holds."""
        states, whole = shelf.states(), message.content.array_records
        base = letter.base if letter.base in states else max(states, default=-1)
        before = states.get(base, State())
        try:
            state = {**before, **first} if whole else heard(before, first, letter)
        except Lacking as lack:
            if lack.held < 0 and before:
                shelf.put({base: {**before, "version": torch.tensor(-1)}})
            return Message(RecordDict({NAME: answer(lack.held)}), reply_to=message)
        state |= under(LOCAL, within(LOCAL, before))  # what this node has learnt of them itself
        return self._worked(message, context, letter, shelf, {base: before} if before else {}, state)

    def _worked(
        self,
        message: Message,
        context: Context,
        letter: Letter,
        shelf: Memory | Shelf,
        past: dict[int, State],
        now: State,
    ) -> Message:
        """What the app answers to the whole model; the state is kept when it has."""
        frame, held = Frame.read(now["frame"]), int(now["version"])
        model = recorded(frame.model(now["theta"], within(LOCAL, now)))
        message.content = RecordDict({**_others(message.content), letter.key: model})
        reply = self.app(message, context)
        if reply.has_error():
            return reply
        if message.metadata.message_type.startswith("train"):
            after, up = trained(now, frame, letter, reply.content)
            shelf.put({**past, letter.round: after})
            reply.content = RecordDict({**_others(reply.content), NAME: answer(held, up)})
        else:
            shelf.put({max(past, default=0): now})
            reply.content = RecordDict({**reply.content, NAME: answer(held)})
        return reply

    def _first(self, letter: Letter, whole: ArrayRecord | None = None) -> State:
        """The state of a node that has the model itself from the message, or makes the first one; otherwise empty."""
        if whole is not None:
            return begun(*framed(values(whole), letter.local), letter.round)
        if letter.coded and self.first is None:
            raise UserError("the server makes the first model from a seed, and this node cannot", SAME_FIRST)
        return begun(*made(self.first, letter.seed, letter.local), -1) if letter.coded and self.first else {}

    def _shelf(self, context: Context, letter: Letter, first: State) -> Memory | Shelf:
        """Where the state of this node is kept."""
        node, folder = context.node_config, context.node_config.get("state", self.state)
        identity = json.dumps({"seed": letter.seed, "ratio": letter.ratio, "rotate": letter.rotate})
        place, partition = Path(str(folder or Rules.state)), int(node.get("partition-id", context.node_id))
        shelf = Shelf.of(place, f"onebit-{context.run_id}", partition, identity)
        large = bool(first) and first["theta"].nbytes >= LARGE
        return shelf if folder or large or shelf.path.exists() else Memory(context)


class Lacking(Exception):
    """The news do not lead from what this node holds to where the server is."""

    def __init__(self, held: int) -> None:
        super().__init__(f"this node holds version {held}")
        self.held = held


def begun(frame: Frame, model: State, version: int) -> State:
    """The state of a node that has a model and nothing else."""
    own = {"frame": frame.written(), "version": torch.tensor(version), "theta": frame.flat(model)}
    return {**own, **under(LOCAL, {name: model[name] for name in frame.local})}


def heard(before: State, first: State, letter: Letter) -> State:
    """The state after the news; those that it has heard already are passed over."""
    version = int(before["version"]) if before else -1
    state = before if version >= 0 else {**before, **first}
    if not state or version > letter.round:
        raise Lacking(version)
    fresh = [data for data in letter.news if read_header(data).round > version]
    theta = state["theta"]
    method = agreed(first.get("theta", theta), letter.ratio, letter.seed, letter.rotate, letter.coded)
    try:
        news = [checked(method, fresh, version, letter.round)]
    except ValueError:
        raise Lacking(version) from None
    after, _ = hear(method, {"theta": theta[None]}, news)
    if fresh and not bool(agreeing(method, after, news)):
        if version < 0:
            raise UserError("the first model that this node makes from the seed is not the server's", SAME_FIRST)
        raise Lacking(-1)
    return {**state, "theta": after["theta"][0], "version": torch.tensor(letter.round)}


def trained(now: State, frame: Frame, letter: Letter, content: RecordDict) -> tuple[State, bytes]:
    """The state with what the app returned, and what is sent of it."""
    model = values(only(content, "the reply of the app's train function")[1])
    frame.check(model)
    if not finite(model):
        raise UserError(
            "the arrays that the app returned hold NaN or infinity", "lower the learning rate, or check the data"
        )
    frame.untied(now["theta"], model)
    method = agreed(now["theta"], letter.ratio, letter.seed, letter.rotate, letter.coded)
    _, said = method.spoken({}, frame.flat(model) - now["theta"], letter.round)
    own = {**under(LOCAL, {name: model[name] for name in frame.local}), **under(MODEL, model)}
    return {**now, **own}, encode(method.up, said, kind="up", round=letter.round)


def _others(content: RecordDict) -> dict[str, MetricRecord | ConfigRecord]:
    """The records that are neither the model nor ours."""
    return {name: record for name, record in content.items() if name != NAME and not isinstance(record, ArrayRecord)}
