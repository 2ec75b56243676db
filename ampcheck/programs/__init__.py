"""Random programs, of regions, of the GradScaler and of functions that are compiled.

A program is text in Python that Hypothesis draws. The same text runs on torch and on a second side with the same
methods: on the model of `ampcheck.spec`, on a reference in plain torch, or eagerly beside a compiler. Both sides must
see the same, and a failure prints the text.
"""
