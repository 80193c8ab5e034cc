#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/cuda/driver.h"

namespace aiacc {

/// A moment of a stream: everything that was queued on it before. The event is nobody else's while
/// the mark lives, so it keeps its meaning.
struct StreamMark {
  CudaEvent event = nullptr;
  CudaStream stream = nullptr;
  /// Ascending in the order of recording: of two marks of one stream the later one implies the
  /// other.
  std::uint64_t number = 0;
};
using Mark = std::shared_ptr<const StreamMark>;

/// While this lives, the calling thread may make calls that CUDA forbids while some thread captures
/// a graph in the mode that is usual ("global", torch's default): asking for events, taking memory.
/// Such a call would fail and would spoil that graph. What aiacc calls is never part of one.
class RelaxedCapture {
 public:
  /// Throws Error(kEngine) if the driver fails.
  explicit RelaxedCapture(const CudaDriver& driver);
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const CudaDriver& driver_;
  int mode_ = kCudaCaptureRelaxed;  ///< the thread's before, once it has been exchanged
};

/// One GPU: the primary context, which the framework uses as well, and events to be used again.
///
/// Threads: any. Nothing here waits for the GPU; the constructor and the destructor may. Marks keep
/// the device alive; the driver's table outlives all.
class Device : public std::enable_shared_from_this<Device> {
 public:
  /// Throws Error(kInvalidArgument) if there is no device of that number, Error(kEngine) if the
  /// driver fails.
  static std::shared_ptr<Device> open(const CudaDriver& driver, int ordinal);
  /// The same; for -1 the device `proposed`, or the first one if there are not so many.
  static std::shared_ptr<Device> open_or_propose(const CudaDriver& driver,
                                                 int ordinal,
                                                 int proposed);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const CudaDriver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }

  /// The device's context is the calling thread's while this lives, and whatever other threads
  /// capture does not concern it: see RelaxedCapture.
  class Scope {
   public:
    explicit Scope(const Device& device);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const CudaDriver& driver_;
    const RelaxedCapture relaxed_;
  };

  /// Marks the present end of `stream`. Needs a Scope.
  Mark record(CudaStream stream);
  /// What is queued on `stream` from now on comes after the mark. Needs a Scope.
  void wait(CudaStream stream, const Mark& mark) const;
  /// Whether the GPU has come to the mark. Needs a Scope. Throws Error(kEngine) if the device has
  /// failed.
  bool reached(const Mark& mark) const;
  /// Whether `stream` records a graph instead of running. Needs a Scope.
  bool capturing(CudaStream stream) const;

 private:
  Device(const CudaDriver& driver, int ordinal, CudaDevice device, CudaContext context)
      : driver_(driver), ordinal_(ordinal), device_(device), context_(context) {}
  std::shared_ptr<StreamMark> blank_mark();

  const CudaDriver& driver_;
  const int ordinal_;
  const CudaDevice device_;
  const CudaContext context_;
  std::mutex mutex_;  ///< numbers are given in the order of recording
  std::uint64_t recorded_ = 0;
  std::size_t events_ = 0;
  std::vector<CudaEvent> spare_;
};

}  // namespace aiacc
