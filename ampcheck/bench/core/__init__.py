"""Measuring: clocks, statistics, peaks, and the check that a variant computed in the precision it names."""
