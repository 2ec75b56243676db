// Tensors of ATen's OpaqueTensorImpl, whose storage PyTorch cannot read. Each holds a CPU tensor; views share memory as
// those do.
#include <ATen/OpaqueTensorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

#include <optional>

using Handle = std::optional<at::Tensor>;

struct Opaque : at::OpaqueTensorImpl<Handle> {
  Opaque(c10::DispatchKeySet keys, const at::Tensor& host)
      : at::OpaqueTensorImpl<Handle>(
            keys, host.dtype(), c10::Device(c10::DeviceType::PrivateUse1, 0), host, host.sizes()) {
    read();
  }

  void read() {
    const at::Tensor& host = *opaque_handle();
    sizes_and_strides_.set_sizes(host.sizes());
    sizes_and_strides_.set_strides(host.strides());
    storage_offset_ = host.storage_offset();
    refresh_numel();
    refresh_contiguous();
  }
};

static Opaque* impl(const at::Tensor& tensor) {
  return static_cast<Opaque*>(tensor.unsafeGetTensorImpl());
}

static at::Tensor around(const at::Tensor& host) {
  c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  if (host.is_conj()) keys = keys.add(c10::DispatchKey::Conjugate);
  if (host.is_neg()) keys = keys.add(c10::DispatchKey::Negative);
  return at::detail::make_tensor<Opaque>(keys, host);
}

// Not in Python, as the other kernels are: what makes a parameter of a detached tensor wants one that Python has not
// seen before.
static at::Tensor alias(const at::Tensor& tensor) {
  return around(*impl(tensor)->opaque_handle());
}

// PyTorch's guard in Python ends the process where a dispatch mode lets an exception through in a backward thread.
struct Guard : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1> {
  c10::Device getDevice() const override {
    return {c10::DeviceType::PrivateUse1, 0};
  }
  c10::Device exchangeDevice(c10::Device) const override {
    return getDevice();
  }
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, getDevice());
  }
  c10::Stream exchangeStream(c10::Stream) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, getDevice());
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("alias", alias);
  library.impl("detach", alias);
}

static PyObject* wrap(PyObject*, PyObject* host) {
  return THPVariable_Wrap(around(THPVariable_Unpack(host)));
}

static PyObject* host(PyObject*, PyObject* tensor) {
  return THPVariable_Wrap(*impl(THPVariable_Unpack(tensor))->opaque_handle());
}

static PyObject* hold(PyObject*, PyObject* args) {
  PyObject *tensor, *host;
  if (!PyArg_ParseTuple(args, "OO", &tensor, &host)) return nullptr;
  Opaque* held = impl(THPVariable_Unpack(tensor));
  held->unsafe_opaque_handle() = THPVariable_Unpack(host);
  held->read();
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"wrap", wrap, METH_O, "A tensor that holds a CPU tensor."},
    {"host", host, METH_O, "The CPU tensor that a tensor holds."},
    {"hold", hold, METH_VARARGS, "Let a tensor hold another CPU tensor."},
    {nullptr}};
static PyModuleDef module{PyModuleDef_HEAD_INIT, "_opaque", nullptr, -1, methods};

PyMODINIT_FUNC PyInit__opaque() {
  return PyModule_Create(&module);
}
