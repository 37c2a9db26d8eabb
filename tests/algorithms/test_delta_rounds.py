"""Rounds of pfed1bs-delta against NumPy: two clients, ten weights, projections as dense matrices built from the words
of docs/wire.md. Nothing here but the method itself is our code."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from pfed1bs.algorithms.base.kesten import steadied, unmoved
from pfed1bs.algorithms.pfed1bs_delta import PFed1BSDelta
from pfed1bs.engine.contract import Cohort
from pfed1bs.nn.task import Task

SEED, STEPS, BATCH = 5, 3, 4
SIZES = (1, 3)  # so the shares are 1/4 and 3/4
MASK = (1 << 64) - 1
LAYERS = (6, 4)  # weights of the two layers: W (2, 3) and V (2, 2), logits V W x


def word(key, index):
    z = (key + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def key(seed, purpose, round):
    return word(word(seed, purpose), round)


def flips(seed, purpose, round, count):
    """Fewer than 64 signs, from the bits of one word."""
    return np.array([1.0 if word(key(seed, purpose, round), 0) >> i & 1 else -1.0 for i in range(count)])


def hadamard(size):
    h = np.ones((1, 1))
    while len(h) < size:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(len(h))


def projection(n, m, seed, round):
    """Phi = sqrt(n'/m) S H D P."""
    size = 1 << (n - 1).bit_length()
    bits, drawn, index = size.bit_length() - 1, [], 0
    while len(drawn) < min(m, size - m):
        w, index = word(key(seed, 1, round), index), index + 1
        for half in (w & 0xFFFFFFFF, w >> 32):
            if half >> (32 - bits) not in drawn and len(drawn) < min(m, size - m):
                drawn.append(half >> (32 - bits))
    rows = sorted(drawn) if m <= size - m else [i for i in range(size) if i not in drawn]
    return np.sqrt(size / m) * hadamard(size)[rows][:, :n] * flips(seed, 0, round, n)


def rotation(m, seed, round):
    """R = blocks of H by the binary digits of m, times D."""
    r, start = np.zeros((m, m)), 0
    for i in reversed(range(m.bit_length())):
        if m >> i & 1:
            r[start : start + (1 << i), start : start + (1 << i)] = hadamard(1 << i)
            start += 1 << i
    return r * flips(seed, 2, round, m)


def blocks(parts):
    result = np.zeros([sum(part.shape[axis] for part in parts) for axis in (0, 1)])
    row = column = 0
    for part in parts:
        result[row : row + len(part), column : column + part.shape[1]] = part
        row, column = row + len(part), column + part.shape[1]
    return result


def gradient(w, x, y, norm):
    """Of the mean cross-entropy of V W x, and mean and variance of W x; `norm` normalises W x by them."""
    first, second = w[:6].reshape(2, 3), w[6:].reshape(2, 2)
    inner = x @ first.T
    mean, var = inner.mean(0), inner.var(0)
    width = np.sqrt(var + 1e-5)
    seen = (inner - mean) / width if norm else inner
    logits = seen @ second.T
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    error = (p - np.eye(2)[y]) / len(y)
    back = error @ second
    if norm:
        back = (back - back.mean(0) - seen * (back * seen).mean(0)) / width
    return np.concatenate([back.T @ x, error.T @ seen], axis=None), mean, var * len(x) / (len(x) - 1)


class Oracle:
    """The method in plain words, in float64."""

    def __init__(self, method, theta, norm):
        self.method, self.norm = method, norm
        self.theta = theta.astype(np.float64)
        self.w = np.stack([self.theta, self.theta])
        self.statistics = [{kind: (np.zeros(2), np.ones(2)) for kind in ("own", "shared")} for _ in SIZES]
        self.memory, self.server_memory = np.zeros((2, 10)), np.zeros(10)
        self.last, self.trend, self.gain = np.zeros(10), 0.0, 1.0
        self.apart = np.zeros(2)

    def pieces(self):
        return LAYERS if self.method.scales == "layer" else (10,)

    def seeds(self):
        return [key(SEED, 4, i) for i in range(2)] if self.method.scales == "layer" else [SEED]

    def matrices(self, round):
        bits = [n // 2 for n in self.pieces()]
        of = list(zip(self.pieces(), bits, self.seeds(), strict=True))
        phi = blocks([projection(n, m, seed, round) for n, m, seed in of])
        turn = blocks([rotation(m, seed, round) for _, m, seed in of]) if self.method.rotate else np.eye(sum(bits))
        return phi, turn, np.repeat(np.arange(len(bits)), bits)

    def scales(self, a, piece):
        """|a|_2^2 / |a|_1 of every piece, or |a|_1 / n under feedback."""
        found = []
        for i, n in enumerate(self.pieces()):
            own = a[piece == i]
            found.append(abs(own).sum() / n if self.method.feedback else (own**2).sum() / abs(own).sum())
        return np.array(found)

    def walk(self, w, k, kind, batches, lam=0.0):
        velocity, theta = np.zeros(10), self.theta
        for x, y in batches:
            slope, *seen = gradient(w, x, y, self.norm)
            old = self.statistics[k][kind]
            self.statistics[k][kind] = [0.9 * before + 0.1 * now for before, now in zip(old, seen, strict=True)]
            slope = slope + lam * (w - theta) + self.method.mu * w
            velocity = self.method.momentum * velocity + slope
            w = w - self.method.lr * velocity
        return w

    def round(self, t, batches):
        """Signs and scales of both clients, and what the server answers."""
        phi, turn, piece = self.matrices(t)
        said, q = [], 0.0
        for k, share in enumerate((0.25, 0.75)):
            mean = max(0.1, 1 / (t + 1))
            u = self.walk(self.theta, k, "shared", batches[k])
            delta = u - self.theta + self.memory[k]
            a = phi @ delta
            assert abs(a).min() > 1e-5  # otherwise rounding decides a sign
            z, s = np.where(a >= 0, 1.0, -1.0), self.scales(a, piece)
            if self.method.feedback:
                self.memory[k] = delta - phi.T @ (s[piece] * z)
            said.append((z, s))
            q = q + share * s[piece] * z
            if self.method.keep == "ft":
                self.w[k], self.statistics[k]["own"] = u, self.statistics[k]["shared"]
            elif self.method.keep == "mean":
                own = self.statistics[k]
                own["own"] = [(1 - mean) * a + mean * b for a, b in zip(own["own"], own["shared"], strict=True)]
                self.w[k] = (1 - mean) * self.w[k] + mean * u
            else:
                self.w[k] = self.walk(self.w[k], k, "own", batches[k], self.method.lam)
                self.apart[k] = np.linalg.norm(self.w[k] - self.theta)
        if self.method.feedback:
            self.server_memory = self.server_memory + phi.T @ q
            q = phi @ self.server_memory
        r = turn @ q
        r = np.where(abs(r) < 1e-12, 0.0, r)  # two clients' scales cancel exactly in blocks of four
        assert abs(r[r != 0]).min() > 1e-5
        v, s = np.where(r >= 0, 1.0, -1.0), self.scales(r, piece)
        full = phi.T @ turn.T @ (s[piece] * v)
        if self.method.feedback:
            self.server_memory = self.server_memory - full
        eta = self.gain * (self.method.step or 1.0) / (1 + self.method.decay * t)
        self.theta, before = self.theta + eta * full, self.theta
        if self.method.steady:
            lengths = np.linalg.norm(full) * np.linalg.norm(self.last)
            errors = np.sqrt(10) * (full @ self.last) / lengths if lengths else 0.0
            self.trend, self.last = (self.trend + np.clip(errors, -3, 3)) / 2, full
            self.gain = min(1.0, self.gain * np.exp(0.3 * self.trend))
        return said, (v, eta * s), self.theta - before


class Given:
    """The batches that a test writes down: [client][step] of (x, y)."""

    def __init__(self, batches):
        self.batches, self.steps = batches, STEPS

    def __call__(self, name="train", steps=None):
        for pairs in zip(*self.batches, strict=True):
            yield tuple(torch.stack([torch.as_tensor(pair[i]) for pair in pairs]) for i in (0, 1))


def drawn(t):
    rng = np.random.default_rng(t + 10)
    return [
        [(rng.normal(k, 1 + k, (BATCH, 3)).astype(np.float32), rng.integers(2, size=BATCH)) for _ in range(STEPS)]
        for k in (0, 1)
    ]


def cohort(t):
    return Cohort(0, t, torch.tensor([0, 1]), torch.tensor(SIZES), torch.tensor([t - 1, t - 1]))


def close(found, expected):
    assert_allclose(np.asarray(found), expected, rtol=2e-4, atol=2e-5)  # float32 over twelve steps


def played(norm=False, rounds=4, **options):
    """The method and the oracle side by side."""
    between = [nn.BatchNorm1d(2, affine=False)] if norm else []
    task = Task(nn.Sequential(nn.Linear(3, 2, bias=False), *between, nn.Linear(2, 2, bias=False)))
    method = PFed1BSDelta(task, SEED, lr=0.3, mu=0.01, ratio=0.5, **options)
    server, clients = method.init(2)
    oracle, shift = Oracle(method, server["theta"].numpy(), norm), 0.0
    for t in range(rounds):
        message = method.broadcast(server, cohort(t))
        assert bool(message) == (t > 0)
        if message:
            signs = torch.from_numpy(np.unpackbits(message["signs"].numpy(), bitorder="little"))[: method.m]
            before = clients
            clients = method.absorb(clients, {**message, "signs": 2.0 * signs - 1}, t)
            if method.follow and method.keep != "ft":
                oracle.w = oracle.w + shift
                assert not torch.equal(clients["w"], before["w"])
        close(clients["theta"], np.stack([oracle.theta] * 2))
        clients, said = method.local(clients, {}, cohort(t), Given(drawn(t)))
        heard, (v, s), shift = oracle.round(t, drawn(t))
        if method.keep == "prox":
            close(clients["log/apart" if method.follow else "log/behind"], oracle.apart)
        for k in (0, 1):
            assert said["signs"][k].tolist() == heard[k][0].tolist()
            close(said["scale"][k].reshape(-1), heard[k][1])
        packed = [
            {"signs": torch.from_numpy(np.packbits(said["signs"][k].numpy() > 0, bitorder="little")),
             "scale": said["scale"][k]} for k in (0, 1)
        ]  # fmt: skip
        server = method.aggregate(server, packed, cohort(t))
        assert np.unpackbits(server["signs"].numpy(), bitorder="little")[: method.m].tolist() == (v > 0).tolist()
        close(server["scale"].reshape(-1), s)
        close(server["theta"], oracle.theta)
        close(server["log/shift"], np.linalg.norm(shift))
        close(clients["w"], oracle.w)
    return method, server, clients, oracle


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"keep": "ft"},
        {"lam": 1.0, "momentum": 0.9},
        {"keep": "ft", "momentum": 0.5},
        {"keep": "mean"},
        {"keep": "mean", "follow": False, "momentum": 0.5},
        {"step": 0.3, "decay": 0.5},
        {"rotate": False},
        {"follow": False},
        {"scales": "layer"},
        {"scales": "layer", "rotate": False, "keep": "ft"},
        {"steady": True},
        {"steady": True, "step": 2.0, "keep": "ft"},
        {"feedback": True},
        {"feedback": True, "scales": "layer", "step": 0.5},
    ],
    ids=str,
)
def test_rounds_of_two_clients_are_what_the_words_say(options):
    method, server, clients, oracle = played(**options)
    if method.steady:
        assert oracle.gain < 0.9
        close(server["gain"], oracle.gain)
    if method.feedback:
        close(clients["error"], oracle.memory)
        close(server["error"], oracle.server_memory)


@pytest.mark.parametrize("keep", ["prox", "ft", "mean"])
def test_both_models_of_a_client_have_statistics_of_their_own(keep):
    method, server, clients, oracle = played(norm=True, keep=keep)
    for prefix, kind in (("", "own"), ("shared/", "shared")):
        mean, var = zip(*(oracle.statistics[k][kind] for k in (0, 1)), strict=True)
        close(clients[f"{prefix}buffer/1.running_mean"], np.stack(mean))
        close(clients[f"{prefix}buffer/1.running_var"], np.stack(var))
    judged = method.personal(server, clients, cohort(4), Given(drawn(4)))
    close(judged["global"]["w"], np.stack([oracle.theta] * 2))
    close(judged["personal"]["w"], oracle.w)
    close(judged["global"]["buffer/1.running_mean"], np.stack([own["shared"][0] for own in oracle.statistics]))
    close(judged["personal"]["buffer/1.running_var"], np.stack([own["own"][1] for own in oracle.statistics]))


def test_one_layer_with_a_scale_of_its_own_is_one_scale():
    task = Task(nn.Linear(3, 2, bias=False))
    one, layer = (PFed1BSDelta(task, ratio=0.5, scales=scales) for scales in ("one", "layer"))
    assert one.down["scale"].shape == layer.down["scale"].shape == ()
    delta = torch.arange(6.0)
    assert torch.equal(one.code(3).sketch(delta), layer.code(3).sketch(delta))
    server, clients = layer.init(2)
    batches = Given([[(x, y) for x, y in client] for client in drawn(0)])
    _, said = layer.local(clients, {}, cohort(0), batches)
    assert said["scale"].shape == (2,)


def test_neighbouring_seeds_share_no_projection_of_a_layer():
    task = Task(nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)))
    codes = [PFed1BSDelta(task, seed, scales="layer", ratio=0.5).code(0) for seed in (7, 8)]
    seeds = [seed for code in codes for seed in code.seeds]
    assert len({*seeds}) == 6 and not {7, 8} & {*seeds}
    assert [sketch.signs.tolist() for sketch in codes[0].sketches[1:]] != [
        sketch.signs.tolist() for sketch in codes[1].sketches[:-1]
    ]


def test_steps_that_go_on_lengthen_up_to_a_whole_one_and_one_pair_counts_three_errors_at_most():
    step = torch.ones(10_000)
    on = steadied({"last": step, "trend": torch.tensor(0.0), "gain": torch.tensor(0.1)}, step)
    back = steadied({**unmoved(step), "last": step}, -step)  # 100 standard errors, either way
    assert [float(one["trend"]) for one in (on, back)] == [1.5, -1.5]
    assert [float(one["gain"]) for one in (on, back)] == pytest.approx([0.1 * np.exp(0.45), np.exp(-0.45)])
    assert float(steadied({**on, "gain": torch.tensor(0.9)}, step)["gain"]) == 1
