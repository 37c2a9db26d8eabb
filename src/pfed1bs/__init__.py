"""Personalised federated learning with one-bit random sketches, byte-exact."""
