"""Data sets in which every sample has an owner: spoken digits by speaker (AudioMNIST), Shakespeare by role."""

import gzip
import json
import wave
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pfed1bs.core.extras import need
from pfed1bs.data.dataset import Arrays, hold_out
from pfed1bs.data.files import array, existing, reading

LETTERS = "\n !\"&'(),-.24568:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
WINDOW = 64  # characters of a sample
HIGHEST = 192_000  # Hz
RATE, HOP, FRAME, BANDS = 8000, 250, 512, 32  # Hz, samples, samples, mel filters from 50 to 4000 Hz


def read_pictures(folder: Path) -> Arrays:
    """AudioMNIST as prepared: log-mel pictures of all recordings in one PNG, labels and speakers beside it."""
    need("PIL", "data")
    from PIL import Image

    with reading(folder / "images.png"), Image.open(folder / "images.png", formats=("PNG",)) as image:
        if image.size != (60 * 32, 500 * 32):
            raise ValueError(f"500 rows of 60 pictures of 32x32 are expected, got {image.size}")
        pixels = np.asarray(image).reshape(500, 32, 60, 32).transpose(2, 0, 3, 1).reshape(-1, 32, 32)
    return hold_out(pixels, array(folder / "labels.npy"), array(folder / "speakers.npy"))


def read_recordings(folder: Path) -> Arrays:
    """AudioMNIST as published, data/NN/D_NN_R.wav: digit D of speaker NN, recording R."""
    need("scipy", "data")
    paths = [path for path in folder.glob("data/[0-9][0-9]/*.wav") if path.stem.count("_") == 2]
    named = sorted((int(s), int(d), int(r), path) for path in paths for d, s, r in [path.stem.split("_")])
    images = np.stack([_picture(path) for *_, path in named])
    labels = np.array([digit for _, digit, _, _ in named], np.uint8)
    return hold_out(images, labels, np.array([speaker - 1 for speaker, _, _, _ in named], np.uint8))


def spectrogram(samples: NDArray[np.float64], rate: int) -> NDArray[np.uint8]:
    """A picture (band, frame) of up to a second of sound: decibels below its loudest cell, 255 for it, 0 from -80 on.

    At 8 kHz, padded with zeros to a second on both sides; 32 frames of 512 samples under a Hann window, frame k around
    sample 250 k + 125; 32 triangular filters on the HTK mel scale.
    """
    from scipy.signal import resample_poly

    x = resample_poly(samples, 1, rate // RATE)
    if len(x) > RATE:
        raise ValueError(f"a recording must not be longer than a second, got {len(x) / RATE:.2f} s")
    left = (RATE - len(x)) // 2
    x = np.pad(x, (left + FRAME // 2, RATE - len(x) - left + FRAME // 2))
    starts = HOP * np.arange(RATE // HOP) + HOP // 2  # of frames in the padded sound
    window = 0.5 - 0.5 * np.cos(2 * np.pi * (np.arange(FRAME) + 0.5) / FRAME)
    power = np.abs(np.fft.rfft(x[starts[:, None] + np.arange(FRAME)] * window)) ** 2
    level = 10 * np.log10(filters() @ power.T + 1e-20)
    return np.asarray(np.rint(255 / 80 * (np.clip(level - level.max(), -80, 0) + 80)), np.uint8)


def filters() -> NDArray[np.float64]:
    """Triangles of unit peak (bands, frequencies), their edges equally far apart on the mel scale."""
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in (50, RATE / 2))
    edges = 700 * (10 ** (np.linspace(low, high, BANDS + 2) / 2595) - 1)
    at = np.fft.rfftfreq(FRAME, 1 / RATE)
    rising = (at - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - at) / np.diff(edges)[1:, None]
    return np.clip(np.minimum(rising, falling), 0, None)


def _picture(path: Path) -> NDArray[np.uint8]:
    """The picture of a WAV file of 16 bits and one channel."""
    with reading(path), wave.open(str(path)) as file:
        rate = file.getframerate()
        if file.getnchannels() != 1 or file.getsampwidth() != 2 or rate % RATE or not RATE <= rate <= HIGHEST:
            raise ValueError(f"one channel of 16 bits at a multiple of {RATE} Hz is known, got {file.getparams()}")
        return spectrogram(np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768, rate)


def read_roles(folder: Path) -> Arrays:
    """Shakespeare as prepared: the speeches of every role, as text."""
    path = existing(folder, "roles.json")
    with reading(path):
        content = path.read_bytes()
        roles = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
        return windows((f"{role['play']}/{role['role']}", role["text"]) for role in roles)


def read_leaf(folder: Path) -> Arrays:
    """Shakespeare as LEAF prepares it, all_data/all_data.json before sampling: windows one letter apart."""
    path = folder / "all_data" / "all_data.json"
    with reading(path):
        users = json.loads(path.read_bytes())["user_data"]
        for name, data in users.items():
            if any(a[1:] != b[:-1] for a, b in zip(data["x"], data["x"][1:], strict=False)):
                raise ValueError(
                    f"the samples of {name} are not all of its text in order; take the file before sampling"
                )
        return windows((name, data["x"][0] + "".join(data["y"])) for name, data in users.items() if data["x"])


def windows(texts: Iterable[tuple[str, str]]) -> Arrays:
    """Inputs and targets (N, WINDOW), each the letters after its inputs', one window after the other, and owners.

    What is not among LETTERS counts as a space; what does not fill a window is left out.
    """
    space = LETTERS.index(" ")
    places = {letter: i for i, letter in enumerate(LETTERS)}
    x, y, owners = [], [], []
    for name, text in texts:
        codes = np.array([places.get(letter, space) for letter in text], np.int64)
        count = (len(codes) - 1) // WINDOW
        if count > 0:
            x.append(codes[: count * WINDOW].reshape(-1, WINDOW))
            y.append(codes[1 : count * WINDOW + 1].reshape(-1, WINDOW))
            owners += [name] * count
    return hold_out(np.concatenate(x), np.concatenate(y), np.array(owners))
