#define LOW(...) KERNEL_XPU(__VA_ARGS__, lower_precision_fp)
#define FP32(...) KERNEL_XPU(__VA_ARGS__, fp32)
#define OPT(...) KERNEL_XPU(__VA_ARGS__, fp32_set_opt_dtype)
#define KERNEL_OWN(...) KERNEL(c10::DeviceType::XPU, __VA_ARGS__)
#define PROMOTE(...) KERNEL_OWN(__VA_ARGS__, promote)
TORCH_LIBRARY_IMPL(_, AutocastXPU, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastXPU, m) {
  AT_FORALL_LOWER_PRECISION_FP(LOW) AT_FORALL_FP32(FP32) AT_FORALL_FP32_SET_OPT_DTYPE(OPT) AT_FORALL_PROMOTE(PROMOTE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_XPU)
  m.impl(TORCH_SELECTIVE_NAME("aten::binary_cross_entropy"), TORCH_FN((&binary_cross_entropy_banned)));
}
#define EACH(_) \
  _(mm)         \
  _(conv1d, padding)
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  EACH(LOW)
  KERNEL_OWN(pow, Scalar, fp32)
  // KERNEL_PRIVATEUSEONE(log, fp32)
#if 0
  KERNEL_PRIVATEUSEONE(tan, fp32)
#endif
  m.impl("dot", &WrapFunction<CastPolicy::promote, DeviceType::CPU>::type::call);
  m.impl("mv", TORCH_FN(mv_autocast));
}
#define AGAIN(x) AGAIN(x) AGAIN(x)
void check() { AGAIN(1); TORCH_CHECK(false, "after the block"); }
