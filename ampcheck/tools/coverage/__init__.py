"""Count what the cases of the suites reach: `ampcheck coverage` and `ampcheck entered`."""
