"""Runs the suites in child processes, so that a case which ends its process or hangs costs that one case.

A child is a pytest run that is told by a plan which cases are its own and writes events to a file as they happen
(`channel`). The supervisor follows the files of its children (`child`, `loop`), writes the one run file and the one
JUnit file (`outcome`, `junit`), and starts a fresh child for the remaining cases where one died.
Nothing here but `channel`, which runs in the child, needs torch.
"""
