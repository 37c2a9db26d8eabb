"""The commands, one line each, and the flags of those that take no configuration."""

import argparse
from collections.abc import Mapping

HELP = {
    "run": "run one method: pfed1bs run [RECIPE.toml] [--rounds 50] [--algorithm.lam 1e-3] [--out DIR] [--resume]",
    "compare": "run several methods, variants and seeds: pfed1bs compare [RECIPE.toml] --algorithms pfed1bs,local "
    "--runs 'pfed1bs-delta step=0.3' --seeds 0,1,2",
    "report": "make report.html from run folders: pfed1bs report RUN... [--out DIR]",
    "data": "show who holds what: pfed1bs data [RECIPE.toml] [--data.partition labels:2]",
    "list": "list the methods with what they send, what they keep and what they can do",
    "costs": "the cost column of the paper's table, recomputed, and which cells cannot be right",
    "flower": "real federations: pfed1bs flower init DIR [RECIPE.toml], pfed1bs flower certificates|gate DIR",
    "bench": "measure this machine: pfed1bs bench kernels [--out DIR], pfed1bs bench gpu [--vgg16] [--out FILE]",
    "env": "versions, device, kernel: for bug reports",
}

BENCHMARKS = {
    "kernels": "transform, sketch, packing and vote on this processor, against a copy of the same memory",
    "gpu": "the same on a GPU, against a copy and plain torch; local steps and rounds per second of each model",
}


def arguments(
    command: str, words: list[str], out: str = "", switches: Mapping[str, str] = {}, folders: bool = False
) -> argparse.Namespace:
    """The flags of a command that takes no configuration; `out` says what --out is for."""
    first, _, second = command.partition(" ")
    from pfed1bs.runs import flags  # not for --help alone, which would load torch

    parser = flags.Flags(prog=f"pfed1bs {command}", description=BENCHMARKS[second] if second else HELP[first])
    parser.add_argument("-h", "--help", action="help", help="show this")
    if folders:
        parser.add_argument("folders", nargs="+", metavar="RUN", help="run folders, or folders of run folders")
    else:
        parser.add_argument("--json", action="store_true", default=False, help="print JSON")
    for name, text in switches.items():
        parser.add_argument(name, action="store_true", default=False, help=text)
    if out:
        parser.add_argument("--out", default="", help=out)
    return parser.parse_args(words)
