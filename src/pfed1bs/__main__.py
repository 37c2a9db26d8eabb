"""`python -m pfed1bs` is the command line."""

from pfed1bs.cli.main import script

script()
