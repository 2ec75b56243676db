// The operators that a program rewritten by ampcheck.torchscript runs. Each decides at run time, from the tensors it is
// given, what eager autocast decides in its kernels. ampcheck/torchscript/library.py says the same in Python, and what
// each operator is for.

#include <ATen/core/TensorBody.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <torch/csrc/jit/runtime/custom_operator.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

// ATen/autocast_mode.h declares these too, among the headers of every operator.
namespace at::autocast {
TORCH_API bool is_autocast_enabled(at::DeviceType device_type);
TORCH_API void set_autocast_enabled(at::DeviceType device_type, bool enabled);
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType device_type);
TORCH_API void set_autocast_dtype(at::DeviceType device_type, at::ScalarType dtype);
} // namespace at::autocast

namespace {

using at::IValue;
using at::ScalarType;
using at::Tensor;
using torch::jit::Operator;
using torch::jit::pop;
using torch::jit::Stack;

// The longest fixed form of an operator that is variadic; library.py has as many.
constexpr size_t FIXED_FORMS = 8;

at::DeviceType type_of(const IValue& name) {
  const std::string& text = name.toStringRef();
  if (text == "cpu") { // reading a name takes longer than anything else here
    return at::DeviceType::CPU;
  }
  return text == "cuda" ? at::DeviceType::CUDA : at::Device(text).type();
}

// Whether this tensor makes the dispatcher enter the autocast kernel of a device type.
bool reaches(const Tensor& tensor, at::DeviceType type) {
  return tensor.defined() && tensor.device().type() == type;
}

bool eligible(const Tensor& tensor, at::DeviceType type) {
  return reaches(tensor, type) && tensor.is_floating_point() && tensor.scalar_type() != ScalarType::Double;
}

template <typename Each>
void visit(const IValue& value, const Each& each) {
  if (value.isTensor()) {
    each(value.toTensor());
  } else if (value.isList()) {
    for (const IValue& item : value.toListRef()) {
      visit(item, each);
    }
  }
}

IValue cast(const IValue& value, at::DeviceType type, ScalarType dtype) {
  if (value.isTensor()) {
    const Tensor& tensor = value.toTensor();
    return eligible(tensor, type) ? tensor.to(dtype) : tensor;
  }
  if (!value.isList()) {
    return value;
  }
  c10::impl::GenericList made(value.toList().elementType());
  for (const IValue& item : value.toListRef()) {
    made.push_back(cast(item, type, dtype));
  }
  return made;
}

// Takes (str device_type, bool enabled, Tensor?[] values).
bool pop_reached(Stack& stack) {
  const IValue values = pop(stack);
  const bool enabled = pop(stack).toBool();
  const auto type = type_of(pop(stack));
  bool reached = false;
  visit(values, [&](const Tensor& tensor) { reached = reached || reaches(tensor, type); });
  return enabled && reached;
}

// The policies lower_precision_fp and fp32: (str device_type, bool enabled, ScalarType dtype, values...) -> values...
void autocast_cast(Stack& stack, size_t count) {
  const auto first = stack.end() - static_cast<std::ptrdiff_t>(count);
  if (first[1].toBool()) {
    const auto type = type_of(first[0]);
    const auto dtype = static_cast<ScalarType>(first[2].toInt());
    for (auto value = first + 3; value != stack.end(); ++value) {
      *value = cast(*value, type, dtype);
    }
  }
  stack.erase(first, first + 3);
}

// The policy promote: (str device_type, bool enabled, values...) -> values...
void autocast_promote(Stack& stack, size_t count) {
  const auto first = stack.end() - static_cast<std::ptrdiff_t>(count);
  if (first[1].toBool()) {
    const auto type = type_of(first[0]);
    std::optional<ScalarType> widest;
    for (auto value = first + 2; value != stack.end(); ++value) {
      visit(*value, [&](const Tensor& tensor) {
        if (eligible(tensor, type)) {
          // Of two different ones neither holds the other's values, unless one of them is float32.
          const ScalarType own = tensor.scalar_type();
          widest = widest.value_or(own) == own ? own : ScalarType::Float;
        }
      });
    }
    for (auto value = first + 2; widest && value != stack.end(); ++value) {
      *value = cast(*value, type, *widest);
    }
  }
  stack.erase(first, first + 2);
}

// The policy fp32_set_opt_dtype: (str device_type, bool enabled, Tensor first, ScalarType? dtype) -> ScalarType?
void autocast_opt_dtype(Stack& stack) {
  const IValue dtype = pop(stack);
  const Tensor first = pop(stack).toTensor();
  const bool enabled = pop(stack).toBool();
  const auto type = type_of(pop(stack));
  const bool fill = dtype.isNone() && enabled && eligible(first, type);
  stack.emplace_back(fill ? IValue(static_cast<int64_t>(ScalarType::Float)) : dtype);
}

// The policy fp32_append_dtype: (str device_type, Tensor first) -> ScalarType
void autocast_append_dtype(Stack& stack) {
  const Tensor first = pop(stack).toTensor();
  const auto type = type_of(pop(stack));
  stack.emplace_back(static_cast<int64_t>(eligible(first, type) ? ScalarType::Float : first.scalar_type()));
}

// (str device_type, bool enabled, Tensor?[] values) -> bool
void autocast_reached(Stack& stack) {
  const bool reached = pop_reached(stack);
  stack.emplace_back(reached);
}

// The policy banned: (str device_type, bool enabled, Tensor?[] values, str message) -> ()
void autocast_banned(Stack& stack) {
  const std::string message = pop(stack).toStringRef();
  const bool reached = pop_reached(stack);
  TORCH_CHECK(!reached, message);
}

// (str device_type) -> (bool enabled, ScalarType dtype)
void autocast_ambient(Stack& stack) {
  const auto type = type_of(pop(stack));
  stack.emplace_back(at::autocast::is_autocast_enabled(type));
  stack.emplace_back(static_cast<int64_t>(at::autocast::get_autocast_dtype(type)));
}

// Sets this thread's state: (str device_type, bool enabled, ScalarType dtype, values...) -> values...
void autocast_set(Stack& stack, size_t count) {
  const auto first = stack.end() - static_cast<std::ptrdiff_t>(count);
  const auto type = type_of(first[0]);
  at::autocast::set_autocast_enabled(type, first[1].toBool());
  at::autocast::set_autocast_dtype(type, static_cast<ScalarType>(first[2].toInt()));
  stack.erase(first, first + 3);
}

size_t place_of(const std::string& device, const IValue& device_types) {
  const c10::List<std::string> types = device_types.to<c10::List<std::string>>();
  const auto found = std::find(types.begin(), types.end(), device);
  TORCH_CHECK(
      found != types.end(), "this program was not rewritten for regions on ", device, "; name it in device_type");
  return static_cast<size_t>(found - types.begin());
}

// (str[] device_types, int[] dtypes, str device) -> int
void autocast_dtype(Stack& stack) {
  const std::string device = pop(stack).toStringRef();
  const c10::List<int64_t> dtypes = pop(stack).toIntList();
  stack.emplace_back(dtypes.get(place_of(device, pop(stack))));
}

// What a region on `device` makes of the state of one device type: (str[] device_types, str device_type, str device,
// bool enabled, ScalarType dtype, bool outer_enabled, ScalarType outer_dtype) -> (bool enabled, ScalarType dtype)
void autocast_region(Stack& stack) {
  const int64_t outer_dtype = pop(stack).toInt();
  const bool outer_enabled = pop(stack).toBool();
  const int64_t dtype = pop(stack).toInt();
  bool enabled = pop(stack).toBool();
  const std::string device = pop(stack).toStringRef();
  const std::string type = pop(stack).toStringRef();
  place_of(device, pop(stack));
  if (device != type) {
    stack.emplace_back(outer_enabled);
    stack.emplace_back(outer_dtype);
    return;
  }
  const auto wanted = static_cast<ScalarType>(dtype);
  if (enabled && type == "cpu" && wanted != ScalarType::BFloat16 && wanted != ScalarType::Half) {
    TORCH_WARN("In CPU autocast, but the target dtype is not supported. Disabling autocast.");
    enabled = false;
  }
  stack.emplace_back(enabled);
  stack.emplace_back(dtype);
}

// Follows an op that casts decide. TorchScript differentiates chains of ops by formulas of its own that take one
// dtype for granted; as they are not joined across something with an effect, autograd differentiates the op.
void autocast_done(Stack&) {}

// Keeps a number from being known before the program runs: (Scalar value) -> Scalar
void autocast_opaque(Stack&) {}

// An operator that takes values and returns as many. Its variadic form serves every graph, but a saved program is read
// back from source, where such an operator has neither arguments nor results: for that there are fixed forms, of
// tensors with or without one more that may be None.
void add_family(
    std::vector<std::optional<Operator>>& made,
    const std::string& name,
    const std::string& leading,
    size_t before,
    c10::AliasAnalysisKind kind,
    void (*body)(Stack&, size_t)) {
  constexpr auto conservative = c10::AliasAnalysisKind::CONSERVATIVE;
  for (const bool optional : {false, true}) {
    for (size_t count = 0; count <= FIXED_FORMS; ++count) {
      std::string values, results;
      for (size_t place = 0; place < count + optional; ++place) {
        const std::string letter(1, static_cast<char>('a' + place));
        const std::string alias = kind == conservative ? "" : "(" + letter + ")";
        const std::string type = "Tensor" + alias + (place == count ? "?" : "");
        values += ", " + type + " x" + std::to_string(place);
        results += (place ? ", " : "") + type;
      }
      const std::string form = (optional ? ".o" : ".t") + std::to_string(count);
      const std::string schema = name + form + "(" + leading + values + ") -> (" + results + ")";
      made.emplace_back(std::in_place, schema, [=](Stack& stack) { body(stack, before + count + optional); }, kind);
    }
  }
  const auto single = [=](Stack& stack) { body(stack, before + 1); };
  made.emplace_back(std::in_place, name + ".list(" + leading + ", Tensor[] x) -> Tensor[]", single, conservative);
  const auto variadic = [=](Stack& stack) { body(stack, static_cast<size_t>(pop(stack).toInt())); };
  made.emplace_back(std::in_place, name + "(...) -> ...", variadic, conservative);
}

std::vector<std::optional<Operator>> operators() {
  constexpr auto from_schema = c10::AliasAnalysisKind::FROM_SCHEMA;
  constexpr auto conservative = c10::AliasAnalysisKind::CONSERVATIVE;
  const std::string state = "str device_type, bool enabled";
  std::vector<std::optional<Operator>> made;
  add_family(made, "amp::autocast_cast", state + ", ScalarType dtype", 3, from_schema, autocast_cast);
  add_family(made, "amp::autocast_promote", state, 2, from_schema, autocast_promote);
  add_family(made, "amp::autocast_set", state + ", ScalarType dtype", 3, conservative, autocast_set);
  const auto add = [&](const std::string& schema, void (*body)(Stack&), c10::AliasAnalysisKind kind) {
    made.emplace_back(std::in_place, schema, body, kind);
  };
  add("amp::autocast_opt_dtype(" + state + ", Tensor first, ScalarType? dtype) -> ScalarType?", autocast_opt_dtype,
      from_schema);
  add("amp::autocast_append_dtype(str device_type, Tensor first) -> ScalarType", autocast_append_dtype, from_schema);
  add("amp::autocast_reached(" + state + ", Tensor?[] values) -> bool", autocast_reached, conservative);
  add("amp::autocast_banned(" + state + ", Tensor?[] values, str message) -> ()", autocast_banned, conservative);
  add("amp::autocast_done() -> ()", autocast_done, conservative);
  add("amp::autocast_opaque(Scalar value) -> Scalar", autocast_opaque, conservative);
  add("amp::autocast_ambient(str device_type) -> (bool enabled, ScalarType dtype)", autocast_ambient, conservative);
  add("amp::autocast_dtype(str[] device_types, int[] dtypes, str device) -> int", autocast_dtype,
      from_schema);
  add("amp::autocast_region(str[] device_types, str device_type, str device, bool enabled, ScalarType dtype, "
      "bool outer_enabled, ScalarType outer_dtype) -> (bool enabled, ScalarType dtype)",
      autocast_region, conservative);
  return made;
}

const torch::jit::RegisterOperators registered(operators());

} // namespace
