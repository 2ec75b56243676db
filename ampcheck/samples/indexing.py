"""Joining tensors and writing into copies of them at given places."""

from ampcheck.samples.describe import at, b, f, function, i, method, via

_THREE = [f(2, 3), f(4, 3), f(1, 3)]
_EQUAL = [f(2, 3), f(2, 3), f(2, 3)]

OPS = {
    "cat": function(
        at("three", _THREE),
        at("large", [f(900, 33), f(1100, 33)]),
        at("one", [f(2, 3)]),
        at("dim", [f(2, 3), f(2, 1)], -1),
        at("empty", [f(2, 3), f(0)]),
        via("torch.hstack", [f(2, 3), f(2, 1)]),
        via("torch.column_stack", [f(2, 3), f(2, 1)]),
        also=("torch.concat", "torch.concatenate", "torch.vstack", "torch.row_stack"),
    ),
    "stack": function(
        at("three", _EQUAL),
        at("large", [f(40, 70), f(40, 70)]),
        at("one", [f(2, 3)]),
        at("dim", [f(2, 3), f(2, 3)], -1),
        at("zerodim", [f(), f()]),
    ),
    "index_copy": method(
        at("rows", f(4, 3), 0, i(2, fill="arange"), f(2, 3)),
        at("large", f(40, 130), 0, i(30, fill="arange"), f(30, 130)),
        at("columns", f(2, 5), -1, i(3, fill="arange"), f(2, 3)),
        at("zerodim", f(), 0, i(fill="arange"), f()),
        at("empty", f(4, 3), 0, i(0), f(0, 3)),
    ),
    "index_put": method(
        at("pairs", f(4, 3), [i(2, fill="arange"), i(2, high=3)], f(2)),
        at("broadcast", f(4, 3), [i(2, fill="arange")], f(3)),
        at("masked", f(4, 3), [b(4, 3)], f()),
        at("accumulate", f(4, 3), [None, i(5, high=3)], f(4, 5), True),
    ),
    "scatter_add": method(
        at("rows", f(3, 4), 0, i(2, 4, high=3), f(2, 4)),
        at("large", f(40, 130), 0, i(5, 130, high=40), f(5, 130)),
        at("columns", f(3, 4), -1, i(3, 5, high=4), f(3, 6)),
        at("zerodim", f(), 0, i(fill="arange"), f()),
        at("empty", f(3, 4), 0, i(0, 4), f(0, 4)),
    ),
}
