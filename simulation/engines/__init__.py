"""How a run is executed on one machine: in this process, or by Flower on Ray.

An engine hands the two Flower apps a Grid and nothing else. Asks the apps and
``fed3r_app.deployment``.
"""
