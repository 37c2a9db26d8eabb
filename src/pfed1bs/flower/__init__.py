"""Real federations: the methods of this package on Flower (docs/flower.md)."""
