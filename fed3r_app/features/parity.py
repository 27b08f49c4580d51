"""Do all see the same? What server and clients make of one built-in picture.

Features made by another decoder, other weights under the same name or another dtype
would be added up without a word. So a client's reply carries its features of a picture
that stands here, read by the ordinary reader: a JPEG of 240 x 256, turned by its EXIF
data. Nothing private is in them.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import numpy as np
import PIL
import torch
from numpy.typing import NDArray

from fed3r_app.data.images import EncodedImages
from fed3r_app.features.backbone import Backbone
from fed3r_app.features.extraction import cached_features
from fed3r_app.wire.parity import Parity

# So many features travel, evenly spaced: what differs, differs in all of them.
NUM_VALUES = 64
PICTURE = base64.b64decode("""
/9j/4AAQSkZJRgABAQAAAQABAAD/4QAiRXhpZgAATU0AKgAAAAgAAQESAAMAAAABAAYAAAAAAAD/2wBDACAW
GBwYFCAcGhwkIiAmMFA0MCwsMGJGSjpQdGZ6eHJmcG6AkLicgIiuim5woNqirr7EztDOfJri8uDI8LjKzsb/
2wBDASIkJDAqMF40NF7GhHCExsbGxsbGxsbGxsbGxsbGxsbGxsbGxsbGxsbGxsbGxsbGxsbGxsbGxsbGxsbG
xsbGxsb/wAARCADwAQADASIAAhEBAxEB/8QAGQABAQEBAQEAAAAAAAAAAAAAAAECBAMF/8QANRAAAgECAgYI
BQQDAQAAAAAAAAECAxEEMQUSEyFRkRQiI0FSYXGhMjNCgfAkcrHBQ+HxY//EABkBAAMBAQEAAAAAAAAAAAAA
AAACAwEEBf/EACMRAQEAAgIDAAIDAQEAAAAAAAABAhEDMRIhQRMUMjNRIkL/2gAMAwEAAhEDEQA/AOZGkRGk
epXRBFBRKpAFAtUgCgQyEKDAyQ0QwtZZGaZGBKwyM0zLBOssyzbMsE6yzLPoaPw9KpDEVa0deNKF9W7V3vef
29zgZm06yQ+hpTD0sLOlSpx6yheU7vrPLLuy9yaNw9KrDE1q0NeNGF9S7V3vea9Pczy9bI4CGju0rhqWFnSo
04dZQvKd31nll3Ze4WsfPB9DRuGpVYYmtWhrxowvqXau97zXp7nALtoU7tKYelhZ0qNOPWULynd9Z5Zd2Xuc
QuzQKgUWqQRUEVCVSPcqBT1KyBQUSqQKALTygKBTbQBtcSXQlzxn0BC3IG5emVGZZpkYErLMs0yME6yzLNMR
g5zjCKvKTsl5gnXdU7DQkI5Srzu1LO3FclzOfRlLa4+kmnaL1nbutv8A5se+mJJV6dGD6lKCSXB/8sXRvYYX
FYl9VqOrCWe/09bCfE3Hj6m2xtad01rWTWTS3I6qnYaChHKVed2pZ24rkuZwQhKpOMIq8pOyXmd2mZRVenQg
+pSgko8H/wAsF+Qrw0XS2ukKSadovWbXdbf/ADY88fV22OrTumtayayaW5fwdmjOwwmKxT6rUdWEs9/p66p8
6EJVJxhFXlJ2S8w+sfQn+n0DCOUq87tSztxXJczn0XS2ukKSadovWbXdbf8AzY99NSisRToQfUowSUeD/wCW
NaM7DCYrFPqtR1YSz3+nrqi/G/XJj6u2x1ad01rWTWTS3L+DwBTGxDQKLVIFQRRKpHuUhT1KWKUhRapKFBmU
u5Es85hN1TH2OVjLbZAefny5ZqyaAATaFuQGy2e4FDAOrj5fL1Uc8de4yyM0yMsjWGdeiqW0x0XZNQTk7/nF
nKzvwvYaMxFWX+TqRT3X81xzfIzLpOuHE1NtiKlS7tKTavnbuOvFdhonD0spVHrvVya8+a5HJRpOtWhTV+s7
XSvbzOnS9RVMa0rdRKN08+/+zL3olZ0RS2mPi7JqCcnf84tHLiam2xFSpd2lJtXzt3HfhOw0Xiasv8vUinuv
3XXHN8jhoUnWrwpq/WaV0r28w+7LXZiuw0Rh6WUqr13q5NZ7+a5HloeltMfBtJqCcmny/lo1pioqmOaVrQSj
dO9+/wDs9MJ2GisTVl/l6kU91+6645vkL8H1wYmptsTUqXbUpNq+du47sV2Gh8NSylVeu9XJrPfzXI4qFJ1q
8KSv1mldK9vM6tMVFVxzStaCUbp3v3/2ZQ4ClsDK2BQUWngUASqR7lBT1aWABRKaVJOyPM1J3Zk83mz8snXh
NQABEwAAAAAAUgABDRDtwy8sduTknjdMndj+xwmHw3elryTzT/GzwwtLbYmnTdrN778O81pGrtcZPO0eqr+X
+7jXtGt6KgtvKtO6hSi23+eVziqTdSpKbteTbdjvp/p9EzmvirS1U1w8/fmcuEo7bFU6btZvffhmzN/SunSH
YYPD4X6kteSeaf42Y0TBdIlXndQoxbb/ADyuZ0lV2uNnnaPVV/L/AHc9af6fRE5r4q8tVNcPP35mfGPn1Jup
UlUla8m27eZ36Q7DB4bC/UlryTzT/GzmwlHb4qnTdrN778M2emkqu2xtTO0Oqr+X+7mVjWiKa6ROvO6hRi23
+eVzjqTdSpKpK15Nt28z6FL9PoidRfFXlqprh5+/M+dYxqWBqwsZWxCgotNEKCiU8e4BT1aSAyQJL4WTzusb
T4+7p5gA8l3AAAAAAAAAAAAKCGjo4b3HPzzquzRqUXWrtJ7OF0vz09zhk3Jtttt722d8+x0VGPfVldp8PLku
Z44CntMZTW+yes7eRXf1zPTSfZRoYdfDCN3bdd+n29yaMSg61dpPZQul+enueOMntcVUnua1rJrgtx0T7HRM
Y5OrK7T4eXJczPjHz5Nybbbbe9tndpTso0MNH4YQu2tyb9Ps+Z5aPp7TGU1Z2T1nbusZxk9ri6s9zWtZNd6W
4GPbRcVB18Q0nsoXS/39vc4W3Jtybbe9t959CfY6IjHJ1pXafDy5LmeOj6e0xtNWdovWdu6xgeulOyjQw0fh
hC7a3Jv0+z5nz7HRjJ7XF1Z7mtaya70tyPGxgZsLGrCwrUBQLTIUFFrY9gUHqpoSXws0R5CZzeNh8bqyvIAH
kvQAAAAAAAAAAAADXcQ0X4Z3XPz3qLKc5JKUm1HJN5EhOdN3hKUXxTsDpwdKFXX143ta28pnlMMd1zT25DUp
zkkpSk1HJN5H0uiUPB7sdEoeD3ZD9nD/ABvjXzITnTd4SlF5XTsZsfU6JQ8Hux0Sh4Pdmfs4jxr5spzmkpSk
1Hck3kITnTd4SlF5XTsfS6JQ8Hux0Sh4PdmfsYjxfLsSx9XolDwe7HRKHg92Z+xiPF8qwsfV6JQ8Hux0Sh4P
dmfnxb4vlWB9OrhaMaU5KG9RbW9nzhsc5l0zWkBSGte5Cg9ZJAAKzbzkrMyekldHmebzYeGT0OLPzxAASVAA
AAAAACgFit5oJWRTrwx8cXByZ+WSHXgP8n2/s5TrwP1/b+yfP/XWY9usAHmqAAAAAAAAAAAAMVvk1P2v+D5J
9at8mf7WfKOjh6pahDRCpXsCkPWRQhQYXaGJR70bITzwmc1T4clwu48gbceBnI8/Pjyw7ejhy45z0gAEUACp
XyN1sWye6huMe9hRtmaOjDj17rj5eff/ADiFAKVzwOrA/X9jmOrBfX9iHP8A10+PbqAB5yoAAAAAAAAAAADF
b5M/2s+WfUq/Kn+1nzC/F1S1CGiFSPYhWQ9ZCoQpALahCgwu0IUC0bZ1UNVFDdldk7x4d6UnPyT6KKKSMtZX
KEkk9MueWXdCgGUSqAUWngdWD+v7HMdOE+v7HPz/AMKrj26QAeeqAAAAAAAAAAAAxV+VP9rPnH0avyp/tZ88
vxdFyZIaMsonXsyM0yM9ZCsshWQCWoQpAJagAMZsPCpPWdlkjdWduqjxOXlz/wDMNG6ctWXk8z3OU9qM7rVe
ayM48vla9SgFaaVSkNCVSB04T6/sc50YX6vsc/P/AAquHboABwLAAAAAAAAAAAAM1PlT9GfPZ9Cp8uXozgZb
j6JkyzLNMjKJ17MyzbMs9dCssjNMyzE6yCkAlqGJy1F5m5NJNvuOaUtaV2S5M/GehjNsgA41QqbTusyAA64S
Uo3Ro5aU9SW/J5nWdGOW4IFQKjKpFOjDfV9jnR0Yb6vsQ5v4VbDt7gA4FgAAAAAAAAAAAGany5ejOFndU+XL
0ZxMrx9EyYZGaZGVSr1ZGaZGes56wyM0yME6yQp41526izeYuWUxm6XW686s9Z2WSPMA4rbbuqyaAAK0AAAO
nDzutR5rI5ipuLTTs0NLqh3oqM05qcFJG0UNBHRh/q+x4I98P9RDm/hV8O3sADhXAAAAAAAAAAAAZn8EvRnG
zsn8EvQ5GV4yZMMjNMyyiNezMs2zLPWc9ZZGaZibUYuTyQbTrzqz2cb97yOPM1Um5zcmZOPkz8qfGaAATMAA
AAAAAAA9aFTZz3/C8zuR8w68LVutST3rLzGl+NjpR7UPqPJGk2sm0LyTyx0thdV0g59aXF8y6z4vmc34b/q3
k9weN3xYu+LM/FTbewPG74st3xZn46HqDxu+LF3xYfjD2B4az4vmTWl4nzM8Gbe0/gl6HIz0cpcXzMMfGaJl
dssyzbMsZKvZmWbZlnrOess4cRV15WXwr3OuvGc4asLK+bbObolTjHmR5PK+oyac4PXo9Xw+6JKjUjnB/beQ
8b/htx5g1s5+CXIyZpoADAAAAAAAFjJxknF2aIAD6dKaqQUly4HofOw1XZVN/wALzPomqY1SkKLVZQoAlPKA
oMbtCFAo2hCkMLayyM0yMC1hkZpkYJ17MyzTIes56yyGiASsksaJYwrNhY1YljGMuMZfEk/VE2cPBHkbsLC1
ry6PS8PuyPDU3kmvRnvYWEshpa5+iQ4yM9D/APT2OsC2Q8tccsHL6Zp+u4dDqeKPM7SiWQ0fO6LW8Hujswyq
RhqVI2tk73PYph4FIUSqyhQBaaUAArdhCkMG0IaIYy1kjNEMLayyM0zLBOv/2Q==
""")


def measure_parity(
    backbone: Backbone, device: torch.device, dtype: str, cache_dir: Path
) -> Parity | None:
    """Return what this machine makes of the picture, computed once and kept.

    None for features without a network, of which there is nothing to compare.
    """
    if not backbone.has_weights:
        return None
    versions = f"Pillow {PIL.__version__}, torch {torch.__version__}"
    software = f"{versions}, {dtype} on {device.type}"
    # Other versions may make other features: each has a place of its own.
    key = hashlib.sha256(software.encode()).hexdigest()[:16]
    picture, row = EncodedImages([PICTURE], [0]), np.array([0])
    folder = cache_dir / f"parity-{key}"
    features = cached_features(
        backbone, picture, row, folder, device=device, dtype=dtype
    )
    chosen = features[0].numpy()[_places(backbone.dim)]
    return Parity(tuple(map(float, chosen)), software)


def _places(dim: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, dim - 1, NUM_VALUES).astype(np.int64))
