"""A process that measures the ops it is told to: a line in is an op's name, lines out say what became of each sample.

Lines out are JSON objects: {"ready": true} once, then for each op {"sample": [index, reason]} or {"refused": true} for
each sample, and {"done": true}.
"""

from __future__ import annotations

import json
import sys
from typing import TextIO

from ampcheck.runner.worker import answers
from scripts.jax_coverage.records import Sample


def serve(way: str, limit: int, channel: TextIO) -> None:
    """Answer the lines of standard input until it ends."""
    from scripts.jax_coverage import measure, samples, ways  # noqa: PLC0415  # import torch, after the channel is taken

    def say(**message: object) -> None:
        channel.write(json.dumps(message) + "\n")

    implementation = ways.IMPLEMENTATIONS[way]()
    known = samples.ops()
    say(ready=True)
    for line in sys.stdin:
        op = known[line.strip()]
        for outcome in measure.measure(op, implementation, limit):
            if isinstance(outcome, Sample):
                say(sample=[outcome.index, outcome.reason])
            else:
                say(refused=True)
        say(done=True)


def main(argv: list[str]) -> None:
    """Serve the way and the number of samples an op that the arguments name."""
    serve(argv[0], int(argv[1]), answers())


if __name__ == "__main__":
    main(sys.argv[1:])
