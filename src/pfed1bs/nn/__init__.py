"""Models on flat weights, stacked over clients."""
