# %% [markdown]
# # What one bit carries
# A sketch is m random sums of n weights; of each only the sign is sent. Open this file in an editor that knows cells
# (`# %%`), or run it: `python examples/what_one_bit_carries.py`.

# %%
import math

import torch

from pfed1bs import gaussian, pack, sign, srht, stream, unpack, vote

n, m = 20_000, 2_000
phi = srht(n, m, seed=7)  # both ends draw it from the seed
draw = stream(0, "example")
first, other = torch.randn(2, n, generator=draw)

# %% [markdown]
# ## Length is lost, angle is kept
# Twice the weights have the same signs. The share of signs that differ between two vectors is their angle over pi.

# %%
assert torch.equal(sign(phi.forward(2 * first)), sign(phi.forward(first)))
angles = {}
for share in (0.0, 0.1, 0.3, 1.0):
    mixed = (1 - share) * first + share * other
    angle = math.acos(float(torch.cosine_similarity(first, mixed, 0).clamp(-1, 1))) / math.pi
    differ = float((sign(phi.forward(first)) != sign(phi.forward(mixed))).float().mean())
    angles[angle] = differ
    print(f"angle / pi {angle:.3f}, signs that differ {differ:.3f}")

# %% [markdown]
# ## Back to weights
# The adjoint turns m signs into n numbers. They point to where the weights point, as far as m of n sums can tell:
# the cosine is about sqrt(2 m / (pi n)).

# %%
back = phi.adjoint(sign(phi.forward(first)))
cosine = float(torch.cosine_similarity(first, back, 0))
print(f"cosine {cosine:.3f}, to expect {math.sqrt(2 * m / (math.pi * n)):.3f}")

# %% [markdown]
# ## A vote
# Twenty clients hold the same direction under noise of five times its length. Each sign alone is hardly better than a
# coin; the vote of all is nearer to the sign without noise. It costs m bits a client.

# %%
clients = first + 5 * torch.randn(20, n, generator=draw)
signs = sign(phi.forward(clients))
majority = unpack(vote(pack(signs), weights=[1] * 20, previous=pack(signs[0]), m=m), m)
truth = sign(phi.forward(first))
alone, together = float((signs == truth).float().mean()), float((majority == truth).float().mean())
print(f"right alone {alone:.3f}, right together {together:.3f}, bytes a client {pack(signs[0]).numel()}")

# %% [markdown]
# A dense Gaussian projection tells the same and needs n m numbers instead of a seed and n log n additions.

# %%
dense = gaussian(400, 100, seed=7)
assert dense.forward(torch.ones(400)).shape == (100,)
