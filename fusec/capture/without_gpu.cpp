// A CUDA device that takes everything and does nothing.
//
// Tracing with fake tensors allocates nothing and launches nothing, but torch asks a few questions
// on the way: which device is current, which stream, is CUDA built in. Without a GPU (or without
// CUDA in the build) the answers are errors. Here they are "device 0" and "yes".
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>

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
};

const c10::impl::DeviceGuardImplInterface* guard_before = nullptr;
void* hooks_before = nullptr;

// torch makes its hooks object once and hands out references to it, so its methods are exchanged:
// the pointer to the table of virtual functions is its first word (Itanium and MSVC ABI alike).
void* exchange_methods(void* methods) {
  auto* object = const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
  void* before;
  std::memcpy(&before, static_cast<void*>(object), sizeof before);
  std::memcpy(static_cast<void*>(object), &methods, sizeof methods);
  return before;
}

}  // namespace

// 1 when torch believes that CUDA is built in.
extern "C" int fusec_pretend_gpu() {
  static Guard guard;
  static Hooks hooks;
  auto& slot = c10::impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)];
  guard_before = slot.exchange(&guard);
  void* methods;
  std::memcpy(&methods, static_cast<void*>(&hooks), sizeof methods);
  hooks_before = exchange_methods(methods);
  return at::detail::getCUDAHooks().isBuilt() ? 1 : 0;
}

extern "C" void fusec_stop_pretending() {
  exchange_methods(hooks_before);
  c10::impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)].store(guard_before);
}
