"""One profile for all property tests: how long an example takes is no law."""

from hypothesis import settings

settings.register_profile("without deadline", deadline=None)
settings.load_profile("without deadline")
