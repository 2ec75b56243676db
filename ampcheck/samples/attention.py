"""Attention: batch 2, two heads; queries and keys differ in number, values in width."""

from ampcheck.samples.describe import at, b, f, function, op, via

_QUERY, _KEY, _VALUE = f(2, 2, 3, 4), f(2, 2, 5, 4), f(2, 2, 5, 6)
_SAME = f(2, 2, 3, 8)

# Width 8; the weights of query, key and value are stacked.
_MHA = (f(2, 3, 8), f(2, 3, 8), f(2, 3, 8), 8, 2, f(24, 8), f(24), f(8, 8), f(8))
_PADDING_MASK = 1

OPS = {
    "_native_multi_head_attention": function(
        at("masked", *_MHA, b(2, 3), True, True, _PADDING_MASK),
        at("nomask", *_MHA, average_attn_weights=False),
        at("noweights", *_MHA[:4], 4, *_MHA[5:], None, False),
    ),
    "_scaled_dot_product_flash_attention": function(
        at("plain", _SAME, _SAME, _SAME), at("causal", _SAME, _SAME, _SAME, 0.0, True, scale=0.5)
    ),
    "scaled_dot_product_attention": op(
        at("biased", _QUERY, _KEY, _VALUE, f(3, 5)),
        at("large", f(1, 2, 130, 20), f(1, 2, 9, 20), f(1, 2, 9, 40), f(130, 9)),
        at("masked", _QUERY, _KEY, _VALUE, b(2, 1, 3, 5)),
        at("causal", _SAME, _SAME, _SAME, None, 0.0, True, scale=0.5),
        at("grouped", f(2, 4, 3, 4), _KEY, _VALUE, enable_gqa=True),
        at("unbatched", f(3, 4), f(5, 4), f(5, 6)),
        at("dropped", _SAME, _SAME, _SAME, None, 1.0),  # all of it, which no random number decides
        via("torch.nn.functional.scaled_dot_product_attention", _QUERY, _KEY, _VALUE),
        via("torch.nn.functional.scaled_dot_product_attention", _QUERY, _KEY, _VALUE, attn_mask=f(2, 2, 3, 5)),
    ),
}
