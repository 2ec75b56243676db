"""Recurrent cells and layers. A gated cell stacks its gates: three in a GRU, four in an LSTM."""

from ampcheck.samples.describe import Samples, TensorArg, at, f, function, op

_MKLDNN_LSTM = _CUDNN_LSTM = 2

# Batch 2, inputs 3, hidden 4.
_RNN = (f(4, 3), f(4, 4), f(4), f(4))
_GRU = (f(12, 3), f(12, 4), f(12), f(12))
_LSTM = (f(16, 3), f(16, 4), f(16), f(16))


def _cell(state: TensorArg | list[TensorArg], weights: tuple[TensorArg, ...]) -> Samples:
    return function(at("biases", f(2, 3), state, *weights), at("nobias", f(2, 3), state, *weights[:2]))


OPS = {
    # torch offers no call of the fused cells; the unfused ones take them on the accelerators that have them.
    "_thnn_fused_gru_cell": op(
        at("biases", f(2, 12), f(2, 12), f(2, 4), f(12), f(12)), at("nobias", f(2, 12), f(2, 12), f(2, 4))
    ),
    "_thnn_fused_lstm_cell": op(
        at("biases", f(2, 16), f(2, 16), f(2, 4), f(16), f(16)), at("nobias", f(2, 16), f(2, 16), f(2, 4))
    ),
    "_cudnn_rnn": op(
        at(
            "lstm",
            *(f(5, 2, 3), [*_LSTM], 4, None, f(1, 2, 4), f(1, 2, 4)),
            *(_CUDNN_LSTM, 4, 0, 1, False, 0.0, True, False, [], None),
        ),
        values="none",
        reason="the fourth output is cuDNN's scratch memory",
    ),
    "gru_cell": _cell(f(2, 4), _GRU),
    "lstm_cell": _cell([f(2, 4), f(2, 4)], _LSTM),
    "mkldnn_rnn_layer": function(
        at(
            "forward",
            *(f(5, 2, 3), *_LSTM, f(2, 4), f(2, 4)),
            *(False, [], _MKLDNN_LSTM, 4, 1, True, False, False, False),
        ),
        at(
            "reverse",
            *(f(5, 2, 3), *_LSTM, f(2, 4), f(2, 4)),
            *(True, [], _MKLDNN_LSTM, 4, 1, True, True, False, False),
        ),
        values="none",
        reason="the fourth output is a scratch buffer that is never filled",
    ),
    "rnn_relu_cell": _cell(f(2, 4), _RNN),
    "rnn_tanh_cell": _cell(f(2, 4), _RNN),
}
