"""What clients reply to each message: statistics, training, evaluations, secagg."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from clients import bridge
from clients.node import Node, NodeData
from clients.secagg_client import SecureClient, integer_vector, make_secure_client
from clients.statistics_client import StatisticsClient
from clients.training_node import TrainingNode
from fed3r_app.config import SECAGG
from fed3r_app.core import FeatureMap
from fed3r_app.privacy.gaussian import check_feature_map
from fed3r_app.wire import (
    BACKBONE,
    ON_TEST_IMAGES,
    ImageCounts,
    add_digest,
    add_image_counts,
    add_parity,
    keep_names,
    name_arrays,
    pack_fit,
    pack_hello,
    read_feature_map,
    read_leave_one_out,
    read_temperatures,
    unpack_arrays,
    unpack_classifier,
)

if TYPE_CHECKING:
    from torch import Tensor

app = ClientApp()


@app.query("hello")
@bridge.reply_with_errors
def hello(message: Message, context: Context) -> Message:
    """Reply with this client's name and the moments of its features."""
    _check_open(NodeData(context))
    node = Node(context, _config(message))
    moments = _statistics_client(node, FeatureMap(node.backbone.dim)).moments()
    reply = replace(node.hello(), moments=moments, parity=node.parity())
    return Message(pack_hello(reply), reply_to=message)


@app.train("statistics")
@bridge.reply_with_errors
def statistics(message: Message, context: Context) -> Message:
    """Reply with the statistics of this client's images, and what they are made of.

    Arrays that come with the request are a fine-tuned backbone: the picture has been
    compared before it was tuned.
    """
    tuned = unpack_arrays(_arrays(message))
    node = Node(context, _config(message), tuned)
    feature_map = _feature_map(node, message)
    client = _statistics_client(node, feature_map)
    reply, data = bridge.fit(client, message, name_arrays), client.data
    rows = data.rows[data.unreadable.readable(data.rows)]
    digest = node.contribution_digest(feature_map, rows)
    add_digest(reply.content, digest, None if tuned else node.parity())
    if not node.sends_only_protected_sums:
        held_out = len(node.dataset.held_out_classes) if node.config.is_local else 0
        add_image_counts(reply.content, ImageCounts(data.num_unreadable, held_out))
    return reply


@app.evaluate("statistics")
@bridge.reply_with_errors
def evaluate(message: Message, context: Context) -> Message:
    """Reply with what the given classifier gets right on this client's images.

    On its test images where the request says so. A record of a fine-tuned backbone
    may stand beside the classifier.
    """
    _check_open(NodeData(context))
    config = _config(message)
    node = Node(context, config, _tuned(message))
    test = bool(config.get(ON_TEST_IMAGES, False))
    client = _statistics_client(node, _feature_map(node, message), test=test)
    return bridge.evaluate(client, message)


@app.query("temperature")
@bridge.reply_with_errors
def temperature(message: Message, context: Context) -> Message:
    """Reply with how a classifier fits this client's images, at some temperatures.

    A fine-tuned backbone may stand beside the classifier.
    """
    _check_open(NodeData(context))
    config = _config(message)
    node = Node(context, config, _tuned(message))
    client = _statistics_client(node, _feature_map(node, message))
    classifier = unpack_classifier(bridge.read_arrays(_arrays(message)))
    left_out = read_leave_one_out(config)
    fit = client.fit_of(classifier, read_temperatures(config), left_out)
    return Message(pack_fit(fit), reply_to=message)


@app.train()
@bridge.reply_with_errors
def train(message: Message, context: Context) -> Message:
    """Reply with the arrays trained on this client's images."""
    _check_open(NodeData(context))
    node = TrainingNode(context, message.content)
    reply = bridge.fit(node.client, message, partial(keep_names, _arrays(message)))
    node.complete(reply.content)
    return reply


def _secure_step(
    step: Callable[[SecureClient, RecordDict], RecordDict],
) -> bridge.Handler:
    """Return the handler of a step of secure aggregation that needs no images."""

    @bridge.reply_with_errors
    def reply(message: Message, context: Context) -> Message:
        client = make_secure_client(NodeData(context), context)
        return Message(step(client, message.content), reply_to=message)

    return reply


@app.query("keys")
@bridge.reply_with_errors
def keys(message: Message, context: Context) -> Message:
    """Begin secure aggregation: fresh keys, and what this node makes of the picture."""
    client = make_secure_client(NodeData(context), context)
    content = client.keys(message.content)
    if parity := Node(context, _config(message)).parity():
        content["config"] = ConfigRecord()
        add_parity(content.config_records["config"], parity)
    return Message(content, reply_to=message)


app.query("share")(_secure_step(SecureClient.share))
app.query("unmask")(_secure_step(SecureClient.unmask))


@app.query("masked")
@bridge.reply_with_errors
def masked(message: Message, context: Context) -> Message:
    """Reply with the statistics under their masks, as secure aggregation has it."""
    node = Node(context, _config(message))
    client = make_secure_client(node, context)
    make_vector = partial(integer_vector, node, _feature_map(node, message))
    return Message(client.masked(message.content, make_vector), reply_to=message)


def _check_open(node: NodeData) -> None:
    """Raise where the node sends protected sums and nothing else."""
    if node.sends_only_protected_sums:
        raise ValueError(
            f"Nothing but protected sums leaves this node with privacy = "
            f"{node.config.privacy!r} and dp-epsilon = {node.config.dp_epsilon:g}."
        )


def _check_in_the_clear(node: NodeData) -> None:
    """Raise if what the node would send must not be seen by itself."""
    if node.config.privacy == SECAGG:
        raise ValueError(
            f"privacy = {SECAGG!r}: nothing of a single client travels in the clear."
        )


def _feature_map(node: Node, message: Message) -> FeatureMap:
    """Return the map of a request, of this node's features."""
    return node.check_map(read_feature_map(_config(message)))


def _statistics_client(
    node: Node, feature_map: FeatureMap, *, test: bool = False
) -> StatisticsClient:
    _check_in_the_clear(node)
    check_feature_map(node.config.dp_epsilon, feature_map)
    upload, dtype = node.config.upload, node.config.upload_dtype
    return StatisticsClient(node.local_data(test=test), feature_map, upload, dtype)


def _config(message: Message) -> ConfigRecord:
    return message.content.config_records["config"]


def _tuned(message: Message) -> dict[str, Tensor]:
    """Return the fine-tuned backbone in a message; {} for the pretrained one."""
    return unpack_arrays(message.content.array_records.get(BACKBONE, ArrayRecord()))


def _arrays(message: Message) -> ArrayRecord:
    return message.content.array_records["arrays"]
