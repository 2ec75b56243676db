"""Differences between the policy tables and a dispatcher's registrations, in sentences.

The tables say what PyTorch registered when they were written; a dispatcher says what this build registers. On a version
that has a table a difference is an error of the table. On a newer one it is news, which a run reports and goes on.
`ampcheck.observe.dispatcher` gives the registrations; this module needs no torch.
"""

from collections.abc import Collection, Mapping

from ampcheck.spec.policies import minor, rows, versions


def covered(torch_version: str) -> bool:
    """Return whether this torch version's minor version, e.g. of "2.13.1+cpu", has a table.

    Raises ValueError for a text that does not start with two numbers.
    """
    return minor(torch_version) in versions()


def drift(registrations: Mapping[str, Collection[str]], version: str) -> list[str]:
    """Every difference between some registrations and the table of a torch minor version, one sentence each.

    Args:
        registrations: per dispatch key, the aten overloads registered, without the namespace. A key that is not in it
            is not compared.
        version: the table's minor version, e.g. "2.13".

    Returns: the sentences, ordered by key; none where they agree. A row with a `builds` value may be registered or not.
    Raises ValueError where there is no such table.
    """
    known = rows(version)
    out = []
    for key in sorted(registrations):
        live = set(registrations[key])
        listed = {row.overload for row in known if row.key == key}
        required = {row.overload for row in known if row.key == key and not row.builds}
        out += [
            f"{key} registers aten::{name}, which the table of torch {version} does not list"
            for name in sorted(live - listed)
        ]
        out += [
            f"{key} does not register aten::{name}, which the table of torch {version} lists"
            for name in sorted(required - live)
        ]
    return out
