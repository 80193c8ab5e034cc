#include "csrc/engines/staged/host_staged_engine.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/engines/members.h"

namespace aiacc {
namespace {

constexpr int kNobody = -1;
constexpr std::size_t kAlignment = 256;
/// How long an engine that ends waits for what is under way.
constexpr std::chrono::seconds kPatience{4};
/// A part that is smaller costs more than it gains.
constexpr std::size_t kLeastPart = std::size_t{64} << 10;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t sum_of(const std::vector<std::size_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::size_t{0});
}

}  // namespace

HostStagedEngine::HostStagedEngine(std::unique_ptr<Engine> host,
                                   std::unique_ptr<DeviceEngine> own,
                                   int rank,
                                   int size)
    : HostStagedEngine(std::move(host), std::move(own), rank, size, std::make_shared<Threads>()) {
  for (int lane = 0; lane <= host_->express_lane(); ++lane) {
    threads_->push_back(std::make_unique<HostStagingLane>("aiacc host " + std::to_string(lane)));
  }
}

HostStagedEngine::HostStagedEngine(std::unique_ptr<Engine> host,
                                   std::unique_ptr<DeviceEngine> own,
                                   int rank,
                                   int size,
                                   std::shared_ptr<Threads> threads)
    : host_(std::move(host)),
      own_(std::move(own)),
      rank_(rank),
      size_(size),
      work_(std::make_shared<HostWork>()),
      threads_(std::move(threads)),
      served_(static_cast<std::size_t>(host_->express_lane()) + 1) {
  for (std::atomic<int>& served : served_) {
    served.store(kNobody);
  }
  work_->stop = [this](const Status& status) { host_->abort(status); };
}

HostStagedEngine::~HostStagedEngine() {
  const auto over = [this] { return work_->parts == 0; };
  std::unique_lock lock(work_->mutex);
  if (!work_->changed.wait_for(lock, kPatience, over)) {
    lock.unlock();
    abort({Code::kShutdown, "[hierarchical] the engine has ended"});
    lock.lock();
    work_->changed.wait(lock, over);
  }
}

void HostStagedEngine::check() {
  work_->cancellation.check();
  own_->check();
}

/// The wait of that part of an operation which moved last. An operation begins when the one before
/// it on its lane is over, so all parts at work for a lane are of one.
LaneWait HostStagedEngine::waits(int lane) const {
  std::optional<LaneWait> least;
  for (std::size_t used = 0; used < served_.size(); ++used) {
    if (served_[used].load() == lane) {
      const LaneWait wait = host_->waits(static_cast<int>(used));
      least = !least || wait.seconds < least->seconds ? wait : *least;
    }
  }
  return least.value_or(LaneWait{});
}

void HostStagedEngine::abort(const Status& status) noexcept {
  work_->cancellation.set(status);
  host_->abort(status);
  own_->abort(status);
  const std::lock_guard lock(work_->mutex);
  work_->aborted = true;
  work_->changed.notify_all();
}

std::unique_ptr<DeviceEngine> HostStagedEngine::split(const std::vector<int>& members,
                                                      std::uint32_t split_id) {
  return std::unique_ptr<DeviceEngine>(new HostStagedEngine(host_->split(members, split_id),
                                                            own_->split({0}, split_id),
                                                            index_among(members, rank_, size_),
                                                            static_cast<int>(members.size()),
                                                            threads_));
}

int HostStagedEngine::between_lane(int lane) const {
  return lane == express_lane() ? host_->express_lane() : lane % host_->lanes();
}

std::vector<int> HostStagedEngine::between_lanes(int lane, std::size_t bytes) const {
  if (lane == express_lane()) {
    return {between_lane(lane)};
  }
  const auto most = static_cast<std::size_t>(host_->lanes());
  std::vector<int> lanes(std::clamp<std::size_t>(bytes / kLeastPart, 1, most));
  std::iota(lanes.begin(), lanes.end(), 0);
  return lanes;
}

void HostStagedEngine::run(int lane, std::vector<Part> parts) {
  work_->cancellation.check();
  if (device_ == nullptr) {
    device_ = own_->device(-1);
  }
  const Mark ready = device_->record(stream(lane));
  std::vector<Mark> done;
  done.reserve(parts.size());
  for (Part& part : parts) {
    const auto used = static_cast<std::size_t>(part.lane);
    part.part.run =
        [&served = served_[used], lane, work = std::move(part.part.run)](std::byte* memory) {
          served.store(lane);
          work(memory);
          served.store(kNobody);
        };
    HostStagingLane& thread = *(*threads_)[used];
    done.push_back(thread.pass(work_, device_, std::move(part.part), ready));
  }
  for (const Mark& mark : done) {
    device_->wait(stream(lane), mark);
  }
}

void HostStagedEngine::all_reduce(
    int lane, const void* send, void* recv, std::size_t count, const DeviceReduction& reduction) {
  AIACC_CHECK(!is_float8(reduction.wire));
  if (count == 0) {
    return;
  }
  const Reduction sum{dtype_on_wire(reduction.dtype, reduction.wire), reduction.op};
  const std::size_t element = size_of(sum.dtype);
  const std::vector<int> lanes = between_lanes(lane, count * element);
  const std::size_t share = aligned((count * element + lanes.size() - 1) / lanes.size()) / element;
  std::vector<Part> parts;
  for (const int used : lanes) {
    const std::size_t from = std::min(count, share * parts.size());
    const std::size_t elements = std::min(share, count - from);
    const std::size_t bytes = elements * element;
    parts.push_back({used,
                     {static_cast<const std::byte*>(send) + from * element,
                      bytes,
                      static_cast<std::byte*>(recv) + from * element,
                      bytes,
                      0,
                      [this, used, elements, sum](std::byte* memory) {
                        host_->all_reduce(used, memory, memory, elements, sum);
                      }}});
  }
  run(lane, std::move(parts));
}

void HostStagedEngine::broadcast(int lane, void* buffer, std::size_t bytes, int root) {
  if (bytes == 0) {
    return;
  }
  const bool mine = root == rank_;
  const std::vector<int> lanes = between_lanes(lane, bytes);
  const std::size_t share = aligned((bytes + lanes.size() - 1) / lanes.size());
  std::vector<Part> parts;
  for (const int used : lanes) {
    const std::size_t from = std::min(bytes, share * parts.size());
    const std::size_t part = std::min(share, bytes - from);
    std::byte* at = static_cast<std::byte*>(buffer) + from;
    parts.push_back(
        {used,
         {at, mine ? part : 0, at, mine ? 0 : part, 0, [this, used, part, root](std::byte* memory) {
            host_->broadcast(used, memory, part, root);
          }}});
  }
  run(lane, std::move(parts));
}

void HostStagedEngine::all_gather(int lane, const void* send, void* recv, const PerRank& bytes_of) {
  const int used = between_lane(lane);
  const std::size_t mine = bytes_of[static_cast<std::size_t>(rank_)];
  const auto gather = [=](std::byte* memory) {
    host_->all_gather(used, memory, memory + aligned(mine), bytes_of);
  };
  run(lane, {{used, {send, mine, recv, sum_of(bytes_of), aligned(mine), gather}}});
}

void HostStagedEngine::reduce_scatter(int lane,
                                      const void* send,
                                      void* recv,
                                      const PerRank& counts,
                                      const DeviceReduction& reduction) {
  AIACC_CHECK(reduction.wire == WireFormat::kTensor);
  const Reduction sum{reduction.dtype, reduction.op};
  const int used = between_lane(lane);
  const std::size_t element = size_of(reduction.dtype);
  const std::size_t sent = sum_of(counts) * element;
  const std::size_t received = counts[static_cast<std::size_t>(rank_)] * element;
  const auto scatter = [=](std::byte* memory) {
    host_->reduce_scatter(used, memory, memory + aligned(sent), counts, sum);
  };
  run(lane, {{used, {send, sent, recv, received, aligned(sent), scatter}}});
}

void HostStagedEngine::all_to_all(
    int lane, const void* send, void* recv, const PerRank& send_bytes, const PerRank& recv_bytes) {
  const int used = between_lane(lane);
  const std::size_t sent = sum_of(send_bytes);
  const auto exchange = [=](std::byte* memory) {
    host_->all_to_all(used, memory, memory + aligned(sent), send_bytes, recv_bytes);
  };
  run(lane, {{used, {send, sent, recv, sum_of(recv_bytes), aligned(sent), exchange}}});
}

}  // namespace aiacc
