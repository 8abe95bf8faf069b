// A CUDA device that takes everything and does nothing.
//
// Tracing with fake tensors allocates nothing and launches nothing, but torch asks a few questions
// on the way: which device is current, which stream, is CUDA built in. Without a GPU (or without
// CUDA in the build) the answers are errors. Here they are "device 0" and "yes".
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>
#include <vector>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device) const override { return getDevice(); }
  Device getDevice() const override { return Device(DeviceType::CUDA, 0); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return Stream(Stream::DEFAULT, getDevice()); }
  Stream getDefaultStream(Device device) const override { return getStream(device); }
  Stream exchangeStream(Stream stream) const override { return getStream(stream.device()); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
};

// CUDA is there and not started: nothing is initialised, no context is looked for.
struct Hooks final : at::CUDAHooksInterface {
  bool isBuilt() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
  virtual void end() const {}  // follows the last method of the interface
};

// The place of a method in the table of virtual functions (Itanium C++ ABI 2.3: a pointer to a
// virtual method is its offset in the table, plus one where functions may lie at odd addresses).
template <class Method>
size_t slot(Method method) {
  struct {
    size_t pointer;
    ptrdiff_t adjustment;
  } parts;
  static_assert(sizeof parts == sizeof method);
  std::memcpy(&parts, &method, sizeof parts);
#if !defined(__aarch64__)
  parts.pointer -= 1;
#endif
  return parts.pointer / sizeof(void*);
}

void** methods_of(const at::CUDAHooksInterface& object) {
  void** methods;
  std::memcpy(&methods, &object, sizeof methods);
  return methods;
}

const c10::impl::DeviceGuardImplInterface* guard_before = nullptr;
void** methods_before = nullptr;

// torch makes its hooks once and hands out references to them, so it is their table that is
// exchanged: for a copy in which the methods of `Hooks` stand.
void exchange_methods(void** methods) {
  auto* object = const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
  std::memcpy(static_cast<void*>(object), &methods, sizeof methods);
}

void** patched(void** methods) {
  static Hooks hooks;
  static std::vector<void*> table;
  constexpr size_t before = 2;  // offset to top and type information
  table.assign(methods - before, methods + slot(&Hooks::end));
  for (size_t place : {slot(&Hooks::isBuilt), slot(&Hooks::hasPrimaryContext)})
    table[before + place] = methods_of(hooks)[place];
  return table.data() + before;
}

}  // namespace

// 1 when torch believes that CUDA is built in.
extern "C" int fusec_pretend_gpu() {
  static Guard guard;
  auto& devices = c10::impl::device_guard_impl_registry;
  guard_before = devices[static_cast<size_t>(DeviceType::CUDA)].exchange(&guard);
  methods_before = methods_of(at::detail::getCUDAHooks());
  exchange_methods(patched(methods_before));
  return at::detail::getCUDAHooks().isBuilt() ? 1 : 0;
}

extern "C" void fusec_stop_pretending() {
  exchange_methods(methods_before);
  c10::impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)].store(guard_before);
}
