"""Clients that are judged on training samples which nobody trains on, for choices that test samples must not make."""

from dataclasses import replace

MOST = 400  # samples of a client that judge


def spared(data, cap, least):
    """The clients with `cap` training samples at most, judged on what that leaves over, at least so many samples."""
    ends = [min(cap, len(rows) - least) for rows in data.train]
    pairs = [(rows[:end], rows[end:][:MOST]) for rows, end in zip(data.train, ends, strict=True)]
    train, test = zip(*pairs, strict=True)
    return replace(data, train=train, test=test)
