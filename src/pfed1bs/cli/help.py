"""What the help says: the commands in groups, one line each, their parts, and examples that are run by a test."""

from collections.abc import Mapping
from shutil import get_terminal_size
from textwrap import wrap

HELP = {  # what it is for: how it is written
    "run": "run one method: pfed1bs run [RECIPE] [--rounds 50] [--algorithm.lam 1e-3] [--out DIR] [--resume]",
    "compare": "run several methods, variants and seeds: pfed1bs compare [RECIPE] [--algorithms NAMES] "
    "[--runs 'NAME key=value' ...] [--sweep KEY=V1,V2 ...] [--seeds 0,1,2]",
    "tune": "choose options on training samples, by one rule for all methods: pfed1bs tune [RECIPE] "
    "[--algorithms NAMES] [--seeds 100,101] [--points 9] [--write RECIPE.toml]",
    "reproduce": "a table or figure of the paper, with what it left out beside it: pfed1bs reproduce NAME|all "
    "[--quick] [--only mnist] [--seeds 0] [--resume]",
    "report": "make report.html from run folders or saved tables: pfed1bs report RUN... [--against NAME] [--out DIR]",
    "runs": "list runs, compare two, hand rounds to other programs: pfed1bs runs [FOLDER...] [--where KEY=VALUE ...] "
    "[--differ] [--csv FILE] [--tensorboard DIR]",
    "export": "a trained model as a plain state_dict, with a card: pfed1bs export RUN --client 3 --out "
    "model.safetensors [--shared]",
    "predict": "what a trained model answers: pfed1bs predict RUN --client 3 FILE.npz [--shared] [--out ANSWERS.npz]",
    "data": "show who holds what: pfed1bs data [RECIPE] [--data.partition labels:2] [--picture FILE]",
    "list": "list the methods with what they send, what they keep and what they can do: pfed1bs list [RECIPE] [--json]",
    "costs": "the cost column of the paper's table, recomputed, and the bytes of every method on its networks: pfed1bs "
    "costs [--json]",
    "flower": "the same methods on separate machines: pfed1bs flower init|certificates|gate DIR",
    "bench": "measure this machine: pfed1bs bench kernels|gpu [--out PLACE]",
    "env": "versions, device, kernel: for bug reports: pfed1bs env [--json]",
}

GROUPS = {
    "experiments": ("run", "compare", "tune", "reproduce"),
    "results": ("report", "runs", "export", "predict"),
    "facts": ("data", "list", "costs"),
    "real machines": ("flower",),
    "this machine": ("bench", "env"),
}

PARTS = {
    "flower": {
        "init": "write an app for `flwr run` from a recipe: pfed1bs flower init DIR [RECIPE] [--clients 3]",
        "certificates": "certificates and keys for a server and its nodes: pfed1bs flower certificates DIR "
        "[--hosts NAMES] [--nodes 3]",
        "gate": "let a network see the fleet API alone: pfed1bs flower gate DIR --host ADDRESS [--port 8000]",
    },
    "bench": {
        "kernels": "transform, sketch, packing and vote on this processor, against a copy of the same memory: "
        "pfed1bs bench kernels [--out DIR]",
        "gpu": "the same on a GPU, against a copy and plain torch; local steps, rounds of models and recipes: "
        "pfed1bs bench gpu [--vgg16] [--out FILE]",
    },
}

EXAMPLES = {
    "run": (
        "pfed1bs run",
        "pfed1bs run mnist-2class --data.root ~/data",
        "pfed1bs run --algorithm.name ditto --algorithm.lam 0.3 --rounds 50 --data.partition labels:2",
    ),
    "compare": (
        "pfed1bs compare --algorithms local,fedavg,pfed1bs-delta --seeds 0,1,2 --rounds 50",
        "pfed1bs compare --algorithms local,ditto --runs 'ditto lam=0.3' 'ditto lam=1'",
        "pfed1bs compare --algorithms local,ditto --gradients 20 --against local --seeds 0,1,2",
    ),
    "tune": ("pfed1bs tune --algorithms ditto,fedavg --seeds 100,101 --points 9 --parallel 2",),
    "reproduce": ("pfed1bs reproduce table-main --quick", "pfed1bs reproduce all --draw"),
    "export": ("pfed1bs export runs/mine --client 3 --out model.safetensors",),
    "predict": ("pfed1bs predict runs/mine --client 3 samples.npz",),
    "report": ("pfed1bs report runs/mine", "pfed1bs report results/mnist-delta-iid.json --against ditto"),
    "runs": ("pfed1bs runs --where method=pfed1bs-delta 'accuracy>=90'", "pfed1bs runs runs/a runs/b --differ"),
    "data": ("pfed1bs data --data.partition dirichlet:0.3 --picture who.svg",),
    "list": ("pfed1bs list", "pfed1bs list --algorithm.name eden --algorithm.bits 0.5"),
    "costs": ("pfed1bs costs",),
    "flower": ("pfed1bs flower init app --clients 3", "pfed1bs flower certificates keys --nodes 3"),
    "flower init": ("pfed1bs flower init app --clients 3", "pfed1bs flower init app digits --algorithm.name ditto"),
    "flower certificates": ("pfed1bs flower certificates keys --hosts 10.0.0.7,server.example --nodes 3",),
    "flower gate": ("pfed1bs flower gate keys --host 10.0.0.7 --port 8000",),
    "bench": ("pfed1bs bench kernels",),
    "bench kernels": ("pfed1bs bench kernels", "pfed1bs bench kernels --out kernels"),
    "bench gpu": ("pfed1bs bench gpu", "pfed1bs bench gpu --vgg16 --out gpu.json"),
    "env": ("pfed1bs env",),
}
ASKED = ("-h", "--help")


def purpose(text: str) -> str:
    """What a command is for."""
    return text.partition(": pfed1bs ")[0]


def usage(command: str) -> str:
    """How a command, or a part of one, is written."""
    whole, _, part = command.partition(" ")
    return "pfed1bs " + (PARTS[whole][part] if part else HELP[whole]).partition(": pfed1bs ")[2]


def overview() -> str:
    """All commands, in groups."""
    known = {title: {name: HELP[name] for name in names if name in HELP} for title, names in GROUPS.items()}
    blocks = [
        "usage: pfed1bs COMMAND ...",
        "One-bit personalised federated learning, byte-exact.",
        *(_block(title, {name: purpose(text) for name, text in part.items()}) for title, part in known.items()),
        "examples:\n" + "\n".join(f"  {EXAMPLES[name][0]}" for name in ("run", "compare", "flower")),
        _block("options", {"-h, --help": "show this; after a command, what it takes", "--version": "the version"}),
    ]
    return "\n\n".join(blocks)


def parts(command: str) -> str:
    """What a command consists of."""
    told = {name: purpose(text) for name, text in PARTS[command].items()}
    blocks = [f"usage: {usage(command)}", purpose(HELP[command]), _block("commands", told)]
    return "\n\n".join([*blocks, f"pfed1bs {command} COMMAND --help says more.", examples(command)])


def examples(command: str) -> str:
    """Examples of a command, or of a part of one."""
    return "\n".join(["examples:", *(f"  {line}" for line in EXAMPLES[command])])


def _block(title: str, lines: Mapping[str, str]) -> str:
    """A heading, and names with what is said of them, as wide as the terminal."""
    width = max(12, *(len(name) + 2 for name in lines))
    room = max(20, get_terminal_size().columns - width - 4)
    told = [f"{title}:"]
    for name, text in lines.items():
        first, *rest = wrap(text, room) or [""]
        told += [f"  {name:{width}}{first}", *(f"  {'':{width}}{line}" for line in rest)]
    return "\n".join(told)
