"""From images to features: backbones, weights, preprocessing, extraction, cache.

Everything that a feature depends on is decided here, and nothing that depends on
labels or clients. May ask ``data``, ``core`` and ``files``.
"""
