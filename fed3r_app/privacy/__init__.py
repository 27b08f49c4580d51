"""What protects the clients: Gaussian noise, and secure aggregation in ``secagg``.

Sensitivities, noise and masks live here; the messages that carry them are ``wire``'s,
the rounds the strategies'. May ask ``core``; ``secagg`` knows no Flower. This module
imports nothing, so that reading a run config needs neither torch nor cryptography.
"""

# With secure aggregation: of two, each knows the other's part from the sum.
SMALLEST_GROUP = 3
# Who adds the noise of differential privacy: the server, or the clients together.
CENTRAL, DISTRIBUTED = "central", "distributed"
