"""Data of many clients: loading, partition, federation."""

from pfed1bs.data.dataset import Dataset
from pfed1bs.data.federation import Federation, federate
from pfed1bs.data.load import load
from pfed1bs.data.partition import partition

__all__ = ["Dataset", "Federation", "federate", "load", "partition"]
