"""The steady state of clients that take part now and then: closed form against the traffic of the real exchange."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from pfed1bs.algorithms.base.anchors import Anchors, layout, period
from pfed1bs.algorithms.base.method import Method
from pfed1bs.algorithms.base.onebit import sketch_size
from pfed1bs.engine.cohorts import sample
from pfed1bs.engine.exchange import remember, tell
from pfed1bs.engine.ledger import traffic
from pfed1bs.facts.printed import NETS
from pfed1bs.facts.steady import missed, steady, table
from pfed1bs.wire.codecs import Floats, Signs
from pfed1bs.wire.messages import encode, fixed_size

MLP = NETS["mlp"].n


@dataclass(frozen=True)
class Traffic(Method):
    """The messages of pfed1bs-delta with nothing in them."""

    task: None = None
    n: int = MLP
    ratio: float = 0.1
    every: int = 0

    replicates = True
    paper = personalises = init = local = aggregate = None

    @property
    def down(self):
        return {"signs": Signs(sketch_size(self.n, self.ratio)), "scale": Floats()}

    up = down

    @property
    def snapshot_layout(self):
        return layout(self.n) if self.every else {"theta": Floats((self.n,))}

    def anchor(self, round):
        return round - round % self.every if self.every else round

    def broadcast(self, server, cohort):
        return {"signs": server["signs"], "scale": torch.zeros(())} if cohort.round else {}

    def snapshot(self, server):
        return {name: server[name] for name in self.snapshot_layout}

    def replica(self, state):
        return None


def driven(row, rounds):
    """Mean bytes down to a client of a round: the real tell and remember, in the middle of a run, and no training."""
    method, n = Traffic(n=row.weights, ratio=row.ratio, every=row.every), row.weights
    signs = torch.zeros(method.down["signs"].size, dtype=torch.uint8)
    server = {"signs": signs, "theta": torch.zeros(n), **Anchors(SimpleNamespace(n=n), 0, 1).first()}
    limit, share = sum(codec.size for codec in method.snapshot_layout.values()), row.sampled / row.clients
    start = 1000 * (row.every or 1) + 10 * row.clients // row.sampled
    away = torch.empty(row.clients).geometric_(share, generator=torch.Generator().manual_seed(0)).long()
    seen, sizes, total = (start - away).clamp(min=-1), torch.ones(row.clients, dtype=torch.int64), 0
    old = encode(method.down, method.broadcast(server, sample(0, start, sizes, seen, 1)), kind="down", round=start)
    history = {r: old for r in range(start - limit // len(old), start)}
    for t in range(start, start + rounds):
        cohort = sample(0, t, sizes, seen, row.sampled)
        news = tell(method, server, history, cohort)
        total += traffic(method, news, [], cohort).down
        seen = seen.index_fill(0, cohort.ids, t)
        history = remember(method, history, news, seen)
        assert sum(len(data) for r, data in history.items() if r <= method.anchor(t)) <= limit
    return total / rounds / row.sampled


def test_bytes_by_hand():
    # Two messages a round trip at p = 1; with p = 1/2 two broadcasts in the mean, three of ten bytes at most cost 17.5.
    assert missed(10, 1000, 1.0) == 10 and missed(10, 1e9, 0.5) == pytest.approx(20)
    assert missed(10, 30, 0.5) == pytest.approx(10 * (1 + 1 / 2 + 1 / 4))
    assert missed(10, 25, 0.5, since=1) == pytest.approx(10 * (1 + 1 / 2 + 1 / 4 + 1 / 2 * 1 / 8))
    everybody = steady(MLP, 20, 20)
    assert (everybody.ratio, everybody.every, everybody.up, everybody.down) == (0.1, 0, 20 + 2545 + 4, 2569)


def test_the_bars_of_bytes_are_met_in_closed_form():
    assert steady(MLP, 100, 10, ratio=0.1, coded=False).of_fedavg == pytest.approx(57.6, abs=0.1)
    assert steady(MLP, 100, 10).of_fedavg > 100
    assert steady(MLP, 100_000, 100, ratio=0.1, coded=False).of_fedavg == pytest.approx(2.3, abs=0.05)
    assert steady(MLP, 100_000, 100, ratio=0.1, coded=True).of_fedavg > 14
    assert steady(MLP, 100_000, 100).of_fedavg > 20


def test_coded_snapshots_are_chosen_where_they_save_bytes():
    for row in table():
        plain, coded = (steady(MLP, row.clients, row.sampled, coded=kind) for kind in (False, True))
        assert row.down == (coded if row.every else plain).down
        assert row.down <= 1.03 * min(plain.down, coded.down)


@pytest.mark.parametrize("clients", [100, 2000])
@pytest.mark.parametrize("options", [{}, {"ratio": 0.1}, {"ratio": 0.1, "coded": False}])
def test_the_exchange_sends_what_the_closed_form_says(clients, options):
    row = steady(4 * 1024 + 3, clients, 10, **options)  # headers weigh more than for the MLP
    assert driven(row, rounds=36 * (row.every or 10)) == pytest.approx(row.down, rel=0.04)


def test_a_hundred_of_a_hundred_thousand_clients_send_a_fourteenth_of_fedavg_at_most():
    row = steady(MLP, 100_000, 100)
    found = driven(row, rounds=row.every)
    assert found == pytest.approx(row.down, rel=0.02)
    assert 2 * (20 + 4 * MLP) / (row.up + found) > 14


def test_the_closed_form_counts_the_messages_of_the_method():
    row = steady(MLP, 1000, 10)
    method = Traffic(ratio=row.ratio, every=row.every)
    assert fixed_size(method.down) == row.up and row.every == period(MLP, row.up)
