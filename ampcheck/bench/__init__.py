"""Benchmarks: what is timed, how, and what the figures say. Importing this imports nothing else.

- `model.py`: workloads, arms, results, as plain data; `workloads`: the catalogue, a name for each.
- `statistics.py`: ratios of two arms or two runs, their intervals and verdicts.
- `summary.py`: what several processes measured of a group becomes one result.
- `alerts.py`: what moved from night to night.
- `runfile.py`: the files it is all kept in.
"""
