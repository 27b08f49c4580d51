"""Recompute the numbers that version 0.1 came to, and print what differs.

Usage: python check_numbers.py NUMBERS.json [NAME …]

With names of federations (or "records"), only those are recomputed. The exit code is
1 if anything differs. The last bits of sums vary with the number of threads: two are
taken, as in the Makefile, unless OMP_NUM_THREADS says otherwise.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "2")  # before torch is imported

import hashlib
import importlib
import json
import logging
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from safetensors.torch import load_file

# Where a module may be: in newer versions first, then in 0.1.
_PLACES = {
    "inline engine": ("simulation.engines.inline", "simulation.inline_engine"),
    "config": ("fed3r_app.config",),
    "server": ("fed3r_app.server_app",),
    "client": ("fed3r_app.client_app",),
    "wire": ("fed3r_app.wire",),
    "secure records": ("fed3r_app.wire.secagg", "fed3r_app.wire.secure"),
    "core": ("fed3r_app.core",),
    "secagg": ("fed3r_app.privacy.secagg", "fed3r_app.secagg"),
}
PIXELS = {"backbone": "pixels", "image-size": 8}
SMALL = {"dataset": "digits-small", **PIXELS}
DIGITS = {"dataset": "digits", **PIXELS}
LP = {**SMALL, "partition": "dirichlet", "alpha": 0.5, "finetune": "lp", "rounds": 3}
# (number of clients, what differs from the defaults)
FEDERATIONS: dict[str, tuple[int, dict[str, str | int | float | bool]]] = {
    "by-class-factor-float32": (10, SMALL),
    "dirichlet-packed-float64": (
        7,
        {
            **DIGITS,
            **{"partition": "dirichlet", "alpha": 0.5, "ridge-lambda": 0.01},
            **{"upload": "packed", "upload-dtype": "float64"},
        },
    ),
    "iid-dense-float32-intercept": (
        5,
        {**DIGITS, "partition": "iid", "upload": "dense", "fit-intercept": True},
    ),
    "dirichlet-factor-float16": (
        6,
        {**SMALL, "partition": "dirichlet", "upload-dtype": "float16", "seed": 3},
    ),
    "iid-factor-float64-evaluated": (
        4,
        {
            **DIGITS,
            **{"partition": "iid", "upload-dtype": "float64", "fit-intercept": True},
            **{"client-evaluation": True, "normalize-classes": False},
        },
    ),
    "packed-float32-all-at-once": (
        8,
        {**DIGITS, "upload": "packed", "clients-per-round": 0},
    ),
    "random-features": (10, {**SMALL, "method": "fed3r-rf", "rf-dim": 64}),
    "random-features-given-width": (
        5,
        {
            **{**DIGITS, "partition": "iid", "method": "fed3r-rf", "rf-dim": 48},
            **{"rf-sigma": 2.0, "fit-intercept": True, "ridge-lambda": 0.1},
        },
    ),
    "class-means": (
        6,
        {**DIGITS, "method": "fedncm", "partition": "dirichlet", "alpha": 0.3},
    ),
    "with-replacement": (
        12,
        {
            **{**DIGITS, "partition": "iid", "clients-per-round": 4},
            **{"sampling": "with-replacement", "statistics-rounds": 3},
        },
    ),
    "secure-aggregation": (10, {**SMALL, "privacy": "secagg", "secagg-group": 5}),
    "synthetic": (
        20,
        {
            "dataset": "synthetic:clients=20,classes=7,features=24,mean=15",
            **{"backbone": "none", "partition": "natural", "clients-per-round": 5},
        },
    ),
    "lp-fedavg": (5, LP),
    "lp-fedavgm-auto-temperature": (
        5,
        {**LP, "optimizer": "fedavgm", "temperature": "auto", "fit-intercept": True},
    ),
    "lp-scaffold": (5, {**LP, "optimizer": "scaffold", "clients-per-round": 3}),
    "lp-random-start": (4, {**LP, "method": "none", "local-epochs": 2}),
    "full-mobilenet-batch-norm": (
        3,
        {
            **{"dataset": "digits-small", "partition": "iid", "image-size": 64},
            **{"finetune": "full", "rounds": 1, "batch-norm": "train"},
            **{"batch-size": 32, "probe": True},
        },
    ),
    "feat-mobilenet-refit": (
        3,
        {
            **{"dataset": "digits-small", "partition": "iid", "image-size": 32},
            **{"finetune": "feat", "rounds": 2, "refit": True, "lr": 1e-4},
        },
    ),
    "default": (10, {}),
}
# Keys, masks and shares are drawn anew: only what comes of them stays.
_RANDOM_EXCHANGES = ("secure-aggregation",)
_TIMES = ("seconds",)
# The best round by test accuracy is no longer looked for.
_LEFT_OUT = (*_TIMES, "format", "best_accuracy", "best_round")


def module(what: str) -> ModuleType:
    """Return a module, wherever this version has it."""
    for name in _PLACES[what]:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    raise ModuleNotFoundError(f"None of {_PLACES[what]} is there.")


def defaults() -> dict[str, Any]:
    """Return the run config with all defaults, of this version or of 0.1."""
    config = module("config")
    if hasattr(config, "DEFAULTS"):
        return dict(config.DEFAULTS)
    pyproject = Path(config.__file__).parents[1] / "pyproject.toml"
    return module("inline engine").default_run_config(pyproject)


class Spy:
    """A ClientApp that adds all it is asked and all it answers to a digest."""

    def __init__(self) -> None:
        self._app: Callable[..., Message] = module("client").app
        self._exchanges: list[str] = []
        self.counts: dict[str, int] = {}

    def __call__(self, message: Message, context: Any) -> Message:
        """Return the reply of the real app."""
        kind, question = message.metadata.message_type, described(message.content)
        client = context.node_config["partition-id"]
        reply = self._app(message, context)
        exchange = [client, kind, question, described(reply.content)]
        self._exchanges.append(json.dumps(exchange))
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return reply

    @property
    def sha256(self) -> str:
        """The digest of all that has travelled so far.

        In any order: Flower draws that in which the clients of a round train anew.
        """
        return sha256("\n".join(sorted(self._exchanges)).encode())


def federate(
    num_clients: int, settings: Mapping[str, str | int | float | bool]
) -> dict[str, Any]:
    """Run a federation in this process; return what came of it."""
    spy = Spy()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FED3R_OUTPUT_DIR"] = folder
        config = {**defaults(), **settings, "run-name": "it"}
        module("inline engine").run_inline(
            module("server").app, spy, num_clients, config
        )
        run = Path(folder) / "it"
        numbers = {"clients": num_clients, "settings": dict(settings)} | outcome(run)
    return numbers | {"exchanges": spy.counts, "exchanges_sha256": spy.sha256}


def outcome(run: Path) -> dict[str, Any]:
    """Return what the files of a run hold, times aside."""
    model = load_file(run / "model.safetensors")
    W = model["W"]
    summary = json.loads((run / "summary.json").read_text())
    ledger = run / "ledger.jsonl"
    entries = ledger.read_text().splitlines() if ledger.exists() else []
    lines = (run / "metrics.jsonl").read_text().splitlines()
    # From format 2 on a first line says which it is.
    entries, lines = (
        [line for line in each if '"format"' not in line] for each in (entries, lines)
    )
    numbers = {
        "W_sha256": sha256(W.numpy().tobytes()),
        "W_shape": list(W.shape),
        "W_norm": float(f"{W.double().norm().item():.12g}"),
        "W_first": W.flatten()[:5].tolist(),
        "W_spread": W.flatten()[:: max(W.numel() // 7, 1)].tolist(),
        "model_sha256": tensors_sha256(model),
        "summary": {k: v for k, v in summary.items() if k not in _LEFT_OUT},
        "metrics": [
            {k: v for k, v in json.loads(line).items() if k not in _TIMES}
            for line in lines
        ],
        "ledger": [
            [entry["client"], entry["outcome"], entry.get("digest", "")]
            for entry in map(json.loads, entries)
        ],
    }
    for name in ("statistics", "checkpoint"):
        path = run / f"{name}.safetensors"
        if path.exists():
            numbers[f"{name}_sha256"] = tensors_sha256(load_file(path))
    return numbers


def _pack_classifier(
    wire: Any, core: Any, W: torch.Tensor, present: torch.Tensor
) -> Any:
    """Return a classifier's record, in this version or in 0.1."""
    if hasattr(core, "Classifier"):
        return wire.pack_classifier(core.Classifier(W, present))
    return wire.pack_classifier(W, present)


def records() -> dict[str, Any]:
    """Return the records that travel, made of fixed numbers."""
    wire, core = module("wire"), module("core")
    plain = core.FeatureMap(64)
    mapped = core.FeatureMap(64, 32, 2.5, 7, True, 0.0)
    labels = ("cat", "dog", "yak")
    random = np.random.default_rng(1)
    W = torch.from_numpy(random.normal(size=(4, 3)))
    present = torch.tensor([True, False, True])
    moments = core.FeatureMoments(9, torch.from_numpy(random.normal(size=6)), 12.5)
    request = getattr(wire, "TrainRequest", None) or wire.TrainingQuestion
    question = request(0.1, 0.5, mapped, "", True)
    fixed = request(0.1, 0.5, plain, "ab" * 32, False)
    digest = RecordDict()
    wire.add_digest(digest, "0f" * 32)
    evaluation = wire.with_labels(wire.pack_feature_map(mapped), labels)
    evaluation[wire.ON_TEST_IMAGES] = True
    made = {
        "hello": wire.pack_hello(wire.Hello("clinic-7", 10)),
        "hello of a node with images": wire.pack_hello(
            wire.Hello("clinic-7", 0, None, labels, 5)
        ),
        "hello with moments": wire.pack_hello(wire.Hello("3", 10, moments)),
        "feature map": wire.pack_feature_map(plain),
        "feature map with random features": wire.pack_feature_map(mapped),
        "question for statistics, with labels": wire.with_labels(
            wire.pack_feature_map(plain), labels
        ),
        "evaluation": RecordDict(
            {"arrays": _pack_classifier(wire, core, W, present), "config": evaluation}
        ),
        "digest": digest,
        "training": question.pack(),
        "training with a fixed classifier": fixed.pack(),
        "temperatures": wire.pack_temperatures(plain, [0.1, 1.0]),
        "losses": wire.pack_losses([3.0, 2.5]),
        "arrays": wire.pack_arrays({"weight": W, "bias": W[0]}),
        "names": [
            *(wire.BACKBONE, wire.ON_TEST_IMAGES),
            *(wire.RUNNING, wire.FIXED, wire.CONTROL),
            *(list(wire.FORMS), list(wire.DTYPES)),
        ],
        **secure_records(),
    }
    return {name: described(record) for name, record in made.items()} | {
        f"statistics, {what}": described(record) for what, record in statistics()
    }


def secure_records() -> dict[str, Any]:
    """Return the records of secure aggregation."""
    secure, secagg = module("secure records"), module("secagg")
    keys = {
        1: secagg.PublicKeys(b"a" * 32, b"b" * 32),
        4: secagg.PublicKeys(b"c" * 32, b"d" * 32),
    }
    sealed = {1: b"one", 4: b"four"}
    answer = secagg.UnmaskAnswer({1: b"s" * 33, 4: b"t" * 33}, {7: b"u" * 33})
    config = module("wire").pack_feature_map(module("core").FeatureMap(64))
    vector = np.arange(5, dtype=np.uint64)
    return {
        "secagg attempt": secure.pack_attempt("first"),
        "secagg keys": secure.pack_keys(keys[1]),
        "secagg group": secure.pack_group("first", 4, keys, 3),
        "secagg sealed": secure.pack_sealed(sealed),
        "secagg question": secure.ask_masked("first", sealed, config),
        "secagg masked": secure.pack_masked(vector),
        "secagg survivors": secure.pack_survivors("first", [4, 1]),
        "secagg answer": secure.pack_answer(answer),
    }


def statistics() -> Iterator[tuple[str, ArrayRecord]]:
    """Yield the records of some samples' statistics, in every form and dtype."""
    wire = module("wire")
    for n, d in ((40, 12), (7, 12), (0, 12)):
        random = np.random.default_rng([n, d])
        Z = torch.from_numpy(random.normal(size=(n, d)).astype(np.float32))
        y = torch.from_numpy(random.choice([0, 2, 3], size=n))
        for form in wire.FORMS:
            for dtype in wire.DTYPES:
                if dtype != "float16" or form == "factor":
                    made = wire.pack_statistics(Z, y, 5, form, dtype)
                    yield f"{n} samples, {form}, {dtype}", made


def described(record: Any) -> Any:
    """Return what is in a record as JSON knows it; of an array, a digest."""
    if isinstance(record, ArrayRecord):
        arrays = {name: array.numpy() for name, array in record.items()}
        return {
            name: [str(a.dtype), list(a.shape), sha256(np.ascontiguousarray(a).data)]
            for name, a in arrays.items()
        }
    if isinstance(record, Mapping | RecordDict) or hasattr(record, "items"):
        return {name: described(value) for name, value in record.items()}
    if isinstance(record, bytes):
        return record.hex()
    if isinstance(record, list | tuple):
        return [described(value) for value in record]
    return record


def sha256(data: Any) -> str:
    """Return the digest of some bytes."""
    return hashlib.sha256(data).hexdigest()


def tensors_sha256(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the digest of named tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def compute(names: list[str] | None = None) -> dict[str, Any]:
    """Return all numbers, or those with some names."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["FED3R_CACHE_DIR"] = cache
        numbers: dict[str, Any] = {"federations": {}}
        if not names or "records" in names:
            numbers["records"] = records()
        for name, (num_clients, settings) in FEDERATIONS.items():
            if names and name not in names:
                continue
            made = federate(num_clients, settings)
            if name in _RANDOM_EXCHANGES:
                del made["exchanges_sha256"]
            numbers["federations"][name] = made
            print(f"computed {name}", file=sys.stderr, flush=True)
    return json.loads(json.dumps(numbers))  # as a file has it


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Yield a line for each value of the old numbers that the new ones do not have."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old:
            place = f"{where} / {key}" if where else key
            if key in new:
                yield from differences(old[key], new[key], place)
            else:
                yield f"{place}: {old[key]!r} before, absent now"
        for key in new.keys() - old.keys():
            yield f"{where} / {key}: absent before, {new[key]!r} now"
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (then, now) in enumerate(zip(old, new, strict=True)):
            yield from differences(then, now, f"{where} [{place}]")
    elif old != new:
        change = ""
        if isinstance(old, float) and isinstance(new, float):
            relative = abs(new - old) / max(abs(old), math.ulp(0.0))
            change = f" (relative difference {relative:.2g})"
        yield f"{where}: {old!r} before, {new!r} now{change}"


def main() -> int:
    """Compare; return the exit code."""
    path, *names = sys.argv[1:]
    old = json.loads(Path(path).read_text())
    if unknown := set(names) - {"records", *FEDERATIONS}:
        print(f"Not known: {', '.join(sorted(unknown))}.", file=sys.stderr)
        return 2
    wanted = {"federations": old["federations"], "records": old["records"]}
    if names:
        wanted["federations"] = {
            name: old["federations"][name] for name in names if name != "records"
        }
        if "records" not in names:
            del wanted["records"]
    found = list(differences(wanted, compute(names)))
    then, now = old["defaults"], json.loads(json.dumps(defaults()))
    for line in differences(then, now, "defaults"):
        print(f"for information: {line}")
    print("\n".join(found) if found else "Nothing differs.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
