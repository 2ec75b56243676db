"""The device's own lowerings, a file for each family, where torchax's table is wrong or imprecise or has none."""

from importlib import import_module
from pkgutil import iter_modules

for _file in iter_modules(__path__):  # each registers its lowerings when it is imported
    import_module(f"{__name__}.{_file.name}")
