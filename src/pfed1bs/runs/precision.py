"""How exactly a GPU multiplies."""

import torch

from pfed1bs.core.errors import UserError

AMPERE = (8, 0)  # the first devices that have tf32


def multiply(device: torch.device, tf32: bool) -> None:
    """Have products of this process computed from float32 numbers as they are, or from their first 11 bits (tf32)."""
    if tf32 and device.type != "cuda":
        raise UserError(
            f"tf32 means nothing on {device.type}: it is a way in which NVIDIA GPUs multiply", "leave it out"
        )
    if tf32 and torch.cuda.get_device_capability(device) < AMPERE:
        raise UserError(f"{torch.cuda.get_device_name(device)} is too old for tf32", "leave it out")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
