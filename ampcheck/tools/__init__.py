"""What a user applies to code of their own: explain, trace, lint, watch; and the measure of what the suites cover."""
