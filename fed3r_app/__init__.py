"""Fed3R on Flower: closed-form federated image classification."""
