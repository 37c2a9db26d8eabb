"""What the server does: average the models of the nodes."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result

from quickstart import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> Result:
    config, name = context.run_config, str(context.run_config["data"])

    def judged(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net = task.Net()
        net.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = task.test(net, task.everyone(name))
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    strategy = FedAvg(float(config["fraction-train"]), float(config["fraction-evaluate"]))
    result = strategy.start(
        grid,
        ArrayRecord(task.Net().state_dict()),
        num_rounds=int(config["rounds"]),
        train_config=ConfigRecord({"lr": config["lr"]}),
        evaluate_fn=judged,
    )
    if out := config.get("out"):
        torch.save(result.arrays.to_torch_state_dict(), str(out))
    return result
