"""The commands, one line each."""

HELP = {
    "run": "run one method: pfed1bs run [RECIPE.toml] [--rounds 50] [--algorithm.lam 1e-3] [--out DIR] [--resume]",
    "compare": "run several methods, variants and seeds: pfed1bs compare [RECIPE.toml] --algorithms pfed1bs,local "
    "--runs 'pfed1bs-delta step=0.3' --seeds 0,1,2",
    "tune": "choose options on training samples, by one rule for all methods: pfed1bs tune RECIPE.toml --algorithms "
    "ditto,fedavg --seeds 100,101 --points 9 [--write RECIPE.toml]",
    "reproduce": "a table or figure of the paper, with what it left out beside it: pfed1bs reproduce NAME|all "
    "[--quick] [--only mnist] [--seeds 0] [--resume]",
    "report": "make report.html from run folders: pfed1bs report RUN... [--against NAME] [--out DIR]",
    "export": "a trained model as a plain state_dict, with a card: pfed1bs export RUN --client 3 --out "
    "model.safetensors [--shared]",
    "predict": "what a trained model answers: pfed1bs predict RUN --client 3 FILE.npz [--shared] [--out ANSWERS.npz]",
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
