"""A run group: workloads in their variants, timed in child processes, written to a file and read back."""
