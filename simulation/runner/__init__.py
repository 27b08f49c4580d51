"""Experiments as YAML files: read, run, tabulated, drawn.

``yaml_lines`` reads YAML and remembers lines; ``files`` finds experiments and puts
together what they extend; ``experiment`` checks them and spreads out their grid;
``store`` knows what has been run; ``pool``, ``worker`` and ``progress`` run the rest;
``results``, ``tables``, ``drawing`` and ``report`` show what came of it.
"""
