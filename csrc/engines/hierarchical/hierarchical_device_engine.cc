#include "csrc/engines/hierarchical/hierarchical_device_engine.h"

#include <utility>

#include "csrc/base/error.h"
#include "csrc/engines/members.h"
#include "csrc/engines/staged/host_staged_engine.h"

namespace aiacc {
namespace {

/// Numbers of connections from here on are not those of process sets on the engine for host memory.
constexpr std::uint32_t kFirstSplitId = std::uint32_t{1} << 31;

}  // namespace

HierarchicalDeviceEngine::HierarchicalDeviceEngine(std::unique_ptr<DeviceEngine> flat,
                                                   const std::vector<int>& host_of,
                                                   int rank,
                                                   std::unique_ptr<DeviceEngine> near,
                                                   std::uint32_t split_id)
    : HierarchicalDeviceEngine(Parts{nullptr,
                                     std::move(flat),
                                     std::move(near),
                                     all_ranks(static_cast<int>(host_of.size())),
                                     host_of,
                                     rank,
                                     SplitIds(host_of.size(), split_id)}) {}

HierarchicalDeviceEngine::HierarchicalDeviceEngine(Parts parts)
    : host_of_(std::move(parts.host_of)),
      layout_(host_of_),
      rank_(parts.rank),
      split_ids_(parts.split_ids),
      flat_(std::move(parts.flat)),
      near_(std::move(parts.near)) {
  if (layout_.hosts() > 1) {
    DeviceEngine& parent = parts.source != nullptr ? *parts.source : *flat_;
    const std::vector<int>& here = layout_.ranks_on(host());
    inside_ = near_ != nullptr
                  ? near_->split(here, split_ids_.host(host()))
                  : parent.split(translated(parts.members, here), split_ids_.host(host()));
    if (local() < layout_.columns()) {
      between_ = parent.split(translated(parts.members, layout_.column(local())),
                              split_ids_.column(local()));
    }
  }
  for (DeviceEngine* engine : {flat_.get(), near_.get(), inside_.get(), between_.get()}) {
    if (engine != nullptr) {
      parts_.push_back(engine);
    }
  }
}

std::unique_ptr<DeviceEngine> HierarchicalDeviceEngine::split(const std::vector<int>& members,
                                                              std::uint32_t split_id) {
  const SplitIds ids = split_ids_.part(split_id);
  cancellation_.check();
  const int index = index_among(members, rank_, static_cast<int>(host_of_.size()));
  // The flat engine connects all of them: its abort ends these waits.
  std::unique_ptr<DeviceEngine> flat = flat_->split(members, ids.flat());
  std::unique_ptr<DeviceEngine> near =
      near_ != nullptr ? near_->split(members, ids.flat()) : nullptr;
  return std::unique_ptr<DeviceEngine>(
      new HierarchicalDeviceEngine(Parts{flat_.get(),
                                         std::move(flat),
                                         std::move(near),
                                         members,
                                         translated(host_of_, members),
                                         index,
                                         ids}));
}

std::shared_ptr<Device> HierarchicalDeviceEngine::device(int ordinal) {
  std::shared_ptr<Device> device;
  for (DeviceEngine* part : parts_) {
    device = part->device(ordinal);
  }
  return device;
}

template <class Operation>
void HierarchicalDeviceEngine::run(int lane, Operation operation) {
  AIACC_CHECK(lane >= 0 && lane <= lanes());
  cancellation_.check();
  try {
    operation();
  } catch (...) {
    abort(current_exception_status());
    cancellation_.check();  // the first failure is the cause, not this one
    throw;
  }
}

std::size_t HierarchicalDeviceEngine::cut(std::size_t count) {
  const auto columns = static_cast<std::size_t>(layout_.columns());
  const auto own = static_cast<std::size_t>(local());
  shares_.assign(layout_.ranks_on(host()).size(), 0);
  std::size_t first = 0;
  std::size_t begin = 0;
  for (std::size_t column = 0; column < columns; ++column) {
    if (column == own) {
      first = begin;
    }
    shares_[column] = count / columns + (column < count % columns ? 1 : 0);
    begin += shares_[column];
  }
  return first;
}

DeviceEngine* HierarchicalDeviceEngine::server(int step, const AllReduce& call) const {
  const bool middle = step == 1;
  if (is_flat(call.lane)) {
    return middle ? flat_.get() : nullptr;
  }
  if (layout_.ranks_on(host()).size() == 1 || middle) {
    return middle ? between_.get() : nullptr;
  }
  return inside_.get();
}

void HierarchicalDeviceEngine::do_step(int step, const AllReduce& call) {
  DeviceEngine* engine = server(step, call);
  if (engine == nullptr) {
    return;
  }
  run(call.lane, [&] {
    if (engine == flat_.get() || layout_.ranks_on(host()).size() == 1) {
      return engine->all_reduce(call.lane, call.send, call.recv, call.count, call.reduction);
    }
    // A share is reduced where it lies in the result.
    const std::size_t element = size_of(call.reduction.dtype);
    char* share = static_cast<char*>(call.recv) + cut(call.count) * element;
    if (step == 0) {
      engine->reduce_scatter(call.lane, call.send, share, shares_, call.reduction);
    } else if (step == 1) {
      const std::size_t own = shares_[static_cast<std::size_t>(local())];
      engine->all_reduce(call.lane, share, share, own, call.reduction);
    } else {
      for (std::size_t& elements : shares_) {
        elements *= element;
      }
      engine->all_gather(call.lane, share, call.recv, shares_);
    }
  });
}

void HierarchicalDeviceEngine::all_reduce(
    int lane, const void* send, void* recv, std::size_t count, const DeviceReduction& reduction) {
  AIACC_CHECK(!is_float8(reduction.wire));
  const DeviceReduction sum{dtype_on_wire(reduction.dtype, reduction.wire), reduction.op};
  if (grouping_) {
    return group_.push_back({lane, send, recv, count, sum});
  }
  for (int step = 0; step < kSteps; ++step) {
    do_step(step, {lane, send, recv, count, sum});
  }
}

void HierarchicalDeviceEngine::begin_group() {
  group_.clear();
  grouping_ = true;
}

void HierarchicalDeviceEngine::end_group() {
  grouping_ = false;
  const auto of = [&](int step, std::size_t call) { return server(step, group_[call]); };
  for (int step = 0; step < kSteps; ++step) {
    // Each engine gets its calls of the step as a group: first those whose engine comes first.
    for (std::size_t first = 0; first < group_.size(); ++first) {
      DeviceEngine* engine = of(step, first);
      std::size_t before = 0;
      while (of(step, before) != engine) {
        ++before;
      }
      if (engine == nullptr || before < first) {
        continue;
      }
      engine->begin_group();
      for (std::size_t call = first; call < group_.size(); ++call) {
        if (of(step, call) == engine) {
          do_step(step, group_[call]);
        }
      }
      engine->end_group();
    }
  }
}

void HierarchicalDeviceEngine::broadcast(int lane, void* buffer, std::size_t bytes, int root) {
  AIACC_CHECK(root >= 0 && root < static_cast<int>(host_of_.size()));
  run(lane, [&] {
    if (is_flat(lane)) {
      return flat_->broadcast(lane, buffer, bytes, root);
    }
    const int from = layout_.host(root);
    if (from == host()) {
      inside_->broadcast(lane, buffer, bytes, layout_.local(root));
    }
    char* share = static_cast<char*>(buffer) + cut(bytes);
    if (between_ != nullptr) {
      between_->broadcast(lane,
                          share,
                          shares_[static_cast<std::size_t>(local())],
                          layout_.index_in_column(local(), from));
    }
    if (from != host()) {
      inside_->all_gather(lane, share, buffer, shares_);
    }
  });
}

void HierarchicalDeviceEngine::all_gather(int lane,
                                          const void* send,
                                          void* recv,
                                          const PerRank& bytes_of) {
  run(lane, [&] { flat_->all_gather(lane, send, recv, bytes_of); });
}

void HierarchicalDeviceEngine::reduce_scatter(int lane,
                                              const void* send,
                                              void* recv,
                                              const PerRank& counts,
                                              const DeviceReduction& reduction) {
  run(lane, [&] { flat_->reduce_scatter(lane, send, recv, counts, reduction); });
}

void HierarchicalDeviceEngine::all_to_all(
    int lane, const void* send, void* recv, const PerRank& send_bytes, const PerRank& recv_bytes) {
  run(lane, [&] { flat_->all_to_all(lane, send, recv, send_bytes, recv_bytes); });
}

std::string HierarchicalDeviceEngine::refusal(const DeviceReduction& reduction) const {
  if (is_float8(reduction.wire)) {
    return std::string("wire ") + name_of(reduction.wire) +
           " (expected a format of 16 or 32 bits); set AIACC_GPU_ENGINE=nccl for it";
  }
  if (is_coded(reduction.wire)) {
    return std::string("wire format ") + name_of(reduction.wire) +
           " (expected a format of 16 or 32 bits); set AIACC_GPU_ENGINE=nccl for it, or use "
           "Compression.bf16";
  }
  for (const DeviceEngine* part : parts_) {
    const std::string problem = part->refusal(reduction);
    if (!problem.empty()) {
      return problem;
    }
  }
  return "";
}

void HierarchicalDeviceEngine::check() {
  for (DeviceEngine* part : parts_) {
    part->check();
  }
}

LaneWait HierarchicalDeviceEngine::issue_waits() const {
  return longest_of(parts_, [](const DeviceEngine& part) { return part.issue_waits(); });
}

LaneWait HierarchicalDeviceEngine::waits(int lane) const {
  return longest_of(parts_, [lane](const DeviceEngine& part) { return part.waits(lane); });
}

void HierarchicalDeviceEngine::abort(const Status& status) noexcept {
  cancellation_.set(status);
  for (DeviceEngine* part : parts_) {
    part->abort(status);
  }
}

std::unique_ptr<DeviceEngine> create_hierarchical_device_engine(std::unique_ptr<DeviceEngine> nccl,
                                                                EngineContext context,
                                                                const HostEngineFactory& between) {
  check_hosts(context);
  const int rank = context.rank;
  std::unique_ptr<DeviceEngine> flat = std::move(nccl);
  std::unique_ptr<DeviceEngine> near;
  if (between && HostTopology(context.host_of).hosts() > 1) {
    near = std::move(flat);
    context.split_id = kFirstSplitId;
    flat = std::make_unique<HostStagedEngine>(
        between(context), near->split({rank}, 0), rank, context.size);
  }
  return std::make_unique<HierarchicalDeviceEngine>(
      std::move(flat), context.host_of, rank, std::move(near), context.split_id);
}

}  // namespace aiacc
