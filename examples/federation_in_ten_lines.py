# %% [markdown]
# # A federation in ten lines
# Ten clients with different labels, a model for each, and what it cost.

# %%
from pfed1bs import Task, build, evaluate, federate, load, make, simulate

data = federate(load("digits"), clients=10, scheme="dirichlet:0.3")
task = Task(build("mlp", data.shape, data.num_classes))
scores = {}
for name in ("local", "fedavg", "pfed1bs-delta"):
    method, sent = make(name, task), 0
    for done in simulate(method, data, rounds=10):
        sent += done.traffic.up + done.traffic.down
    scores[name] = evaluate(method, data, done.progress)["personal"].micro, sent

# %% [markdown]
# Percent of the clients' own test samples, and bytes both ways.

# %%
for name, (score, sent) in scores.items():
    print(f"{name:14} {score:6.2f} % {sent:12,} bytes")
