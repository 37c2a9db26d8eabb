"""What clients say is packed and on its way before a device is waited for."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from pfed1bs.algorithms.pfed1bs import PFed1BS
from pfed1bs.core.rng import stream
from pfed1bs.core.votes import pack, sign
from pfed1bs.data import Federation
from pfed1bs.engine import answers, turns
from pfed1bs.engine.answers import ready
from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.rounds import simulate
from pfed1bs.engine.turns import Diverged
from pfed1bs.wire.codecs import Floats, Signs
from tiny import linear

LAYOUT = {"signs": Signs(11), "held": Signs(11), "scale": Floats()}


def test_signs_are_packed_and_all_else_stays_as_it_is():
    x, scale = sign(torch.randn(3, 11, generator=stream(0, "signs"))), torch.rand(3)
    fields, good = ready(LAYOUT, {"signs": x, "held": pack(x), "scale": scale})
    assert good and all(torch.equal(fields[name], pack(x)) for name in ("signs", "held"))
    assert torch.equal(fields["scale"], scale)
    x[1, 2] = 0.0
    assert not ready(LAYOUT, {"signs": x})[1] and ready(LAYOUT, {"scale": scale})[1] is True


def test_signs_leave_their_device_packed(monkeypatch):
    left, home = [], answers._home
    monkeypatch.setattr(answers, "_home", lambda field, **how: left.append(field.dtype) or home(field, **how))
    said = {"signs": sign(torch.randn(2, 11, generator=stream(0, "signs")))}
    method = SimpleNamespace(up={"signs": LAYOUT["signs"]})
    ids = torch.arange(2)
    assert len(answers.say(method, said, Cohort(0, 0, ids, ids, ids))) == 2
    ready(method.up, said)
    assert left == [torch.uint8] * 2


@dataclass(frozen=True)
class Wrong(PFed1BS):
    """Says something in place of a sign."""

    instead: float = 0.5

    def local(self, clients, received, cohort, batches):
        state, said = super().local(clients, received, cohort, batches)
        said["sketch"][cohort.ids == 1, 0] = self.instead
        return state, said


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("instead, error", [(0.5, ValueError), (float("nan"), Diverged)])
def test_what_is_no_sign_is_refused_also_where_it_is_packed_early(monkeypatch, early, instead, error):
    monkeypatch.setattr(turns, "early", lambda clients: early)
    own = tuple(torch.arange(6).view(2, 3))
    data = Federation(torch.ones(6, 1), torch.arange(6) % 2, own, own, torch.arange(6), 2)
    with pytest.raises(error, match="signs must be|client 1 became NaN"):
        list(simulate(Wrong(linear(), ratio=1.0, instead=instead), data, rounds=1, steps=1, batch=1, device="cpu"))
