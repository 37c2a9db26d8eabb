"""`python -m pfed1bs` is the command line."""

from pfed1bs.cli import script

script()
