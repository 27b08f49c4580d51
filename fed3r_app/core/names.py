"""Names that settings and formats share: forms of an upload, types of its numbers.

Imports nothing, so that reading a run config does not need torch.
"""

# Forms of an upload and the types of its numbers; their order is part of the format.
FORMS = ("factor", "packed", "dense")
DTYPES = ("float32", "float64", "float16")
