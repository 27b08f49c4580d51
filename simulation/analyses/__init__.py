"""Studies beside the runs: partitions, coupon collector, exact kernel ridge.

Commands that read data or features and print tables; no federation is run here. They
use ``fed3r_app`` below the apps.
"""
