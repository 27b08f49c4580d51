"""Secure aggregation: the server learns the sum over a group, and nothing else.

After Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine
Learning*, for a server that follows the protocol but remembers all it sees. Plain
values and bytes; no Flower. ``fixed_point`` turns statistics into integers whose sums
are exact, ``crypto`` holds the primitives and shares secrets, ``client`` and ``server``
are the two sides of the four exchanges, ``unmask_marker`` the mark on disk. May ask
``core`` alone.

Who learns what is in ``SECURITY.md``.
"""

from fed3r_app.privacy import SMALLEST_GROUP
from fed3r_app.privacy.secagg.client import Member, UnmaskAnswer
from fed3r_app.privacy.secagg.crypto import PublicKeys
from fed3r_app.privacy.secagg.fixed_point import FixedPointEncoding, IntegerStatistics
from fed3r_app.privacy.secagg.server import (
    Group,
    GroupFailed,
    group_sizes,
    group_threshold,
)
from fed3r_app.privacy.secagg.unmask_marker import UnmaskMarker

__all__ = [
    "SMALLEST_GROUP",
    "FixedPointEncoding",
    "Group",
    "GroupFailed",
    "IntegerStatistics",
    "Member",
    "PublicKeys",
    "UnmaskAnswer",
    "UnmaskMarker",
    "group_sizes",
    "group_threshold",
]
