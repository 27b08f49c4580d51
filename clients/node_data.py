"""What a node is and has: its name, its settings, its images. No torch here."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fed3r_app.config import SECAGG, Config
from fed3r_app.data import LOCAL, DataSet, load_dataset, load_local, split_rows
from fed3r_app.greeting import Hello


class NodeData:
    """One client's name and images.

    Parameters
    ----------
    context : Context
        Flower's: run config, node config, state.
    """

    def __init__(self, context: Context) -> None:
        self._node_config = context.node_config
        self._node_id = context.node_id
        self.config = Config.from_run_config(context.run_config)

    def hello(self) -> Hello:
        """Return what the client says of itself."""
        if not self.has_own_images:
            return Hello(self.client_id, self.num_partitions)
        test = None if self.tells_only_sums else self.dataset.test
        return Hello(
            self.client_id,
            num_partitions=0,  # its images are no part of anything
            class_names=self.classes_to_tell,
            num_test_images=len(test) if test else 0,
        )

    @property
    def client_id(self) -> str:
        """The client's name: ``client-id``, else its partition, else its node's id."""
        for key in ("client-id", "partition-id"):
            if key in self._node_config:
                return str(self._node_config[key])
        return str(self._node_id)

    @property
    def num_partitions(self) -> int:
        """How many clients there are; 0 where the node can't know."""
        return int(self._node_config.get("num-partitions", 0))

    @property
    def has_own_images(self) -> bool:
        """Whether the images are the node's own, not a part of a common data set."""
        return self.config.dataset == LOCAL

    @cached_property
    def dataset(self) -> DataSet:
        """The node's own images, or the data set that the clients share."""
        data_path = str(self._node_config.get("data-path", ""))
        if not self.has_own_images:
            if data_path:
                raise ValueError(
                    f"dataset must be {LOCAL!r} to use the images of node "
                    f"{self.client_id} (data-path = {data_path!r}), got "
                    f"{self.config.dataset!r}."
                )
            return load_dataset(self.config.dataset, self.config.data_path)
        if not data_path or "client-id" not in self._node_config:
            raise ValueError(
                f"The node config must give data-path and client-id when dataset = "
                f"{LOCAL!r}, got {dict(self._node_config)} for node {self._node_id}. "
                "Start the SuperNode with --node-config "
                '\'data-path="/data" client-id="clinic-7"\'.'
            )
        try:
            return load_local(data_path)
        except (OSError, ValueError) as error:
            raise type(error)(f"Client {self.client_id}: {error}") from None

    @property
    def classes_to_tell(self) -> tuple[str, ...]:
        """The classes that the server has to know: where it knows all, the others."""
        known = self.config.given_labels
        return tuple(name for name in self.dataset.class_names if name not in known)

    @property
    def tells_only_sums(self) -> bool:
        """Whether nothing but protected sums may leave this node."""
        return self.config.privacy == SECAGG or self.config.dp_epsilon > 0

    def rows(self) -> NDArray[np.int64]:
        """Return which images of the data set are this client's."""
        if self.has_own_images:
            return np.arange(len(self.dataset.train))
        if not {"partition-id", "num-partitions"} <= self._node_config.keys():
            raise ValueError(
                "The node config must give partition-id and num-partitions, got "
                f"{dict(self._node_config)}. Start the SuperNode with --node-config "
                '"partition-id=0 num-partitions=3".'
            )
        config = self.config
        split = split_rows(
            self.dataset,
            config.partition,
            self.num_partitions,
            config.alpha,
            config.seed,
        )
        return split[int(self._node_config["partition-id"])]
