"""Backends that exist: how each is installed, and what ampcheck finds there."""
