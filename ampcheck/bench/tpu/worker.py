"""Compile for a TPU in this process: tasks come on standard input, and each variant goes out as a JSON line.

python -m ampcheck.bench.tpu.worker < tasks.json
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
import warnings

from ampcheck.bench.core.model import PRECISIONS, VariantResult
from ampcheck.bench.tpu.chips import chip
from ampcheck.bench.tpu.estimate import estimate
from ampcheck.bench.tpu.variants import variant_result
from ampcheck.bench.workloads import catalogue
from ampcheck.errors import one_line
from ampcheck.runner.record import first_line
from ampcheck.runner.worker import Channel


def main() -> None:
    """Estimate what standard input says: {"tpu": a name, "tasks": pairs of workload and precision}."""
    given = json.load(sys.stdin)
    channel = Channel()
    warnings.simplefilter("ignore")
    for workload, precision in given["tasks"]:
        variant = estimated(workload, precision, given["tpu"])
        channel.send(dataclasses.asdict(variant))
        gc.collect()


def estimated(workload: str, precision: str, tpu: str) -> VariantResult:
    """One variant, "not measured" where it cannot be compiled."""
    of, chosen = catalogue()[workload], PRECISIONS[precision]
    try:
        return variant_result(of, chosen, estimate(of, chosen, tpu), chip(tpu))
    except Exception as error:  # the compiler may refuse anything, and the next program is to be tried
        return VariantResult(precision, "not measured", first_line(one_line(error)))


if __name__ == "__main__":
    main()
