"""The Flower ClientApp: says hello, makes statistics, evaluates classifiers."""

from __future__ import annotations

from functools import partial

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from clients import LocalData, StatisticsClient, bridge
from fed3r_app.backbones import Backbone, load_backbone
from fed3r_app.config import Config
from fed3r_app.core import FeatureMap
from fed3r_app.data import load_dataset, split_rows
from fed3r_app.devices import cache_dir, resolve_device
from fed3r_app.features import cached_features
from fed3r_app.wire import Hello, name_arrays, pack_hello, read_feature_map

app = ClientApp()


@app.query("hello")
@bridge.reply_with_errors
def hello(message: Message, context: Context) -> Message:
    """Say who this client is, with the sums of its features where asked for."""
    moments = None
    if message.content.config_records["config"]["moments"]:
        moments = _client(context).moments()
    num_partitions = int(context.node_config.get("num-partitions", 0))
    reply = Hello(_client_id(context), num_partitions, moments)
    return Message(pack_hello(reply), reply_to=message)


@app.train("statistics")
@bridge.reply_with_errors
def statistics(message: Message, context: Context) -> Message:
    """Reply with the statistics of this client's images."""
    return bridge.fit(_client_for(message, context), message, name_arrays)


@app.evaluate("statistics")
@bridge.reply_with_errors
def evaluate(message: Message, context: Context) -> Message:
    """Reply with what the given classifier gets right on this client's images."""
    return bridge.evaluate(_client_for(message, context), message)


def _client_id(context: Context) -> str:
    node_config = context.node_config
    return str(
        node_config.get("client-id", node_config.get("partition-id", context.node_id))
    )


def _client_for(message: Message, context: Context) -> StatisticsClient:
    return _client(context, message.content.config_records["config"])


def _client(context: Context, question: ConfigRecord | None = None) -> StatisticsClient:
    """Return the client of this node, for a question that tells its feature map."""
    config = Config.from_run_config(context.run_config)
    backbone = load_backbone(config.backbone, config.weights, config.image_size)
    feature_map = read_feature_map(question) if question else FeatureMap(backbone.dim)
    data = _local_data(context, config, backbone)
    return StatisticsClient(data, feature_map, config.upload, config.upload_dtype)


def _local_data(context: Context, config: Config, backbone: Backbone) -> LocalData:
    """Return this client's part of the data set."""
    node_config = context.node_config
    if "partition-id" not in node_config or "num-partitions" not in node_config:
        raise ValueError(
            "The node config must give partition-id and num-partitions, got "
            f"{dict(node_config)}. Start the SuperNode with --node-config "
            '"partition-id=0 num-partitions=3".'
        )
    dataset = load_dataset(config.dataset, config.data_path)
    split = split_rows(
        dataset,
        config.partition,
        int(node_config["num-partitions"]),
        config.alpha,
        config.seed,
    )
    rows = split[int(node_config["partition-id"])]
    read_features = partial(
        cached_features,
        backbone,
        dataset.train,
        device=resolve_device(config.device),
        dtype=config.extract_dtype,
        cache_dir=cache_dir(),
    )
    labels = dataset.train.labels[rows]
    return LocalData(rows, labels, read_features, len(dataset.class_names))
