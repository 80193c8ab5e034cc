#include "tests/cpp/support/fakes/fake_cuda.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

FakeCuda* instance = nullptr;

}  // namespace

FakeCuda::FakeCuda(int devices) : devices_(devices) {
  AIACC_CHECK(instance == nullptr);
  instance = this;
  fill_kernels();
  for (int device = 0; device < devices; ++device) {
    add_stream(device);
  }
  fill_table();
  fill_stream_table();
  fill_memory_table();
}

FakeCuda::~FakeCuda() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    wake();
  }
  for (const auto& stream : streams_) {
    stream->thread.join();
  }
  contexts().clear();
  instance = nullptr;
}

FakeCuda& FakeCuda::self() {
  AIACC_CHECK(instance != nullptr);
  return *instance;
}

std::vector<CudaContext>& FakeCuda::contexts() {
  thread_local std::vector<CudaContext> stack;
  return stack;
}

int& FakeCuda::capture_mode() {
  thread_local int mode = kCudaCaptureGlobal;
  return mode;
}

bool FakeCuda::may(const char* unsafe_call) {
  const std::lock_guard lock(mutex_);
  if (captures_ == 0 || capture_mode() == kCudaCaptureRelaxed) {
    return true;
  }
  spoilt_by_ = unsafe_call;
  return false;
}

std::string FakeCuda::spoilt_by() const {
  const std::lock_guard lock(mutex_);
  return spoilt_by_;
}

int FakeCuda::current_device() const {
  // A context is its device's number and one, so that it is not null.
  return contexts().empty()
             ? -1
             : static_cast<int>(reinterpret_cast<std::uintptr_t>(contexts().back())) - 1;
}

CudaResult FakeCuda::refuse(CudaResult result) {
  ++misuses_;
  return result;
}

FakeCuda::Stream* FakeCuda::add_stream(int device) {
  streams_.push_back(std::make_unique<Stream>());
  Stream* stream = streams_.back().get();
  stream->device = device;
  stream->thread = std::thread([this, stream] { work(*stream); });
  return stream;
}

FakeCuda::Stream* FakeCuda::find(CudaStream handle) {
  if (handle == nullptr) {
    const int device = current_device();
    return device < 0 ? nullptr : streams_[static_cast<std::size_t>(device)].get();
  }
  for (const auto& stream : streams_) {
    if (reinterpret_cast<CudaStream>(stream.get()) == handle && !stream->destroyed) {
      return stream.get();
    }
  }
  return nullptr;
}

FakeCuda::Event* FakeCuda::find(CudaEvent handle) {
  for (const auto& event : events_) {
    if (reinterpret_cast<CudaEvent>(event.get()) == handle && !event->destroyed) {
      return event.get();
    }
  }
  return nullptr;
}

bool FakeCuda::can_run(const Stream& stream) const {
  if (held_ || stream.queue.empty()) {
    return false;
  }
  const Task& task = stream.queue.front();
  if (task.looks_at != nullptr) {
    const std::uint32_t seen = __atomic_load_n(task.looks_at, __ATOMIC_ACQUIRE);
    return static_cast<std::int32_t>(seen - task.value) >= 0 || broken();
  }
  return task.waits_for == nullptr || task.waits_for->reached;
}

void FakeCuda::work(Stream& stream) {
  std::unique_lock lock(mutex_);
  while (true) {
    // Nobody tells when memory changes.
    const auto ready = [&] { return ending_ || can_run(stream); };
    while (!ready()) {
      if (!stream.queue.empty() && stream.queue.front().looks_at != nullptr) {
        stream.changed.wait_for(lock, std::chrono::microseconds(200));
      } else {
        stream.changed.wait(lock);
      }
    }
    if (ending_) {
      return;
    }
    Task task = std::move(stream.queue.front());
    stream.queue.pop_front();
    stream.busy = true;
    if (task.run && !broken()) {
      lock.unlock();
      task.run();
      lock.lock();
    }
    stream.busy = false;
    if (task.completes != nullptr) {
      task.completes->reached = true;
      wake();
    } else {
      changed_.notify_all();
    }
  }
}

void FakeCuda::wake() {
  for (const auto& stream : streams_) {
    if (ending_ || can_run(*stream)) {
      stream->changed.notify_one();
    }
  }
  changed_.notify_all();
}

void FakeCuda::release() {
  const std::lock_guard lock(mutex_);
  held_ = false;
  wake();
}

void FakeCuda::end_loading() {
  const std::lock_guard lock(mutex_);
  loads_ = true;
  changed_.notify_all();
}

void FakeCuda::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] {
    return std::all_of(streams_.begin(), streams_.end(), [](const auto& stream) {
      return stream->queue.empty() && !stream->busy;
    });
  });
}

void FakeCuda::settle(CudaStream handle) {
  std::unique_lock lock(mutex_);
  const Stream* stream = find(handle);
  AIACC_CHECK(stream != nullptr);
  changed_.wait(lock, [stream] { return stream->queue.empty() && !stream->busy; });
}

void FakeCuda::set_capturing(CudaStream handle, bool capturing) {
  const std::lock_guard lock(mutex_);
  bool& now = find(handle)->capturing;
  captures_ += static_cast<int>(capturing) - static_cast<int>(now);
  now = capturing;
}

int FakeCuda::device_of(CudaStream handle) {
  const std::lock_guard lock(mutex_);
  const Stream* stream = find(handle);
  return stream == nullptr ? -1 : stream->device;
}

CudaResult FakeCuda::push(CudaStream handle, Task task) {
  if (broken()) {
    return sticky_;
  }
  const std::lock_guard lock(mutex_);
  Stream* stream = find(handle);
  if (stream == nullptr) {
    return refuse(kCudaInvalidHandle);
  }
  stream->queue.push_back(std::move(task));
  stream->changed.notify_one();
  return kCudaSuccess;
}

CudaResult FakeCuda::enqueue(CudaStream stream, std::function<void()> run) {
  Task task;
  task.run = std::move(run);
  return push(stream, std::move(task));
}

void FakeCuda::fill_table() {
  driver_.init = [](unsigned) { return kCudaSuccess; };
  driver_.driver_version = [](int* version) { return *version = 13000, kCudaSuccess; };
  driver_.error_name = [](CudaResult, const char** text) {
    return *text = "CUDA_ERROR_FAKE", kCudaSuccess;
  };
  driver_.error_string = [](CudaResult, const char** text) {
    return *text = "a fake's error", kCudaSuccess;
  };
  driver_.device_count = [](int* count) { return *count = self().devices_, kCudaSuccess; };
  driver_.device_get = [](CudaDevice* device, int ordinal) {
    return *device = ordinal, ordinal < self().devices_ ? kCudaSuccess : kCudaInvalidValue;
  };
  driver_.device_pci_address = [](char* address, int bytes, CudaDevice device) {
    std::snprintf(address, static_cast<std::size_t>(bytes), "0000:%02x:00.0", device + 0x1a);
    return kCudaSuccess;
  };
  driver_.device_attribute = [](int* value, int attribute, CudaDevice) {
    *value = attribute == kCudaMultiprocessors ? 4 : attribute == kCudaCapabilityMajor ? 9 : 0;
    return kCudaSuccess;
  };
  driver_.primary_context_retain = [](CudaContext* context, CudaDevice device) {
    *context = reinterpret_cast<CudaContext>(static_cast<std::uintptr_t>(device) + 1);
    return device == self().closed_ ? kCudaOutOfMemory : kCudaSuccess;
  };
  driver_.primary_context_release = [](CudaDevice) { return kCudaSuccess; };
  driver_.context_push = [](CudaContext context) {
    contexts().push_back(context);
    return kCudaSuccess;
  };
  driver_.context_pop = [](CudaContext* context) {
    if (contexts().empty()) {
      return self().refuse(kCudaInvalidContext);
    }
    *context = contexts().back();
    contexts().pop_back();
    return kCudaSuccess;
  };
  driver_.context_device = [](CudaDevice* device) {
    *device = self().current_device();
    return *device < 0 ? self().refuse(kCudaInvalidContext) : kCudaSuccess;
  };
  driver_.exchange_capture_mode = [](int* mode) {
    std::swap(*mode, capture_mode());
    return kCudaSuccess;
  };
  driver_.module_load = [](CudaModule* module, const void* image) {
    if (!self().may("module_load")) {
      return kCudaCaptureUnsupported;
    }
    ++self().synchronising_;
    {
      ++self().loading_;
      std::unique_lock lock(self().mutex_);
      self().changed_.wait(lock, [] { return self().loads_.load(); });
      --self().loading_;
    }
    *module = reinterpret_cast<CudaModule>(const_cast<void*>(image));
    return image == nullptr              ? kCudaInvalidValue
           : self().current_device() < 0 ? self().refuse(kCudaInvalidContext)
                                         : kCudaSuccess;
  };
  driver_.module_unload = [](CudaModule) {
    if (!self().may("module_unload")) {
      return kCudaCaptureUnsupported;
    }
    ++self().synchronising_;
    return kCudaSuccess;
  };
  driver_.module_get_function = [](CudaFunction* function, CudaModule, const char* name) {
    const auto found = self().kernels_.find(name);
    if (found == self().kernels_.end()) {
      return kCudaNotFound;
    }
    *function = reinterpret_cast<CudaFunction>(&found->second);
    return kCudaSuccess;
  };
  driver_.blocks_per_multiprocessor = [](int* blocks, CudaFunction, int, std::size_t) {
    return *blocks = 2, kCudaSuccess;
  };
  driver_.launch = [](CudaFunction function,
                      auto blocks,
                      auto blocks_y,
                      auto blocks_z,
                      auto threads,
                      auto threads_y,
                      auto threads_z,
                      auto shared_bytes,
                      auto stream,
                      auto arguments,
                      auto extra) {
    const auto& kernel = *reinterpret_cast<const Kernel*>(function);
    const bool fits = blocks > 0 && blocks_y == 1 && blocks_z == 1 && threads == kernel.threads &&
                      threads_y == 1 && threads_z == 1 && shared_bytes == 0 && extra == nullptr;
    if (!fits) {
      return self().refuse(kCudaInvalidValue);
    }
    ++self().launches_;
    return self().enqueue(stream, kernel.launch(arguments[0], blocks));
  };
  driver_.launch_cooperative = [](auto... arguments) {
    return self().driver_.launch(arguments..., nullptr);
  };
}

}  // namespace aiacc
