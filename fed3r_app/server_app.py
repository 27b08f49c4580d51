"""The Flower ServerApp: from a run config to a directory with a classifier."""

from __future__ import annotations

from logging import ERROR, WARNING

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from fed3r_app.config import Config, retired_keys
from fed3r_app.console import logs
from fed3r_app.errors import RunError, RunStopped
from fed3r_app.server.run import run
from strategies.stopping import Stopped, stoppable

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run Fed3R; an error ends the run with a message on one line."""
    logs.configure()
    try:
        with stoppable(), logs.warnings_in_the_log():
            for key, reason in retired_keys(context.run_config).items():
                log(WARNING, "%s is ignored: %s.", key, reason)
            run(grid, Config.from_run_config(context.run_config))
    except Stopped:
        raise _said(RunStopped("The run was stopped before it began.")) from None
    except RunStopped as error:
        raise _said(error) from None
    except (ValueError, OSError, RunError) as error:
        # Without the frames in between: Flower prints all it is given.
        raise _said(RunError(str(error))) from None


def _said(error: RunError) -> RunError:
    """Return an error, once it is logged where no command says how the run ended."""
    if not logs.is_shown():
        log(ERROR, "%s", error)
    return error
