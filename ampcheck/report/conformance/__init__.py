"""The pages of conformance runs."""
