"""The checks: one case judged, with every difference from the specification as a sentence."""
