"""What Flower runs at a client, in a new process for every message."""

import traceback

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from pfed1bs.flower.client import Client
from pfed1bs.flower.grid import content_of, record
from pfed1bs.flower.link import LONGEST, Question, without_folders
from pfed1bs.flower.resuming import heard

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say who this is."""
    return respond("query", message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Do a round."""
    return respond("train", message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Judge the personal model."""
    return respond("evaluate", message, context)


def respond(question: Question, message: Message, context: Context) -> Message:
    """The answer; an error becomes Flower's error reply, with its text but for folders, and stays whole here."""
    try:
        content = content_of(message.content)
        client = Client.of({**context.run_config, **heard(content)}, context.node_config)
        return Message(record(client.answer(question, content)), reply_to=message)
    except Exception as error:
        traceback.print_exc()
        raise RuntimeError(without_folders(f"{type(error).__name__}: {error}")[:LONGEST]) from None
