"""Data of many clients: loading, partition, federation."""

from pfed1bs.data.dataset import Dataset
from pfed1bs.data.dealing import federate
from pfed1bs.data.federation import Federation
from pfed1bs.data.partitions import partition
from pfed1bs.data.sources import load

__all__ = ["Dataset", "Federation", "federate", "load", "partition"]
