#define AT_FORALL_LOWER_PRECISION_FP(_) \
  _(mm)                                 \
  _(conv_transpose2d, input)

#define AT_FORALL_FP32(_)  \
  _(exp)                   \
  _(pow, Tensor_Scalar)

#define AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(_) \
  _(ADD_NS(norm), "norm.Scalar")
