"""What a node does: train or judge the model it is sent."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pfed1bs.flower import OneBit
from quickstart import task

app = OneBit(ClientApp(), first=task.Net)


@app.train()
def train(message: Message, context: Context) -> Message:
    config, name = context.run_config, str(context.run_config["data"])
    net = task.Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    samples, _ = task.loaders(name, int(context.node_config["partition-id"]))
    loss = task.train(net, samples, int(config["epochs"]), float(message.content["config"]["lr"]))
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(samples.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    name = str(context.run_config["data"])
    net = task.Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    _, samples = task.loaders(name, int(context.node_config["partition-id"]))
    loss, accuracy = task.test(net, samples)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(samples.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
