"""Random functions with regions, compiled and compared with eager mode."""
