"""Clients side by side: each one's numbers are those it has alone."""

from math import inf

import pytest
import torch
from torch import nn

from pfed1bs.core.rng import stream
from pfed1bs.nn import cuda_steps, lanes
from pfed1bs.nn.lanes import Ways, abreast, beside, client_by_client, placed
from pfed1bs.nn.stacked import Pass, Places


def test_clients_side_by_side_have_the_outputs_and_gradients_of_autograd():
    layer = nn.Linear(3, 2)
    weight, bias = (torch.randn(4, *shape, generator=stream(0, *shape)) for shape in ((2, 3), (2,)))
    x, error = (torch.randn(4, 5, size, generator=stream(1, size)) for size in (3, 2))
    values = {"weight": weight, "bias": bias}
    out = {name: torch.full_like(value, 7.0) for name, value in values.items()}

    def one(own, x):
        y = torch.func.functional_call(layer, dict(own), (x,))
        return y, 2 * y

    outputs, now, back = client_by_client(one, Pass(layer, 4, values, Places(out, keep=0.5, scale=-2.0)), x)
    now.to_features = torch.ones_like(outputs)
    back(error)
    assert torch.allclose(outputs, x @ weight.mT + bias[:, None])
    assert torch.equal(now.features, 2 * outputs)
    assert torch.allclose(out["weight"], 3.5 - 2 * (error + 2).mT @ x, atol=1e-5)
    assert torch.allclose(out["bias"], 3.5 - 2 * (error + 2).sum(1), atol=1e-5)
    assert now.places.done == {"weight", "bias"}


def test_gradients_that_a_kernel_takes_together_come_to_the_places_they_come_to_one_by_one(monkeypatch):
    gradients = {"a": torch.ones(3), "b": None, "c": torch.ones(2, 2).T, "d": torch.full((2,), 4.0)}
    taken = []

    def take(places, gradients, keep, scale):
        taken.extend(places)
        for place, gradient in zip(places, gradients, strict=True):
            place.copy_(keep * place + scale * gradient)

    for keep in (0.5, 1.0, 0.0):
        found = []
        for able in (False, True):
            monkeypatch.setattr(cuda_steps, "usable", lambda place, gradient, able=able: able and place.dim() == 1)
            monkeypatch.setattr(cuda_steps, "take", take)
            out = {name: torch.full((2, 2) if name == "c" else (3 - (name == "d"),), 7.0) for name in gradients}
            places = Places(out, keep, -2.0)
            placed(places, gradients)
            assert places.done == {*gradients}
            found.append(out)
        assert all(torch.equal(found[0][name], found[1][name]) for name in gradients)
    assert len(taken) == 4  # two parameters, where something is kept; NaN would stay with a factor of 0


def test_work_on_the_cpu_is_done_in_order():
    assert abreast(lambda i: i * i, 5, torch.device("cpu")) == [0, 1, 4, 9, 16]


def test_two_works_on_the_cpu_are_done_one_after_the_other():
    done = []
    assert beside(lambda: done.append(1) or "first", lambda: done.append(2) or 7, torch.zeros(2, 3)) == ("first", 7)
    assert done == [1, 2]


@pytest.mark.parametrize(
    "taken, fastest",
    [
        ({"a": 3.0, "b": 1.0, "c": 2.0}, "b"),
        ({"a": 1.0, "b": inf, "c": inf}, "a"),
        ({"a": inf, "b": inf, "c": 9.0}, "c"),
    ],
)
def test_the_fastest_way_is_taken_and_measured_once_for_every_size(monkeypatch, taken, fastest):
    gone, measured = [], []

    def milliseconds(work):
        work()
        measured.append(gone.pop())
        if taken[measured[-1]] == inf:
            raise torch.OutOfMemoryError
        return taken[measured[-1]]

    def way(name):
        def go(now):
            gone.append(name)
            return now.values["w"], now, lambda error: now.places.add("w", error)

        return go

    monkeypatch.setattr(lanes, "milliseconds", milliseconds)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    ways, chosen, w = {name: way(name) for name in taken}, Ways(), torch.ones(2, 3)
    for count, x in ((1, torch.zeros(2, 4)), (1, torch.zeros(2, 4)), (2, torch.zeros(2, 5))):
        out = torch.zeros(2, 3)
        outputs, _, back = chosen(ways, Pass(nn.Identity(), 2, {"w": w}, Places({"w": out}, keep=1.0, scale=1.0)), x)
        assert gone.pop() == fastest and measured == [*ways] * count
        assert torch.equal(w, torch.ones(2, 3)) and not out.any()  # measured on copies
        back(outputs)
        assert torch.equal(out, w)
    chosen(ways, Pass(nn.Identity(), 2, {"w": w}, None), torch.zeros(2, 6))  # judged, at another size
    assert gone == [fastest] and len(measured) == 6


def test_a_way_that_fails_is_said_once_and_left(monkeypatch):
    gone = []

    def broken(now):
        raise RuntimeError("it does not compile")

    def fine(now):
        gone.append("fine")
        return now.values["w"], now, lambda error: None

    monkeypatch.setattr(lanes, "milliseconds", lambda work: work() or 1.0)
    ways, own = Ways(), Pass(nn.Identity(), 2, {"w": torch.ones(2, 3)}, Places({}))
    with pytest.warns(UserWarning, match="'kernels', others are taken .it does not compile") as said:
        for size in (4, 5):
            ways({"kernels": broken, "stacked": fine}, own, torch.zeros(2, size))
    assert len(said) == 1 and gone == ["fine"] * 4


def test_what_is_recorded_goes_the_way_that_it_went_before(monkeypatch):
    gone, taped = [], [False]

    def way(name):
        return lambda now: (gone.append(name) or now.values["w"], now, lambda error: None)

    monkeypatch.setattr(lanes, "_measured", lambda way, now: float(way(now) is None or gone.pop() != "kernels"))
    monkeypatch.setattr(lanes, "recording", lambda device: taped[0])
    ways, both = Ways(), {name: way(name) for name in ("stacked", "kernels")}
    judged, trained = (Pass(nn.Identity(), 2, {"w": torch.ones(2, 3)}, to) for to in (None, Places({})))
    x = torch.zeros(2, 4)
    ways(both, judged, x)  # before anything was measured
    ways(both, trained, x)
    taped[0] = True
    for now in (judged, trained):
        ways(both, now, x)
    assert gone == ["stacked", "kernels", "stacked", "kernels"]
    ways(both, judged, torch.zeros(2, 5))  # never seen
    taped[0] = False
    ways(both, judged, torch.zeros(2, 5))
    assert gone[4:] == ["stacked", "kernels"]
