"""Several models at a client: the personal one as "w" with its own statistics, the others under a name of their own.

The shared model's statistics stand under "shared/buffer/...": two models must not write into one BatchNorm.
"""

from torch import Tensor

from pfed1bs.engine.contract import State, under, within

SHARED = "shared"


def apart(state: State, name: str = SHARED) -> State:
    """Weights or buffers of another model under the keys they are kept by."""
    return under(f"{name}/", state)


def kept_of(clients: State, name: str) -> State:
    """What the clients keep of another model."""
    return within(f"{name}/", clients)


def shared_of(clients: State) -> State:
    """The clients as the shared model knows them: its own buffers, and as many rows of weights."""
    return {"w": clients["w"], **kept_of(clients, SHARED)}


def distance(own: Tensor, shared: Tensor, lam: float) -> Tensor:
    """(S,) how far the clients' own weights (S, n) are from the shared ones; 0 where no pull lam holds them there."""
    return (own - shared).square_().sum(-1).sqrt_() * float(lam > 0)
