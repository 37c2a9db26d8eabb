"""A personal model at the client, kept as "w" with its own statistics and velocity, beside the shared one.

The shared model's statistics stand under "shared/buffer/...": two models must not write into one BatchNorm.
"""

from pfed1bs.engine.contract import State

APART = "shared/"  # what the keys of the shared model's buffers begin with


def apart(buffers: State) -> State:
    """Buffers of the shared model under the keys they are kept by."""
    return {APART + name: value for name, value in buffers.items()}


def shared_of(clients: State) -> State:
    """The clients as the shared model knows them: its own buffers, and as many rows of weights."""
    own = {name.removeprefix(APART): value for name, value in clients.items() if name.startswith(APART)}
    return {"w": clients["w"], **own}
