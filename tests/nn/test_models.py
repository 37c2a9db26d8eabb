"""Parameter counts, names and imports of the models."""

import pytest
import torch
from torch import nn

from pfed1bs.nn.models import MODELS, build


def count(model):
    return sum(p.numel() for p in model.parameters())


def tiny(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], classes))


def number(shape, classes):
    return 3


@pytest.mark.parametrize(
    "name, shape, classes, expected, buffers",
    [
        ("mlp", (1, 28, 28), 10, 203_530, 0),
        ("mlp", (64,), 10, 19_210, 0),
        ("cnn", (1, 32, 32), 10, 33_546, 0),
        ("gru", (64,), 71, 73_639, 0),
        ("chars", (64,), 71, 243_719, 0),
        ("vgg8", (3, 32, 32), 10, 280_074, 741),
        ("vgg16", (3, 32, 32), 100, 15_299_748, 8_461),
    ],
)
def test_parameter_counts_are_those_that_are_told(name, shape, classes, expected, buffers):
    with torch.device("meta"):
        model = build(name, shape, classes)
    assert count(model) == expected
    assert sum(b.numel() for b in model.buffers()) == buffers


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("gru", "chars")])
def test_outputs_are_one_row_of_logits_per_sample(name):
    with torch.device("meta"):
        assert build(name, (3, 32, 32), 7)(torch.empty(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize("name", ["gru", "chars"])
def test_character_models_say_what_comes_next_at_every_place_and_do_not_look_ahead(name):
    model = build(name, (9,), 7)
    x = torch.arange(18).view(2, 9) % 7
    y = model(x)
    x[:, 5:] = 0
    assert y.shape == (2, 9, 7) and torch.equal(model(x)[:, :5], y[:, :5]) and not torch.equal(model(x), y)


def test_unknown_model_says_the_nearest_name():
    with pytest.raises(ValueError, match="unknown model 'vg16'; did you mean vgg16"):
        build("vg16", (3, 32, 32), 10)


def test_your_own_function_is_imported_by_name():
    assert count(build(f"{__name__}:tiny", (4,), 3)) == 15


@pytest.mark.parametrize("name", ["no.such.package:f", f"{__name__}:missing", f"{__name__}:count.x"])
def test_function_that_cannot_be_imported_says_how_to_write_it(name):
    with pytest.raises(ValueError, match='write "package.module:function"'):
        build(name, (4,), 3)


def test_function_that_returns_no_module_is_refused():
    with pytest.raises(ValueError, match="must return a torch.nn.Module, got int"):
        build(f"{__name__}:number", (4,), 3)


def test_picture_too_small_for_vgg_is_refused():
    with pytest.raises(ValueError, match=r"vgg8 needs pictures .* at least 32 x 32 pixels, got \(1, 28, 28\)"):
        build("vgg8", (1, 28, 28), 10)


def test_building_leaves_the_global_random_state_alone_and_repeats_itself():
    before = torch.get_rng_state()
    first, second = build("mlp", (4,), 2), build("mlp", (4,), 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
