"""What the classes of methods stand on."""

from dataclasses import dataclass

import pytest

from pfed1bs.algorithms import REGISTRY, algorithm_class
from pfed1bs.algorithms.base.method import Method
from pfed1bs.engine.contract import Algorithm


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
