"""Training by gradient descent: the softmax model, and SGD at a client.

No messages and no files; federated averaging is Flower's, in ``strategies``. May ask
``features`` and what lies below it.
"""
