"""What the classes of methods stand on."""

from dataclasses import dataclass

import pytest
import torch

from pfed1bs.algorithms import REGISTRY, algorithm_class, make
from pfed1bs.algorithms.base.method import Method
from pfed1bs.core.errors import UserError
from pfed1bs.engine.contract import Algorithm
from pfed1bs.engine.rounds import begin
from pfed1bs.nn.task import Task


@pytest.mark.parametrize("name", REGISTRY)
def test_a_method_stands_on_one_base_at_most_and_that_on_method(name):
    found = algorithm_class(name)
    ours = [base for base in found.__mro__[1:] if base.__module__.startswith("pfed1bs.") and base is not Algorithm]
    assert ours[-1] is Method and len(ours) <= 2
    assert all(base.__module__.startswith("pfed1bs.algorithms.") for base in ours)


def test_a_class_that_inherits_the_contract_and_leaves_something_out_cannot_be_made():
    @dataclass(frozen=True)
    class Half(Method):
        paper = "nobody"
        personalises = False
        down = up = {}

        def init(self, clients):
            return {}, {}

    with pytest.raises(TypeError, match="aggregate, broadcast, local"):
        Half(None)


@pytest.mark.parametrize("name", ["fedavg", "pfed1bs-delta", "delta-float32", "ferret", "powersgd", "ditto"])
def test_a_model_in_float64_is_refused_with_the_way_out_where_numbers_are_sent(name):
    with pytest.raises(UserError, match=r"float32, but this model is torch.float64") as error:
        begin(make(name, Task(torch.nn.Linear(3, 2).double())), 2)
    assert "module.float()" in error.value.hint
    begin(make("pfed1bs", Task(torch.nn.Linear(3, 2).double())), 2)  # sends signs
