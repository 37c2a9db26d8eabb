"""The example of low-rank adapters runs, and its messages count the adapters alone."""

import importlib.util
import json
import os
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from pfed1bs.algorithms import make
from pfed1bs.cli.main import main
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task

ROOT = Path(__file__).parent.parent
TINY = shlex.split("--clients 3 --rounds 2 --steps 1 --batch 4 --data.cap 10 --seeds 0 --device cpu --evaluate_every 2")
pytestmark = pytest.mark.filterwarnings("ignore:.* is computed client by client")


@pytest.fixture
def lora(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    yield __import__("lora")
    sys.modules.pop("lora")


@pytest.fixture
def root(monkeypatch):
    place = Path(os.environ.get("PFED1BS_DATA") or ROOT.parent / "shared" / "data")
    if not (place / "shakespeare").is_dir():
        pytest.skip(f"no data sets in {place}; set PFED1BS_DATA to test with them")
    monkeypatch.setenv("PFED1BS_DATA", str(place))


def letters(*shape):
    return torch.randint(71, shape, generator=torch.Generator().manual_seed(0))


def test_adapters_are_all_that_is_trained_and_sent(lora):
    base = build("chars", (8,), 71)
    task = Task(lora.adapted(build("chars", (8,), 71), rank=2))
    assert task.n == 2 * 2 * (96 * 2 + 2 * 96) and task.buffers(3) == {}
    assert all(part.name.endswith((".a", ".b")) for part in task.parts)
    w, x = torch.stack([task.init(seed) for seed in (0, 1)]), letters(2, 3, 8)
    assert not torch.equal(w[0], w[1])
    torch.testing.assert_close(task.logits(w, x, {})[0], base(x[0]).detach(), rtol=1e-5, atol=1e-5)  # B is 0
    w = w + 0.01
    stacked = Task(lora.adapted(build("chars", (8,), 71), rank=2), stacked=True).gradient(w, x, x, {})[0]
    torch.testing.assert_close(task.gradient(w, x, x, {})[0], stacked, rtol=1e-4, atol=1e-6)
    delta = make("pfed1bs-delta", task, ratio=0.1)
    assert delta.up["signs"].size == -(-(task.n // 10) // 8)


def test_methods_that_need_a_head_say_that_adapters_have_none(lora):
    task = Task(lora.adapted(build("chars", (8,), 71)))
    for name in ("fedper", "fedrep"):
        with pytest.raises(ValueError, match=r"its head, the last torch.nn.Linear, and .*has not both to train"):
            make(name, task).init(1)
            make(name, task).up  # noqa: B018
    with pytest.raises(ValueError, match="fedproto needs a model that ends in a trainable torch.nn.Linear"):
        make("fedproto", task).init(1)


@pytest.mark.usefixtures("no_page")
def test_the_recipe_of_adapters_runs(lora, root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lora.train("base.safetensors", steps=4, batch=4)
    monkeypatch.setenv("LORA_BASE", "base.safetensors")
    recipe = str(ROOT / "recipes" / "shakespeare-lora.toml")
    assert main(["compare", recipe, "--runs", "pfed1bs-delta ratio=0.01", *TINY, "--out", "out"]) == 0
    runs = json.loads((tmp_path / "out" / "table.json").read_text())["runs"]
    assert (
        len(runs) == 4 and {run["metric"] for run in runs} == {"bits"} and {run["parameters"] for run in runs} == {3072}
    )


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(("name", "clients"), [("audiomnist", 4), ("shakespeare", 4)])
def test_the_recipes_with_people_run(root, name, clients, tmp_path):
    recipe, flags = (
        str(ROOT / "recipes" / f"{name}.toml"),
        [*TINY, "--clients", str(clients), "--out", str(tmp_path / "out")],
    )
    assert main(["compare", recipe, "--algorithms", "local,fedavg-ft,pfed1bs-delta", *flags]) == 0
    runs = json.loads((tmp_path / "out" / "table.json").read_text())["runs"]
    metric = {"audiomnist": "accuracy", "shakespeare": "bits"}[name]
    assert all(run[f"{metric}_newcomers"] > 0 and run["newcomers"] == 2 for run in runs)


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
def test_adapters_of_peft_are_all_that_is_trained():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(build("chars", (8,), 71), LoraConfig(r=2, target_modules=["query", "value"]))
    task = Task(model)
    assert task.n == 2 * 2 * (96 * 2 + 2 * 96)
    w, x = torch.stack([task.init(seed) for seed in (0, 1)]), letters(2, 3, 8)
    grad, loss, _ = task.gradient(w, x, x, task.buffers(2))
    assert grad.shape == (2, task.n) and torch.isfinite(loss).all() and isinstance(model, nn.Module)


def test_the_example_of_bits_shows_what_it_says():
    told = runpy.run_path(str(ROOT / "examples" / "what_one_bit_carries.py"))
    for angle, differ in told["angles"].items():
        assert abs(angle - differ) < 0.04  # four deviations of m = 2,000 coins
    assert abs(told["cosine"] - 0.252) < 0.02
    assert told["together"] > told["alone"] + 0.1


def test_the_example_of_ten_lines_is_a_federation():
    told = runpy.run_path(str(ROOT / "examples" / "federation_in_ten_lines.py"))
    sent = {name: bytes_ for name, (_, bytes_) in told["scores"].items()}
    assert sent["local"] == 0 and 0 < 100 * sent["pfed1bs-delta"] < sent["fedavg"]
