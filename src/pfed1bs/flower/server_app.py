"""What Flower runs at the server: the rounds, and the folder they leave behind."""

import sys

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from pfed1bs.core.errors import Told
from pfed1bs.flower.grid import GridLink
from pfed1bs.flower.resuming import defaults, resumed, told
from pfed1bs.flower.server import Stopped
from pfed1bs.flower.serving import serve
from pfed1bs.flower.settings import read

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run a federation, or go on with one; what the user can help is said in two lines."""
    try:
        values = resumed(context.run_config, defaults())
        config, rules = read(values)
        if config.threads:
            torch.set_num_threads(config.threads)
        serve(GridLink(grid), config, rules, told(values, context.run_config))
    except (Told, Stopped, OSError) as error:
        message, hint = getattr(error, "message", str(error)), getattr(error, "hint", "")
        print(f"error: {message}" + (f"\nhint: {hint}" if hint else ""), file=sys.stderr, flush=True)
        sys.tracebacklimit = 0  # Flower prints what is raised; fifty lines of its own code would hide these two
        raise error from None
