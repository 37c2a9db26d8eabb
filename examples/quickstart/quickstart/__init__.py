"""A Flower app of the usual kind: task.py has model and training, the other files what Flower calls."""
