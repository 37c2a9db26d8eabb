"""What Flower runs at the server: the rounds, and the folder they leave behind."""

import sys

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from pfed1bs.core.errors import UserError
from pfed1bs.flower.grid import GridLink
from pfed1bs.flower.serving import serve
from pfed1bs.flower.settings import read

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run a federation, or go on with one."""
    try:
        config, rules = read(context.run_config)
        if config.threads:
            torch.set_num_threads(config.threads)
        serve(GridLink(grid), config, rules)
    except UserError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr, flush=True)
        raise
