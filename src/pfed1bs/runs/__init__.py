"""Runs on disk: configuration, folder, checkpoints, the loop that records rounds."""
