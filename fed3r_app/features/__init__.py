"""From images to features: backbones, weights, preprocessing, extraction, cache.

Everything that a feature depends on is decided here, but for how files become pixels
(``data.reading``), and nothing that depends on labels or clients. May ask ``data``,
``wire``, ``core`` and ``files``.
"""
