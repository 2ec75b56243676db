"""The pages of benchmark run groups."""
