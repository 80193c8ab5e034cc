#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "csrc/cuda/driver.h"
#include "csrc/kernels/batch_copy.h"
#include "csrc/kernels/gpu/optim/optim_kernels.h"

namespace aiacc {

/// A CUDA driver without GPU: device memory is host memory, a stream is a thread that does what is
/// queued on it, kernels are their twins on the host. One at a time in a process; all devices
/// behave alike. Destroy it after what uses it, when nothing waits on a stream.
///
/// Misuse is counted and answered with an error: calls without a current context, handles that are
/// none, launches of another shape than the kernel's.
class FakeCuda {
 public:
  explicit FakeCuda(int devices = 1);
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  const CudaDriver& driver() const { return driver_; }

  /// Streams do nothing from now on, until `release`: whatever returns in between has only queued.
  void hold() { held_ = true; }
  void release();
  /// Blocks until every stream is empty. For tests; what is tested cannot call it.
  void drain();
  /// Blocks until that stream has done everything; no call that tests count.
  void settle(CudaStream stream);

  /// Loading a module takes until `end_loading` from now on.
  void begin_loading() { loads_ = false; }
  void end_loading();
  /// Calls that are loading one.
  int loading() const { return loading_; }

  /// Calls that wait for the GPU, or may: allocating and freeing, loading modules. A step makes
  /// none.
  int synchronising_calls() const { return synchronising_; }
  int misuses() const { return misuses_; }
  int launches() const { return launches_; }
  /// Bytes of copies to and from memory of host_allocate, and memory that was registered.
  std::size_t copied_by_pinned() const { return copied_by_pinned_; }
  std::size_t copied_by_registered() const { return copied_by_registered_; }
  /// Ranges that are registered. A copy that is still to run when its range is no more is misuse.
  std::size_t registered() const;
  /// The next so many calls that register memory fail.
  void refuse_to_register(int calls) { unregistrable_ = calls; }
  /// From now on everything that is queued is dropped and every call that could notice fails with
  /// `error`, as after an illegal access.
  void break_with(CudaResult error) { sticky_ = error; }
  /// From now on the context of this device cannot be retained.
  void refuse_to_open(int device) { closed_ = device; }
  /// A capture in the mode "global": while it lasts, other threads, too, may not make unsafe calls,
  /// unless their mode is "relaxed". One that does spoils it.
  void set_capturing(CudaStream stream, bool capturing);
  /// The unsafe call that has spoilt a capture; "" if there was none.
  std::string spoilt_by() const;

  /// Queues `task` on a stream, for fakes of libraries that launch kernels. A task that blocks must
  /// end before this does.
  CudaResult enqueue(CudaStream stream, std::function<void()> task);
  /// Device of a stream.
  int device_of(CudaStream stream);
  bool broken() const { return sticky_ != kCudaSuccess; }

 private:
  /// Each record of an event is one of its own: who waits for one is not met by a later one.
  struct Record {
    bool reached = false;
  };
  struct Event {
    std::shared_ptr<Record> last = std::make_shared<Record>(Record{true});
    bool destroyed = false;
  };
  struct Task {
    std::function<void()> run;
    std::shared_ptr<Record> waits_for;        ///< instead of running
    const std::uint32_t* looks_at = nullptr;  ///< instead of running: until it is `value`, or more
    std::uint32_t value = 0;
    std::shared_ptr<Record> completes;
  };
  struct Stream {
    int device = 0;
    std::deque<Task> queue;
    bool busy = false;
    bool destroyed = false;
    bool capturing = false;
    std::condition_variable changed;  ///< its own: one for all would wake all for each task
    std::thread thread;
  };
  struct Kernel {
    unsigned threads = 0;  ///< of a block
    std::function<std::function<void()>(const void* argument, std::uint32_t blocks)> launch;
  };
  struct Memory {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t size = 0;
    bool on_host = false;
  };

  static FakeCuda& self();
  static std::vector<CudaContext>& contexts();  ///< of the calling thread
  static int& capture_mode();                   ///< the same
  void fill_kernels();
  template <class Batch>
  void add_step_kernels(const OptimKernels<Batch>& kernels);
  void fill_table();
  void fill_stream_table();
  void fill_memory_table();
  int current_device() const;  ///< -1 if no context is current
  CudaResult refuse(CudaResult result);
  /// Whether the calling thread may make that call now. Needs no lock.
  bool may(const char* unsafe_call);
  Stream* find(CudaStream stream);
  Event* find(CudaEvent event);
  /// What `use` makes, with the lock held, of what a handle stands for; misuse if that is nothing.
  template <class Handle, class Use>
  static CudaResult with(Handle handle, Use use) {
    const std::lock_guard lock(self().mutex_);
    auto* const found = self().find(handle);
    return found != nullptr ? use(*found) : self().refuse(kCudaInvalidHandle);
  }
  Stream* add_stream(int device);
  void work(Stream& stream);
  bool can_run(const Stream& stream) const;
  void wake();  ///< those streams that can go on, with the lock held
  CudaResult push(CudaStream stream, Task task);
  CudaResult take_memory(void** memory, std::size_t bytes, bool on_host);
  CudaResult give_memory_back(std::uintptr_t address, bool on_host);
  CudaResult copy(CudaAddress to, CudaAddress from, std::size_t bytes, CudaStream stream);
  bool is_pinned(std::uintptr_t address) const;
  /// Where the registered range begins that an address is in; 0: in none.
  std::uintptr_t registered_range(std::uintptr_t address) const;

  const int devices_;
  CudaDriver driver_{};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> held_{false};
  bool ending_ = false;
  std::atomic<bool> loads_{true};
  int captures_ = 0;
  std::string spoilt_by_;
  std::vector<std::unique_ptr<Stream>>
      streams_;  ///< the first ones are the devices' legacy streams
  std::vector<std::unique_ptr<Event>> events_;
  std::map<std::string, Kernel> kernels_;
  std::map<std::uintptr_t, Memory> memory_;
  std::map<std::uintptr_t, std::size_t> registered_;
  std::atomic<int> unregistrable_{0};
  std::atomic<std::size_t> copied_by_pinned_{0};
  std::atomic<std::size_t> copied_by_registered_{0};
  std::atomic<int> closed_{-1};
  std::atomic<int> loading_{0};
  std::atomic<int> synchronising_{0};
  std::atomic<int> misuses_{0};
  std::atomic<int> launches_{0};
  std::atomic<CudaResult> sticky_{kCudaSuccess};
};

}  // namespace aiacc
