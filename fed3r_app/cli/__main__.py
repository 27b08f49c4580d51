"""``python -m fed3r_app.cli``: the command ``fed3r`` without its script."""

import sys

from fed3r_app.cli import main

sys.exit(main())
