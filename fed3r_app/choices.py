"""What settings may be: shared by the run config and by those who obey it.

Imports nothing, so that reading a run config needs neither torch nor cryptography.
"""

# Forms of an upload and the types of its numbers; their order is part of the format.
FORMS = ("factor", "packed", "dense")
DTYPES = ("float32", "float64", "float16")
# With secure aggregation: of two, each knows the other's part from the sum.
SMALLEST_GROUP = 3
