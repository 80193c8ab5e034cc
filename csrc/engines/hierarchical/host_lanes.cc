#include "csrc/engines/hierarchical/host_lanes.h"

#include <algorithm>
#include <exception>
#include <future>
#include <numeric>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/engines/members.h"

namespace aiacc {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kLeastMemory = std::size_t{1} << 20;
/// A part that is smaller costs more than it gains.
constexpr std::size_t kLeastPart = std::size_t{64} << 10;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t sum_of(const std::vector<std::size_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::size_t{0});
}

CudaAddress address_of(const void* memory) { return reinterpret_cast<CudaAddress>(memory); }

}  // namespace

HostLanes::HostLanes(std::unique_ptr<Engine> host, std::unique_ptr<Engine> own, int rank, int size)
    : host_(std::move(host)),
      kept_(std::move(own)),
      own_(*kept_->as_device()),
      rank_(rank),
      size_(size),
      staging_(static_cast<std::size_t>(host_->lanes()) + 1) {}

HostLanes::~HostLanes() {
  if (device_ == nullptr) {
    return;
  }
  try {
    const Device::Scope scope(*device_);
    const CudaDriver& driver = device_->driver();
    for (const Lane& lane : staging_) {
      if (lane.memory != nullptr) {
        AIACC_CUDA_LOG(driver, host_release, lane.memory);
      }
      if (lane.stream != nullptr) {
        AIACC_CUDA_LOG(driver, stream_destroy, lane.stream);
      }
    }
  } catch (const Error&) {
    // The driver is shutting down, and all this with it.
  }
}

void HostLanes::check() {
  cancellation_.check();
  own_.check();
}

void HostLanes::abort(const Status& status) noexcept {
  cancellation_.set(status);
  host_->abort(status);
  own_.abort(status);
}

std::unique_ptr<Engine> HostLanes::split(const std::vector<int>& members, std::uint32_t group) {
  return std::make_unique<HostLanes>(host_->split(members, group),
                                     own_.split({0}, group),
                                     place_among(members, rank_, size_),
                                     static_cast<int>(members.size()));
}

int HostLanes::host_lane(int lane) const {
  return lane == express_lane() ? host_->express_lane() : lane % host_->lanes();
}

std::vector<int> HostLanes::host_lanes(int lane, std::size_t bytes) const {
  if (lane == express_lane()) {
    return {host_lane(lane)};
  }
  const auto most = static_cast<std::size_t>(host_->lanes());
  std::vector<int> lanes(std::clamp<std::size_t>(bytes / kLeastPart, 1, most));
  std::iota(lanes.begin(), lanes.end(), 0);
  return lanes;
}

void HostLanes::make_room(Lane& lane, std::size_t bytes) {
  const CudaDriver& driver = device_->driver();
  if (lane.stream == nullptr) {
    int lowest = 0;
    int highest = 0;
    AIACC_CUDA_CHECK(driver, stream_priority_range, &lowest, &highest);
    AIACC_CUDA_CHECK(driver, stream_create, &lane.stream, kCudaStreamNonBlocking, highest);
  }
  if (bytes <= lane.capacity) {
    return;
  }
  if (lane.memory != nullptr) {  // its last copy back may be on its way
    lane.filled.arm(driver, lane.stream);
    lane.filled.wait(cancellation_.fd(), [this] { cancellation_.check(); });
    AIACC_CUDA_CHECK(driver, host_release, std::exchange(lane.memory, nullptr));
  }
  lane.capacity = 0;
  std::size_t capacity = kLeastMemory;
  while (capacity < bytes) {
    capacity *= 2;
  }
  void* memory = nullptr;
  AIACC_CUDA_CHECK(driver, host_allocate, &memory, capacity, kCudaHostPortable);
  lane.memory = static_cast<std::byte*>(memory);
  lane.capacity = capacity;
}

/// One part, whose result is on the GPU at the mark. A failure ends the other parts, too.
Mark HostLanes::pass(const Part& part, const Mark& ready) {
  try {
    const Device::Scope scope(*device_);
    const CudaDriver& driver = device_->driver();
    Lane& lane = staging_[static_cast<std::size_t>(part.lane)];
    make_room(lane, std::max(part.sent, part.received_at + part.received));
    device_->wait(lane.stream, ready);
    if (part.sent > 0) {
      AIACC_CUDA_CHECK(driver,
                       copy_async,
                       address_of(lane.memory),
                       address_of(part.send),
                       part.sent,
                       lane.stream);
    }
    lane.filled.arm(driver, lane.stream);
    lane.filled.wait(cancellation_.fd(), [this] { cancellation_.check(); });
    part.work(lane.memory);
    if (part.received > 0) {
      AIACC_CUDA_CHECK(driver,
                       copy_async,
                       address_of(part.recv),
                       address_of(lane.memory + part.received_at),
                       part.received,
                       lane.stream);
    }
    return device_->record(lane.stream);
  } catch (...) {
    abort(current_exception_status());
    cancellation_.check();  // the first failure is the cause, not this one
    throw;
  }
}

void HostLanes::run(int lane, std::vector<Part> parts) {
  cancellation_.check();
  if (device_ == nullptr) {
    device_ = own_.device(-1);
  }
  const Mark ready = device_->record(stream(lane));
  std::vector<std::future<Mark>> others;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    others.push_back(std::async(std::launch::async, [&, i] { return pass(parts[i], ready); }));
  }
  std::vector<Mark> done = {pass(parts.front(), ready)};
  for (std::future<Mark>& other : others) {
    done.push_back(other.get());
  }
  for (const Mark& mark : done) {
    device_->wait(stream(lane), mark);
  }
}

void HostLanes::all_reduce(
    int lane, const void* send, void* recv, std::size_t count, const Reduction& reduction) {
  if (count == 0) {
    return;
  }
  const std::size_t element = size_of(reduction.dtype);
  const std::vector<int> lanes = host_lanes(lane, count * element);
  const std::size_t share = aligned((count * element + lanes.size() - 1) / lanes.size()) / element;
  std::vector<Part> parts;
  for (const int used : lanes) {
    const std::size_t from = std::min(count, share * parts.size());
    const std::size_t elements = std::min(share, count - from);
    const std::size_t bytes = elements * element;
    parts.push_back({used,
                     static_cast<const std::byte*>(send) + from * element,
                     bytes,
                     static_cast<std::byte*>(recv) + from * element,
                     bytes,
                     0,
                     [this, used, elements, &reduction](std::byte* memory) {
                       host_->all_reduce(used, memory, memory, elements, reduction);
                     }});
  }
  run(lane, std::move(parts));
}

void HostLanes::all_reduce_on_wire(
    int lane, const void* send, void* recv, std::size_t count, const DeviceReduction& reduction) {
  AIACC_CHECK(!is_float8(reduction.wire));
  all_reduce(lane, send, recv, count, {dtype_on_wire(reduction), reduction.op});
}

void HostLanes::broadcast(int lane, void* buffer, std::size_t bytes, int root) {
  if (bytes == 0) {
    return;
  }
  const bool mine = root == rank_;
  const std::vector<int> lanes = host_lanes(lane, bytes);
  const std::size_t share = aligned((bytes + lanes.size() - 1) / lanes.size());
  std::vector<Part> parts;
  for (const int used : lanes) {
    const std::size_t from = std::min(bytes, share * parts.size());
    const std::size_t part = std::min(share, bytes - from);
    std::byte* at = static_cast<std::byte*>(buffer) + from;
    parts.push_back({used,
                     at,
                     mine ? part : 0,
                     at,
                     mine ? 0 : part,
                     0,
                     [this, used, part, root](std::byte* memory) {
                       host_->broadcast(used, memory, part, root);
                     }});
  }
  run(lane, std::move(parts));
}

void HostLanes::all_gather(int lane,
                           const void* send,
                           void* recv,
                           const std::vector<std::size_t>& bytes_of) {
  const int used = host_lane(lane);
  const std::size_t mine = bytes_of[static_cast<std::size_t>(rank_)];
  run(lane, {{used, send, mine, recv, sum_of(bytes_of), aligned(mine), [&](std::byte* memory) {
                host_->all_gather(used, memory, memory + aligned(mine), bytes_of);
              }}});
}

void HostLanes::reduce_scatter(int lane,
                               const void* send,
                               void* recv,
                               const std::vector<std::size_t>& counts,
                               const Reduction& reduction) {
  const int used = host_lane(lane);
  const std::size_t element = size_of(reduction.dtype);
  const std::size_t sent = sum_of(counts) * element;
  const std::size_t received = counts[static_cast<std::size_t>(rank_)] * element;
  run(lane, {{used, send, sent, recv, received, aligned(sent), [&](std::byte* memory) {
                host_->reduce_scatter(used, memory, memory + aligned(sent), counts, reduction);
              }}});
}

void HostLanes::all_to_all(int lane,
                           const void* send,
                           void* recv,
                           const std::vector<std::size_t>& send_bytes,
                           const std::vector<std::size_t>& recv_bytes) {
  const int used = host_lane(lane);
  const std::size_t sent = sum_of(send_bytes);
  run(lane, {{used, send, sent, recv, sum_of(recv_bytes), aligned(sent), [&](std::byte* memory) {
                host_->all_to_all(used, memory, memory + aligned(sent), send_bytes, recv_bytes);
              }}});
}

}  // namespace aiacc
