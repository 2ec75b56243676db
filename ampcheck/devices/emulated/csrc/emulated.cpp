// A CUDA device in the memory of the CPU: plain tensors of device cuda:0, whose kernels are the CPU's. Dispatch goes
// through PyTorch's real keys, so autocast's and autograd's kernels for CUDA run; only the last step is the CPU's.
// ampcheck/devices/emulated/__init__.py says what is emulated and what is not.

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <atomic>
#include <set>
#include <vector>

namespace {

using at::IValue;
using at::Storage;
using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::jit::Stack;

constexpr at::DeviceType TYPE = at::DeviceType::CUDA;
const at::Device HERE(TYPE, 0);

// ---- memory: a storage of the device holds the CPU's, whose bytes it shares

std::atomic<int64_t> allocated{0}, most{0};

struct Held {
  Storage host;
  int64_t bytes;
};

void count(int64_t bytes) {
  int64_t now = allocated += bytes;
  for (int64_t before = most; now > before && !most.compare_exchange_weak(before, now);) {
  }
}

void release(void* held) {
  count(-static_cast<Held*>(held)->bytes);
  delete static_cast<Held*>(held);
}

at::DataPtr pointer(const Storage& host) {
  auto* held = new Held{host, static_cast<int64_t>(host.nbytes())};
  count(held->bytes);
  return at::DataPtr(host.mutable_data(), held, &release, HERE);
}

Storage host_of(const Storage& storage) {
  auto& pointer = storage.data_ptr();
  if (pointer.get_deleter() == &release) {
    return static_cast<Held*>(pointer.get_context())->host;
  }
  at::DataPtr same(storage.mutable_data(), at::Device(at::kCPU)); // memory that a caller lent
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(same), nullptr, false);
}

bool is_of(const Storage& here, const Storage& host) {
  auto ours = host_of(here);
  return ours.is_alias_of(host) || (ours.data() != nullptr && ours.data() == host.data());
}

bool is_here(const Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == TYPE;
}

void give_layout(const Tensor& to, const Tensor& from) {
  to.unsafeGetTensorImpl()->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
}

Tensor alike(Tensor out, const Tensor& like) {
  give_layout(out, like);
  out._set_conj(like.is_conj());
  out._set_neg(like.is_neg());
  return out;
}

DispatchKeySet keys_of(DispatchKey key, const Tensor& like) {
  return like._is_zerotensor() ? DispatchKeySet({key, DispatchKey::ZeroTensor}) : DispatchKeySet(key);
}

Tensor lowered(const Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, "the emulated device has dense tensors only");
  auto keys = keys_of(DispatchKey::CPU, tensor);
  return alike(at::detail::make_tensor<at::TensorImpl>(Storage(host_of(tensor.storage())), keys, tensor.dtype()), tensor);
}

// The tensors of one call: those of the device, and what the CPU's kernel gets in their place.
struct Call {
  std::vector<std::pair<Tensor, Tensor>> given;
  std::vector<Storage> storages;

  Tensor lower(const Tensor& tensor) {
    if (!is_here(tensor)) {
      return tensor;
    }
    given.emplace_back(tensor, lowered(tensor));
    return given.back().second;
  }

  IValue lower(const Storage& storage) {
    if (storage.device().type() != TYPE) {
      return storage;
    }
    storages.push_back(storage);
    return host_of(storage);
  }

  // The tensor of the device that shares its memory.
  const Tensor* base_of(const Tensor& host) {
    for (auto& [here, other] : given) {
      if (is_of(here.storage(), host.storage())) {
        return &here;
      }
    }
    return nullptr;
  }

  Storage storage_of(const Tensor& host) {
    if (auto* base = base_of(host)) {
      return base->storage();
    }
    for (auto& storage : storages) {
      if (is_of(storage, host.storage())) {
        return storage;
      }
    }
    return c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), host.storage().nbytes(), pointer(host.storage()), nullptr, false);
  }

  Tensor lift(const Tensor& host) {
    if (!host.defined()) {
      return host;
    }
    for (auto& [here, other] : given) {
      if (other.is_same(host)) {
        return here;
      }
    }
    TORCH_CHECK_NOT_IMPLEMENTED(host.layout() == at::kStrided, "the emulated device has dense tensors only");
    if (auto* base = base_of(host)) { // in inference mode, too, a view is what its base is
      auto keys = base->key_set();
      return alike(
          at::detail::make_tensor<at::TensorImpl>(at::TensorImpl::VIEW, Storage(base->storage()), keys, host.dtype()), host);
    }
    auto keys = keys_of(DispatchKey::CUDA, host);
    return alike(at::detail::make_tensor<at::TensorImpl>(storage_of(host), keys, host.dtype()), host);
  }

  // What the kernel resized or gave other memory.
  void follow() {
    for (auto& [here, other] : given) {
      const Storage& host = other.storage();
      if (!is_of(here.storage(), host)) {
        here.unsafeGetTensorImpl()->set_storage_keep_dtype(storage_of(other));
      } else if (here.storage().nbytes() != host.nbytes()) {
        auto* impl = here.storage().unsafeGetStorageImpl();
        Storage kept = host; // the pointer that goes holds it
        impl->set_data_ptr_noswap(pointer(kept));
        impl->set_nbytes(kept.nbytes());
      }
      if (here.sizes() != other.sizes() || here.strides() != other.strides() ||
          here.storage_offset() != other.storage_offset()) {
        give_layout(here, other);
      }
    }
  }
};

template <typename F>
IValue mapped(const IValue& value, const F& change) {
  if (value.isTensor()) {
    return change(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<Tensor> out;
    for (const Tensor& tensor : value.toTensorList()) {
      out.push_back(change(tensor));
    }
    return out;
  }
  if (value.isList() && value.type()->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<Tensor>> out;
    for (const IValue& item : value.toListRef()) {
      out.push_back(item.isNone() ? std::optional<Tensor>() : change(item.toTensor()));
    }
    return out;
  }
  return value;
}

// ---- kernels

template <bool CHECKED>
void run(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) {
  Call call;
  auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  std::vector<IValue> lower;
  bool mixed = false;
  for (const IValue& value : arguments) {
    if (value.isDevice()) {
      lower.emplace_back(value.toDevice().type() == TYPE ? at::Device(at::kCPU) : value.toDevice());
      continue;
    }
    if (value.isStorage()) {
      lower.push_back(call.lower(value.toStorage()));
      continue;
    }
    lower.push_back(mapped(value, [&](const Tensor& tensor) {
      mixed |= tensor.defined() && !is_here(tensor) && tensor.dim() > 0;
      return call.lower(tensor);
    }));
  }
  TORCH_CHECK(
      !CHECKED || !mixed || call.given.empty(),
      "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!");
  torch::jit::drop(*stack, arguments.size());
  for (IValue& value : lower) {
    stack->push_back(std::move(value));
  }
  {
    at::AutoDispatchBelowADInplaceOrView below;
    c10::impl::ExcludeDispatchKeyGuard uncast(c10::autocast_dispatch_keyset);
    op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  }
  call.follow();
  auto results = torch::jit::last(*stack, op.schema().returns().size());
  std::vector<IValue> out;
  for (const IValue& value : results) {
    out.push_back(mapped(value, [&](const Tensor& tensor) { return call.lift(tensor); }));
  }
  torch::jit::drop(*stack, out.size());
  for (IValue& value : out) {
    stack->push_back(std::move(value));
  }
}

// PyTorch's kernels for CUDA that the CPU has none for.

int64_t math_attention(
    const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool, std::optional<double>, bool) {
  return 0;
}

Tensor softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  Call call;
  auto given = call.lower(self);
  return call.lift(at::_softmax(half_to_float ? given.to(at::kFloat) : given, dim, false));
}

Tensor log_softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  Call call;
  auto given = call.lower(self);
  return call.lift(at::_log_softmax(half_to_float ? given.to(at::kFloat) : given, dim, false));
}

Tensor softmax_backward(const Tensor& gradient, const Tensor& output, int64_t dim, at::ScalarType type) {
  Call call;
  auto wide = at::toOpMathType(output.scalar_type());
  auto given = call.lower(gradient).to(wide), found = call.lower(output).to(wide);
  return call.lift(at::_softmax_backward_data(given, found, dim, wide).to(type));
}

Tensor log_softmax_backward(const Tensor& gradient, const Tensor& output, int64_t dim, at::ScalarType type) {
  Call call;
  auto wide = at::toOpMathType(output.scalar_type());
  auto given = call.lower(gradient).to(wide), found = call.lower(output).to(wide);
  return call.lift(at::_log_softmax_backward_data(given, found, dim, wide).to(type));
}

using Bias = std::optional<Tensor>;

// Recurrent cells: gates are summed in float32, or in float64.
Tensor wide(const Tensor& tensor) {
  return tensor.to(at::toOpMathType(tensor.scalar_type()));
}

Tensor gates_of(const Tensor& gates, const Bias& bias) {
  return bias && bias->defined() ? wide(gates) + *bias : wide(gates);
}

std::tuple<Tensor, Tensor, Tensor> lstm(
    const Tensor& from_input, const Tensor& from_hidden, const Tensor& cell, const Bias& input_bias, const Bias& hidden_bias) {
  auto dtype = from_input.scalar_type();
  auto gates = (gates_of(from_input, input_bias) + gates_of(from_hidden, hidden_bias)).chunk(4, 1);
  auto in = gates[0].sigmoid(), forget = gates[1].sigmoid(), fresh = gates[2].tanh(), out = gates[3].sigmoid();
  auto next = forget * cell + in * fresh;
  auto kept = at::cat({in, forget, fresh, out}, 1);
  return {(out * next.tanh()).to(dtype), next.to(cell.scalar_type()), kept.to(dtype)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_backward(
    const Bias& to_hidden, const Bias& to_cell, const Tensor& cell, const Tensor& next, const Tensor& kept, bool has_bias) {
  auto gates = wide(kept).chunk(4, 1);
  auto &in = gates[0], &forget = gates[1], &fresh = gates[2], &out = gates[3];
  auto shown = wide(next).tanh();
  auto given = [&](const Bias& one) { return one && one->defined() ? wide(*one) : at::zeros_like(shown); };
  auto hidden = given(to_hidden);
  auto inner = hidden * out * (1 - shown * shown) + given(to_cell);
  auto to_gates = at::cat(
      {inner * fresh * in * (1 - in),
       inner * cell * forget * (1 - forget),
       inner * in * (1 - fresh * fresh),
       hidden * shown * out * (1 - out)},
      1);
  auto dtype = kept.scalar_type();
  auto biases = has_bias ? to_gates.sum(0).to(dtype) : Tensor();
  return {to_gates.to(dtype), (inner * forget).to(cell.scalar_type()), biases};
}

std::tuple<Tensor, Tensor> gru(
    const Tensor& from_input, const Tensor& from_hidden, const Tensor& hidden, const Bias& input_bias, const Bias& hidden_bias) {
  auto one = gates_of(from_input, input_bias).chunk(3, 1), other = gates_of(from_hidden, hidden_bias).chunk(3, 1);
  auto reset = (one[0] + other[0]).sigmoid(), keep = (one[1] + other[1]).sigmoid();
  auto fresh = (one[2] + reset * other[2]).tanh();
  auto kept = at::cat({reset, keep, fresh, wide(hidden), other[2]}, 1);
  auto dtype = from_input.scalar_type();
  return {(fresh + keep * (hidden - fresh)).to(dtype), kept.to(dtype)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_backward(const Tensor& to_hidden, const Tensor& kept, bool has_bias) {
  auto parts = wide(kept).chunk(5, 1);
  auto &reset = parts[0], &keep = parts[1], &fresh = parts[2], &hidden = parts[3], &other = parts[4];
  auto given = wide(to_hidden);
  auto to_keep = given * (hidden - fresh) * keep * (1 - keep);
  auto to_fresh = given * (1 - keep) * (1 - fresh * fresh);
  auto to_reset = to_fresh * other * reset * (1 - reset);
  auto dtype = kept.scalar_type();
  auto inputs = at::cat({to_reset, to_keep, to_fresh}, 1).to(dtype);
  auto hiddens = at::cat({to_reset, to_keep, to_fresh * reset}, 1).to(dtype);
  auto sum = [&](const Tensor& gates) { return has_bias ? gates.sum(0) : Tensor(); };
  return {inputs, hiddens, (given * keep).to(dtype), sum(inputs), sum(hiddens)};
}

Tensor depthwise(
    const Tensor& self, const Tensor& weight, at::IntArrayRef, const Bias& bias, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation) {
  return at::convolution(self, weight, bias, stride, padding, dilation, false, {0, 0}, self.size(1));
}

Tensor depthwise_3d(
    const Tensor& self, const Tensor& weight, at::IntArrayRef, const Bias& bias, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation) {
  return at::convolution(self, weight, bias, stride, padding, dilation, false, {0, 0, 0}, self.size(1));
}

void nothing(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
}

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run<true>>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  const std::set<std::string> others = {"aten::index.Tensor", "aten::_softmax", "aten::_log_softmax"};
  // What is composite where a device has no kernel, and the CPU has one; and what asks for the type of the device.
  auto& dispatcher = c10::Dispatcher::singleton();
  for (auto& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findOp(name);
    auto text = c10::toString(name);
    bool composite = op && op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd);
    composite |= op && op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
    if (composite && op->hasKernelForDispatchKey(DispatchKey::CPU) && text.rfind("aten::", 0) == 0 &&
        text.find("softmax_backward_data") == std::string::npos && !others.count(text)) {
      m.impl(text.c_str(), torch::CppFunction::makeFromBoxedFunction<&run<true>>());
    }
  }
  for (auto name : {"_convolution", "convolution_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run<true>>());
  }
  for (auto name : {"copy_", "_copy_from", "index.Tensor", "_index_put_impl_", "index_put_", "_foreach_copy_"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run<false>>());
  }
  m.impl("record_stream", torch::CppFunction::makeFromBoxedFunction<&nothing>());
  m.impl("_fused_sdp_choice", math_attention);
  m.impl("_softmax", softmax);
  m.impl("_log_softmax", log_softmax);
  m.impl("_softmax_backward_data", softmax_backward);
  m.impl("_log_softmax_backward_data", log_softmax_backward);
  m.impl("_thnn_fused_lstm_cell", lstm);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_backward);
  m.impl("_thnn_fused_gru_cell", gru);
  m.impl("_thnn_fused_gru_cell_backward", gru_backward);
  m.impl("_conv_depthwise2d", depthwise);
  m.impl("conv_depthwise3d", depthwise_3d);
}

// ---- what PyTorch asks of a device type

struct Guard final : c10::impl::NoOpDeviceGuardImpl<TYPE> {
  at::Device exchangeDevice(at::Device) const override {
    return HERE;
  }
  at::Device getDevice() const override {
    return HERE;
  }
  c10::Stream getStream(at::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, HERE);
  }
  c10::Stream getDefaultStream(at::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, HERE);
  }
  c10::Stream getStreamFromGlobalPool(at::Device, bool) const override {
    return c10::Stream(c10::Stream::DEFAULT, HERE);
  }
  c10::Stream getNewStream(at::Device, int) const override {
    return c10::Stream(c10::Stream::DEFAULT, HERE);
  }
  c10::Stream exchangeStream(c10::Stream) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, HERE);
  }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasCUDA() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return 1;
  }
  int getNumGPUs() const override {
    return 1;
  }
  c10::DeviceIndex current_device() const override {
    return 0;
  }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override {
    return 0;
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  std::string showConfig() const override {
    return "emulated on a CPU";
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetAllocator(at::kCPU);
  }
  void deviceSynchronize(c10::DeviceIndex) const override {}
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::globalContext().defaultGenerator(at::kCPU);
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::globalContext().defaultGenerator(at::kCPU).clone();
  }
};

// Begin or end the emulation. PyTorch made its hooks when they were first asked for, so theirs get our functions.
void emulate(bool on) {
  static const auto* guard = new Guard(); // the registry does not own it
  static const auto* mine = new Hooks();
  auto& theirs = const_cast<at::CUDAHooksInterface&>(at::detail::getCUDAHooks());
  static void* const before = *reinterpret_cast<void**>(&theirs);
  auto& slot = c10::impl::device_guard_impl_registry[static_cast<size_t>(TYPE)];
  static const auto* guard_before = slot.load();
  *reinterpret_cast<void**>(&theirs) = on ? *reinterpret_cast<void* const*>(mine) : before;
  slot = on || guard_before == nullptr ? guard : guard_before; // tensors may outlive the emulation
}

int64_t memory(bool peak) {
  return peak ? most : allocated;
}

void reset_peak() {
  most = allocated.load();
}

TORCH_LIBRARY(ampcheck_emulated, m) {
  m.def("emulate(bool on) -> ()", emulate);
  m.def("memory(bool peak) -> int", memory);
  m.def("reset_peak() -> ()", reset_peak);
}

} // namespace
