#include "csrc/engines/staged/device_mover.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "csrc/kernels/scale.h"

namespace aiacc {
namespace {

/// A copy of a block takes less on most machines, and to be woken takes as long.
constexpr std::chrono::microseconds kSpin{50};

/// Calls `overlap(copy, begin, end)` for what lies between `begin` and `end` of the buffer, in
/// order.
template <class Overlap>
void for_each_overlap(const std::vector<StagedCopy>& copies,
                      std::size_t begin,
                      std::size_t end,
                      Overlap overlap) {
  auto copy = std::partition_point(copies.begin(), copies.end(), [&](const StagedCopy& before) {
    return before.host_offset + before.bytes <= begin;
  });
  for (; copy != copies.end() && copy->host_offset < end; ++copy) {
    overlap(
        *copy, std::max(begin, copy->host_offset), std::min(end, copy->host_offset + copy->bytes));
  }
}

CudaAddress device_address(const StagedCopy& copy, std::size_t at) {
  return CudaAddress{copy.device} + (at - copy.host_offset);
}

}  // namespace

DeviceMover::DeviceMover(std::shared_ptr<Device> device)
    : device_(std::move(device)), driver_(device_->driver()), spin_(kSpin) {
  int lowest = 0;
  int highest = 0;
  AIACC_CUDA_CHECK(driver_, stream_priority_range, &lowest, &highest);
  for (CudaStream* stream : {&in_, &out_, &waits_}) {
    AIACC_CUDA_CHECK(driver_, stream_create, stream, kCudaStreamNonBlocking, highest);
  }
}

DeviceMover::~DeviceMover() {
  for (CudaStream stream : {in_, out_, waits_}) {
    AIACC_CUDA_LOG(driver_, stream_destroy, stream);
  }
}

void DeviceMover::await_inputs(const Cancellation& cancellation) {
  const Mark mark = device_->record(in_);
  if (!device_->reached(mark)) {
    reached_.arm(driver_, in_);
    reached_.wait(cancellation.fd(), [&] { cancellation.check(); });
  }
}

void DeviceMover::begin(std::vector<StagedCopy> from,
                        std::vector<StagedCopy> to,
                        DataType dtype,
                        double prescale) {
  from_ = std::move(from);
  to_ = std::move(to);
  dtype_ = dtype;
  prescale_ = prescale;
}

void DeviceMover::start_in(int ticket, std::size_t offset, std::size_t bytes, std::byte* to) {
  Started& started = in_started_[static_cast<std::size_t>(ticket)];
  started = {nullptr, to, bytes};
  const std::size_t end = offset + bytes;
  std::size_t covered = offset;
  for_each_overlap(
      from_, offset, end, [&](const StagedCopy& copy, std::size_t first, std::size_t last) {
        std::memset(to + (covered - offset), 0, first - covered);
        AIACC_CUDA_CHECK(driver_,
                         copy_async,
                         reinterpret_cast<CudaAddress>(to + (first - offset)),
                         device_address(copy, first),
                         last - first,
                         in_);
        covered = last;
      });
  std::memset(to + (covered - offset), 0, end - covered);
  started.mark = device_->record(in_);
}

void DeviceMover::finish_in(int ticket) {
  Started& started = in_started_[static_cast<std::size_t>(ticket)];
  await(started.mark);
  started.mark.reset();
  if (prescale_ != 1) {
    scale(started.at, started.at, started.bytes / size_of(dtype_), dtype_, prescale_);
  }
}

void DeviceMover::start_out(int ticket,
                            std::size_t offset,
                            std::size_t bytes,
                            const std::byte* from) {
  for_each_overlap(to_,
                   offset,
                   offset + bytes,
                   [&](const StagedCopy& copy, std::size_t first, std::size_t last) {
                     AIACC_CUDA_CHECK(driver_,
                                      copy_async,
                                      device_address(copy, first),
                                      reinterpret_cast<CudaAddress>(from + (first - offset)),
                                      last - first,
                                      out_);
                   });
  out_started_[static_cast<std::size_t>(ticket)].mark = device_->record(out_);
}

void DeviceMover::finish_out(int ticket) {
  Mark& mark = out_started_[static_cast<std::size_t>(ticket)].mark;
  if (mark != nullptr) {
    await(mark);
    mark.reset();
  }
}

/// For a copy: spins, then sleeps.
void DeviceMover::await(const Mark& mark) {
  spin_.begin();
  do {
    if (device_->reached(mark)) {
      spin_.end();
      return;
    }
  } while (spin_.again());
  device_->wait(waits_, mark);
  reached_.arm(driver_, waits_);
  reached_.wait(-1, [] {});
}

void DeviceMover::stop() noexcept {
  await_end(in_, idle_in_);
  await_end(out_, idle_out_);
}

void DeviceMover::await_end(CudaStream stream, StreamSignal& signal) noexcept {
  try {
    signal.arm(driver_, stream);
    signal.wait(-1, [] {});
  } catch (const std::exception&) {
    // The device has failed, or its driver has ended: nothing is running there.
  }
}

}  // namespace aiacc
