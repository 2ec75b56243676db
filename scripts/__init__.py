"""Commands of ampcheck's maintainers: `python -m scripts.NAME` in a checkout. None is in the wheel."""
