#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "tests/cpp/support/fakes/fake_cuda.h"

// The part of the fake that concerns streams, events and memory.

namespace aiacc {

void FakeCuda::fill_stream_table() {
  driver_.stream_priority_range = [](int* lowest, int* highest) {
    *lowest = 0;
    *highest = -5;
    return kCudaSuccess;
  };
  driver_.stream_create = [](CudaStream* stream, unsigned, int) {
    const int device = self().current_device();
    if (device < 0) {
      return self().refuse(kCudaInvalidContext);
    }
    const std::lock_guard lock(self().mutex_);
    *stream = reinterpret_cast<CudaStream>(self().add_stream(device));
    return kCudaSuccess;
  };
  driver_.stream_destroy = [](CudaStream handle) {
    return with(handle, [handle](Stream& stream) {
      stream.destroyed = handle != nullptr;  // what is queued goes on
      return stream.destroyed ? kCudaSuccess : self().refuse(kCudaInvalidHandle);
    });
  };
  driver_.stream_query = [](CudaStream handle) {
    if (!self().may("stream_query")) {
      return kCudaCaptureUnsupported;
    }
    return with(handle, [](const Stream& stream) {
      return self().broken()                        ? self().sticky_.load()
             : stream.queue.empty() && !stream.busy ? kCudaSuccess
                                                    : kCudaNotReady;
    });
  };
  driver_.stream_is_capturing = [](CudaStream handle, int* status) {
    *status = 0;
    return with(handle, [status](const Stream& stream) {
      *status = stream.capturing ? 1 : 0;
      return kCudaSuccess;
    });
  };
  driver_.stream_wait_event = [](CudaStream stream, CudaEvent handle, unsigned) {
    Task task;
    const CudaResult found = with(handle, [&task](const Event& event) {
      task.waits_for = event.last;
      return kCudaSuccess;
    });
    return found == kCudaSuccess ? self().push(stream, std::move(task)) : found;
  };
  driver_.stream_wait_value =
      [](CudaStream stream, CudaAddress address, std::uint32_t value, unsigned flags) {
        Task task;
        task.looks_at = reinterpret_cast<const std::uint32_t*>(address);
        task.value = value;
        return flags == kCudaWaitValueAtLeast ? self().push(stream, std::move(task))
                                              : self().refuse(kCudaInvalidValue);
      };
  driver_.event_create = [](CudaEvent* event, unsigned) {
    if (self().current_device() < 0) {
      return self().refuse(kCudaInvalidContext);
    }
    const std::lock_guard lock(self().mutex_);
    self().events_.push_back(std::make_unique<Event>());
    *event = reinterpret_cast<CudaEvent>(self().events_.back().get());
    return kCudaSuccess;
  };
  driver_.event_record = [](CudaEvent handle, CudaStream stream) {
    Task task;
    const CudaResult found = with(handle, [&task](Event& event) {
      task.completes = event.last = std::make_shared<Record>();
      return kCudaSuccess;
    });
    return found == kCudaSuccess ? self().push(stream, std::move(task)) : found;
  };
  driver_.event_query = [](CudaEvent handle) {
    if (!self().may("event_query")) {
      return kCudaCaptureUnsupported;
    }
    return with(handle, [](const Event& event) {
      return self().broken()       ? self().sticky_.load()
             : event.last->reached ? kCudaSuccess
                                   : kCudaNotReady;
    });
  };
  driver_.event_destroy = [](CudaEvent handle) {
    return with(handle, [](Event& event) {
      event.destroyed = true;  // streams that wait for it go on waiting
      return kCudaSuccess;
    });
  };
  driver_.launch_host_function = [](CudaStream stream, CudaHostFunction function, void* argument) {
    return self().enqueue(stream, [function, argument] { function(argument); });
  };
}

CudaResult FakeCuda::take_memory(void** memory, std::size_t bytes, bool on_host) {
  if (!may(on_host ? "host_allocate" : "allocate")) {
    return kCudaCaptureUnsupported;
  }
  ++synchronising_;
  if (current_device() < 0) {
    return refuse(kCudaInvalidContext);
  }
  constexpr std::size_t kAlignment = 256;
  Memory block{nullptr, bytes, on_host};
  block.bytes.reset(new std::byte[bytes + kAlignment]);
  std::memset(block.bytes.get(), 0, bytes + kAlignment);  // at once: sanitizers count the stores
  const auto begin = reinterpret_cast<std::uintptr_t>(block.bytes.get());
  const std::uintptr_t address = (begin + kAlignment - 1) / kAlignment * kAlignment;
  const std::lock_guard lock(mutex_);
  memory_[address] = std::move(block);
  *memory = reinterpret_cast<void*>(address);
  return kCudaSuccess;
}

CudaResult FakeCuda::give_memory_back(std::uintptr_t address, bool on_host) {
  if (!may(on_host ? "host_release" : "release")) {
    return kCudaCaptureUnsupported;
  }
  ++synchronising_;
  const std::lock_guard lock(mutex_);
  const auto found = memory_.find(address);
  if (found == memory_.end() || found->second.on_host != on_host) {
    return refuse(kCudaInvalidValue);
  }
  memory_.erase(found);
  return kCudaSuccess;
}

bool FakeCuda::is_pinned(std::uintptr_t address) const {
  const auto next = memory_.upper_bound(address);
  return next != memory_.begin() && std::prev(next)->second.on_host &&
         address < std::prev(next)->first + std::prev(next)->second.size;
}

std::uintptr_t FakeCuda::registered_range(std::uintptr_t address) const {
  const auto next = registered_.upper_bound(address);
  const bool inside =
      next != registered_.begin() && address < std::prev(next)->first + std::prev(next)->second;
  return inside ? std::prev(next)->first : 0;
}

std::size_t FakeCuda::registered() const {
  const std::lock_guard lock(mutex_);
  return registered_.size();
}

CudaResult FakeCuda::copy(CudaAddress to, CudaAddress from, std::size_t bytes, CudaStream stream) {
  std::uintptr_t range = 0;
  {
    const std::lock_guard lock(mutex_);
    range = std::max(registered_range(to), registered_range(from));
    copied_by_registered_ += range != 0 ? bytes : 0;
    copied_by_pinned_ += is_pinned(to) || is_pinned(from) ? bytes : 0;
  }
  return enqueue(stream, [this, to, from, bytes, range] {
    if (range != 0) {
      const std::lock_guard lock(mutex_);
      if (registered_.count(range) == 0) {
        ++misuses_;
        return;
      }
    }
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  });
}

void FakeCuda::fill_memory_table() {
  driver_.allocate = [](CudaAddress* address, std::size_t bytes) {
    void* memory = nullptr;
    const CudaResult result = self().take_memory(&memory, bytes, false);
    *address = reinterpret_cast<CudaAddress>(memory);
    return result;
  };
  driver_.release = [](CudaAddress address) { return self().give_memory_back(address, false); };
  driver_.host_allocate = [](void** memory, std::size_t bytes, unsigned) {
    return self().take_memory(memory, bytes, true);
  };
  driver_.host_release = [](void* memory) {
    return self().give_memory_back(reinterpret_cast<std::uintptr_t>(memory), true);
  };
  driver_.host_register = [](void* memory, std::size_t bytes, unsigned) {
    if (!self().may("host_register")) {
      return kCudaCaptureUnsupported;
    }
    ++self().synchronising_;
    if (self().unregistrable_.fetch_sub(1) > 0) {
      return kCudaOutOfMemory;
    }
    self().unregistrable_ = 0;
    constexpr std::uintptr_t kPage = 4096;
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    const std::lock_guard lock(self().mutex_);
    const bool fits = address % kPage == 0 && bytes % kPage == 0 && bytes > 0 &&
                      self().current_device() >= 0 && self().registered_range(address) == 0 &&
                      self().registered_range(address + bytes - 1) == 0;
    if (!fits) {
      return self().refuse(kCudaInvalidValue);
    }
    self().registered_[address] = bytes;
    return kCudaSuccess;
  };
  driver_.host_unregister = [](void* memory) {
    if (!self().may("host_unregister")) {
      return kCudaCaptureUnsupported;
    }
    ++self().synchronising_;
    const std::lock_guard lock(self().mutex_);
    return self().registered_.erase(reinterpret_cast<std::uintptr_t>(memory)) == 1
               ? kCudaSuccess
               : self().refuse(kCudaInvalidValue);
  };
  driver_.copy_async = [](CudaAddress to, CudaAddress from, std::size_t bytes, CudaStream stream) {
    return self().copy(to, from, bytes, stream);
  };
  driver_.fill_async =
      [](CudaAddress to, unsigned char value, std::size_t bytes, CudaStream stream) {
        return self().enqueue(
            stream, [to, value, bytes] { std::memset(reinterpret_cast<void*>(to), value, bytes); });
      };
}

}  // namespace aiacc
