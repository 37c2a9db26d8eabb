"""What everything stands on: random numbers, the transform, sketches, votes, and the kernels behind them."""
