"""The contract of a method, and the rounds it takes part in."""
