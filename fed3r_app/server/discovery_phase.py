"""The first phase: which clients take part, and which classes there are."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from logging import INFO, WARNING

from flwr.app import ConfigRecord
from flwr.common.logger import log

from fed3r_app.config import SECAGG, Config
from fed3r_app.core.outliers import far_above_others
from fed3r_app.data.label_space import LabelSpace
from fed3r_app.server.context import RunContext
from fed3r_app.words import first_names, plural
from strategies import (
    IN_FLIGHT,
    ClientDiscovery,
    ClientRegistry,
    NodeNames,
    natural_key,
)
from strategies.sample_counts import ENOUGH_CLIENTS, outnumbering


def discover_clients(
    context: RunContext,
    *,
    with_moments: bool,
    earlier_classes: Sequence[str] = (),
    counted: Collection[str] = (),
    only: Collection[str] = (),
) -> None:
    """Wait for the clients that a run begins with, and fix its classes.

    Parameters
    ----------
    context : RunContext
        Its ``discovery`` and, on nodes with their own images, ``class_names`` are set.
    with_moments : bool
        Also ask for the moments from which the kernel width is chosen.
    earlier_classes : sequence of str
        Classes that an earlier part of the run knew.
    counted : collection of str
        Clients that an earlier part of the run counted: they need not be there.
    only : collection of str
        The clients that a fine-tuning began with: no others take part; () for all.
    """
    log(INFO, "Waiting for the clients …")
    config, is_local = context.config, context.data.is_local
    context.discovery = ClientDiscovery(
        context.grid,
        timeout=config.round_timeout,
        max_retries=config.max_retries,
        strict=config.min_clients == 0,
        # Real nodes have a machine each: all at once.
        in_flight=sys.maxsize if is_local else IN_FLIGHT,
        request=context.request(ConfigRecord()),
        parity=context.parity if with_moments else None,
        dim=context.backbone.dim,
        must_announce=not config.sends_only_protected_sums,
        names=NodeNames() if is_local else None,
    )
    context.discovery.gather(config.wait_for, with_moments)
    registry = context.registry
    registry.leave_out(context.state.forgotten)
    registry.leave_out(_others(registry.clients, only))
    refused = _refuse_larger(context, registry.clients)
    _hold_back(context, registry.clients)
    if is_local:
        _fix_labels(context, [*registry.class_names.values(), earlier_classes])
        refused += _refuse_unknown_classes(context, registry.clients)
    if refused and not config.min_clients:
        raise ValueError(registry.refused[refused[0]])
    num_clients = len({*registry.clients, *counted})
    if config.min_clients > num_clients:
        raise ValueError(
            f"min-clients must be <= {num_clients}, the number of clients, got "
            f"{config.min_clients}. {' '.join(registry.refused.values())}".rstrip()
        )
    log(INFO, "%s", plural(len(registry.clients), "client"))
    if not context.data.dataset and not clients_with_test_images(context):
        _warn_of_no_test_images(config)


def clients_with_test_images(context: RunContext) -> list[str]:
    """Return the clients that hold test images."""
    registry = context.registry
    return [client for client in registry.clients if registry.num_test_images[client]]


def _warn_of_no_test_images(config: Config) -> None:
    """Say that there will be no accuracy, and what would give one."""
    protected = config.privacy == SECAGG or config.dp_epsilon
    own = "" if protected else "test-share=0.2 holds some out at the nodes; "
    log(
        WARNING,
        "Neither the server nor a node has test images: no accuracy. %sdata-path gives "
        "the server some.",
        own,
    )


def admit_newcomers(context: RunContext, only: Collection[str] = ()) -> list[str]:
    """Return clients that have come since, or have come back as another node.

    The costs of their hellos are recorded. Others than ``only`` are left out, unless
    that is empty.
    """
    registry = context.registry
    before = registry.traffic.copy()
    newcomers = set(context.discovery.admit_newcomers())
    up, down = registry.traffic.since(before)
    context.recorder.add_costs(up=up, down=down)
    forgotten = () if only else context.state.forgotten
    left_out = {*forgotten, *_others(newcomers, only)}
    registry.leave_out(left_out)
    newcomers -= left_out
    newcomers -= set(_refuse_larger(context, newcomers))
    newcomers -= set(_hold_back(context, newcomers))
    if context.data.is_local:
        newcomers -= set(_refuse_unknown_classes(context, newcomers))
    joined = sorted(newcomers, key=natural_key)
    if joined:
        joining = plural(len(joined), "client")
        log(INFO, "%s joined: %s", joining, first_names(joined, 10))
        clients = {*context.directory.read_clients(), *joined}
        context.directory.write_clients(clients, registry.versions)
    return joined


def _fix_labels(context: RunContext, known: Iterable[Sequence[str]]) -> None:
    """Fix the label space: the given one, or all classes that are known."""
    given = context.config.given_labels
    space = LabelSpace(given) if given else LabelSpace.union(known)
    context.class_names = space.names
    # Refuses test images of other classes now, not at the end.
    context.data.test_labels(space.names)
    classes = plural(len(space.names), "class")
    log(INFO, "%s: %s", classes, first_names(space.names, 20))


def _refuse_larger(context: RunContext, clients: Iterable[str]) -> list[str]:
    """Leave out those of some clients that announce too many samples; return them."""
    registry, most = context.registry, context.config.max_client_samples
    sizes = {client: registry.num_samples.get(client, 0) for client in clients}
    larger = [client for client, n in sizes.items() if 0 < most < n]
    for client in larger:
        n = sizes[client]
        reason = f"n must be <= max-client-samples = {most}, it announces {n}."
        registry.refuse(client, f"Client {client}: {reason}")
    return larger


def _hold_back(context: RunContext, clients: Collection[str]) -> list[str]:
    """Leave out those of some clients that would outweigh all others; return them.

    The run completes without them: else any client could end it.
    """
    registry = context.registry
    sizes = {**context.state.counted_samples(), **registry.num_samples}
    held = {}
    for client in [] if context.made_the_split else outnumbering(sizes):
        said = f"announces {sizes[client]} samples, more than all others together"
        if len(sizes) < ENOUGH_CLIENTS or client not in clients:
            log(WARNING, "Client %s %s; max-client-samples sets a limit", client, said)
        else:
            held[client] = f"it {said}: it is held back."
    for client, most in far_above_others(_mean_squares(registry)).items():
        held[client] = (
            f"the mean squared norm of its features must be <= {most:.6g}, ten times "
            "the median of the others: it is held back."
        )
    for client, reason in held.items():
        registry.refuse(client, reason)
    return list(held)


def _mean_squares(registry: ClientRegistry) -> dict[str, float]:
    """Return the mean squared norms of the features of clients that sent moments."""
    moments = registry.feature_moments.items()
    return {client: each.squared_norms / each.n for client, each in moments if each.n}


def _refuse_unknown_classes(context: RunContext, clients: Iterable[str]) -> list[str]:
    """Leave out the clients that have classes besides the run's; return them."""
    registry, space = context.registry, LabelSpace(context.class_names)
    refused = []
    for client in clients:
        if refusal := space.refusal(f"Client {client}", registry.class_names[client]):
            registry.refuse(client, refusal)
            refused.append(client)
    return refused


def _others(clients: Iterable[str], only: Collection[str]) -> list[str]:
    """Return the clients that are not among some, with a line of log; () are all."""
    among = set(only)
    others = [client for client in clients if only and client not in among]
    if others:
        named = first_names(others, 10)
        log(INFO, "Too late for this run, which began without them: %s", named)
    return others
