"""Real deployments: SuperLink, SuperExec and SuperNodes as processes on this machine.

Starting one takes seconds and a run half a minute: share a deployment among the tests
of a module wherever none of them breaks it.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fed3r_app.deployment.certificates import make_certificates
from tests.harness.deployment import PROJECT, Deployment
from tests.harness.runs import Outcome

_LONGEST_RUN = 240.0


class Federation:
    """A deployment with its nodes, and the results of its runs."""

    def __init__(self, deployment: Any, root: Any, app: Any = PROJECT) -> None:
        self.deployment = deployment
        self.certificates = root / "certificates"
        self._runs = root / "runs"
        self._app = app

    def submit(self, run_name: str, **settings: Any) -> Any:
        """Hand in a run; return its id. Settings have ``_`` for ``-``."""
        settings = {key.replace("_", "-"): value for key, value in settings.items()}
        return self.deployment.submit(self._app, {**settings, "run-name": run_name})

    def wait(self, run: Any, run_name: str, timeout: Any = _LONGEST_RUN) -> Any:
        """Return the outcome of a run once it has ended."""
        status = self.deployment.wait(run, timeout)
        return Outcome(self.directory(run_name), status, self.deployment.output(run))

    def directory(self, run_name: str) -> Any:
        """Return where the files of a run are."""
        return self._runs / run_name

    def run(self, run_name: str, timeout: Any = _LONGEST_RUN, **settings: Any) -> Any:
        """Hand in a run and return its outcome."""
        return self.wait(self.submit(run_name, **settings), run_name, timeout)


@pytest.fixture(scope="module")
def deploy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start deployments, each in a folder of its own; all are stopped at the end.

    Nodes are given as node configs by name. A secure deployment has TLS and node
    authentication; strangers have a key, but it is not registered.
    """
    with ExitStack() as stack:

        def start(
            nodes: Any,
            *,
            secure: bool = False,
            strangers: Any = (),
            app: Any = PROJECT,
            environment: Any = None,
        ) -> Any:
            root = tmp_path_factory.mktemp("deployment")
            certificates = root / "certificates" if secure else None
            if certificates:
                make_certificates(certificates, ["127.0.0.1"], [*nodes, *strangers])
            variables = {
                "FED3R_CACHE_DIR": str(root / "cache"),
                "FED3R_OUTPUT_DIR": str(root / "runs"),
                "OMP_NUM_THREADS": "1",
                # The code under test, also where another copy of it is installed.
                "PYTHONPATH": os.pathsep.join(
                    [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
                ),
                **(environment or {}),
            }
            deployment = stack.enter_context(
                Deployment(root / "home", variables, certificates)
            )
            for name, node_config in nodes.items():
                if secure:
                    deployment.register(name)
                own_cache = {"FED3R_CACHE_DIR": str(root / "caches" / name)}
                deployment.start_supernode(name, node_config, own_cache)
            return Federation(deployment, root, app)

        yield start
