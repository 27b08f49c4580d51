"""What a client pays for importing the data package."""

import subprocess
import sys


def test_importing_the_package_loads_no_heavy_library() -> None:
    heavy = ["torch", "torchvision", "sklearn", "datasets", "flwr_datasets", "pyarrow"]
    code = (
        "import sys, fed3r_app.data; "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
