"""Experiments as YAML files: read, run, tabulated, drawn.

``yaml_file`` reads YAML and remembers lines; ``composition`` finds experiments and puts
together what they extend; ``experiment`` and ``run_grid`` check them and expand their
grid; ``store`` knows what has been run; ``pool`` executes ``tasks``, which ``display``
shows; ``collect``, ``outcome_tables``, ``figures`` and ``html_report`` report. A run
itself is an engine's matter. May ask ``simulation.engines``, ``simulation.analyses``
and the rooms of ``fed3r_app``.
"""
