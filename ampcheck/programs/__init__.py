"""Random programs: of regions, of the GradScaler, and of functions that are compiled."""
