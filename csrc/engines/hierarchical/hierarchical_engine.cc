#include "csrc/engines/hierarchical/hierarchical_engine.h"

#include <limits>
#include <string>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/engines/members.h"
#include "csrc/engines/tcp/tcp_engine.h"

namespace aiacc {

namespace {

/// The reduction between hosts is the last one: it applies the factor.
Reduction without_factor(Reduction reduction) {
  reduction.factor = 1;
  return reduction;
}
DeviceReduction without_factor(const DeviceReduction& reduction) { return reduction; }

}  // namespace

template <class Kind>
Hierarchical<Kind>::Hierarchical(std::unique_ptr<Kind> flat,
                                 const std::vector<int>& host_of,
                                 int rank,
                                 std::unique_ptr<Kind> near,
                                 std::uint32_t split_id)
    : Hierarchical(
          Parts{nullptr,
                std::move(flat),
                std::move(near),
                all_ranks(static_cast<int>(host_of.size())),
                host_of,
                rank,
                {split_id, static_cast<std::uint32_t>(2 * host_of.size() + 1), split_id}}) {}

template <class Kind>
typename Hierarchical<Kind>::Parts Hierarchical<Kind>::parts_of(Hierarchical& whole,
                                                                const std::vector<int>& members,
                                                                std::uint32_t split_id) {
  const SplitIds& of = whole.split_ids_;
  const std::uint32_t numbers = std::numeric_limits<std::uint32_t>::max() - of.base;
  AIACC_CHECK(split_id < numbers / of.count - 2);
  whole.cancellation_.check();
  const int index = index_among(members, whole.rank_, static_cast<int>(whole.host_of_.size()));
  const SplitIds split_ids{of.base + (split_id + 1) * of.count, of.count, of.base};
  // The flat engine connects all of them: its abort ends these waits.
  std::unique_ptr<Kind> flat = whole.flat_->split(members, split_ids.first);
  std::unique_ptr<Kind> near =
      whole.near_ != nullptr ? whole.near_->split(members, split_ids.first) : nullptr;
  return {whole.flat_.get(),
          std::move(flat),
          std::move(near),
          members,
          translated(whole.host_of_, members),
          index,
          split_ids};
}

template <class Kind>
Hierarchical<Kind>::Hierarchical(Parts parts)
    : host_of_(std::move(parts.host_of)),
      layout_(host_of_),
      rank_(parts.rank),
      split_ids_(parts.split_ids),
      flat_(std::move(parts.flat)),
      near_(std::move(parts.near)),
      scratch_(static_cast<std::size_t>(flat_->lanes())) {
  if (layout_.hosts() == 1) {
    return;
  }
  Kind& parent = parts.source != nullptr ? *parts.source : *flat_;
  std::uint32_t number = split_ids_.first + 1;
  const std::vector<int>& here = layout_.ranks_on(host());
  const std::uint32_t number_here = number + static_cast<std::uint32_t>(host());
  inside_ = near_ != nullptr ? near_->split(here, number_here)
                             : parent.split(translated(parts.members, here), number_here);
  if (local() < layout_.columns()) {
    number += static_cast<std::uint32_t>(layout_.hosts() + local());
    between_ = parent.split(translated(parts.members, layout_.column(local())), number);
  }
}

template <class Kind>
template <class Operation>
void Hierarchical<Kind>::run(int lane, Operation operation) {
  AIACC_CHECK(lane >= 0 && lane <= this->lanes());
  cancellation_.check();
  try {
    operation();
  } catch (...) {
    abort(current_exception_status());
    cancellation_.check();  // the first failure is the cause, not this one
    throw;
  }
}

template <class Kind>
std::size_t Hierarchical<Kind>::cut(std::size_t count, Scratch& scratch) const {
  const auto columns = static_cast<std::size_t>(layout_.columns());
  const auto own = static_cast<std::size_t>(local());
  scratch.shares.assign(layout_.ranks_on(host()).size(), 0);
  std::size_t first = 0;
  std::size_t begin = 0;
  for (std::size_t column = 0; column < columns; ++column) {
    if (column == own) {
      first = begin;
    }
    scratch.shares[column] = count / columns + (column < count % columns ? 1 : 0);
    begin += scratch.shares[column];
  }
  return first;
}

template <class Kind>
typename Hierarchical<Kind>::Share Hierarchical<Kind>::share_of(const AllReduce& call,
                                                                Scratch& scratch) const {
  const std::size_t element = size_of(call.reduction.dtype);
  const std::size_t first = cut(call.count, scratch);
  const std::size_t own = scratch.shares[static_cast<std::size_t>(local())];
  if (call.send != call.recv || Kind::kScattersInPlace) {
    return {static_cast<char*>(call.recv) + first * element, own};
  }
  if (scratch.share.size() < own * element) {
    scratch.share.resize(own * element);
  }
  return {scratch.share.data(), own};
}

template <class Kind>
Kind* Hierarchical<Kind>::server(int step, const AllReduce& call) const {
  const bool middle = step == 1;
  if (is_flat(call.lane)) {
    return middle ? flat_.get() : nullptr;
  }
  if (layout_.ranks_on(host()).size() == 1 || middle) {
    return middle ? between_.get() : nullptr;
  }
  return inside_.get();
}

template <class Kind>
void Hierarchical<Kind>::do_step(int step, const AllReduce& call) {
  Kind* engine = server(step, call);
  if (engine == nullptr) {
    return;
  }
  run(call.lane, [&] {
    if (engine == flat_.get() || layout_.ranks_on(host()).size() == 1) {
      return engine->all_reduce(call.lane, call.send, call.recv, call.count, call.reduction);
    }
    Scratch& scratch = scratch_[static_cast<std::size_t>(call.lane)];
    const Share share = share_of(call, scratch);
    if (step == 0) {
      engine->reduce_scatter(
          call.lane, call.send, share.memory, scratch.shares, without_factor(call.reduction));
    } else if (step == 1) {
      engine->all_reduce(call.lane, share.memory, share.memory, share.elements, call.reduction);
    } else {
      for (std::size_t& elements : scratch.shares) {
        elements *= size_of(call.reduction.dtype);
      }
      engine->all_gather(call.lane, share.memory, call.recv, scratch.shares);
    }
  });
}

template <class Kind>
void Hierarchical<Kind>::all_reduce(
    int lane, const void* send, void* recv, std::size_t count, const Arithmetic& reduction) {
  for (int step = 0; step < kSteps; ++step) {
    do_step(step, {lane, send, recv, count, reduction});
  }
}

template <class Kind>
void Hierarchical<Kind>::broadcast(int lane, void* buffer, std::size_t bytes, int root) {
  AIACC_CHECK(root >= 0 && root < static_cast<int>(host_of_.size()));
  run(lane, [&] {
    if (is_flat(lane)) {
      return flat_->broadcast(lane, buffer, bytes, root);
    }
    const int from = layout_.host(root);
    if (from == host()) {
      inside_->broadcast(lane, buffer, bytes, layout_.local(root));
    }
    Scratch& scratch = scratch_[static_cast<std::size_t>(lane)];
    char* share = static_cast<char*>(buffer) + cut(bytes, scratch);
    if (between_ != nullptr) {
      between_->broadcast(lane,
                          share,
                          scratch.shares[static_cast<std::size_t>(local())],
                          layout_.index_in_column(local(), from));
    }
    if (from != host()) {
      inside_->all_gather(lane, share, buffer, scratch.shares);
    }
  });
}

template <class Kind>
void Hierarchical<Kind>::all_gather(int lane,
                                    const void* send,
                                    void* recv,
                                    const PerRank& bytes_of) {
  run(lane, [&] { flat_->all_gather(lane, send, recv, bytes_of); });
}

template <class Kind>
void Hierarchical<Kind>::reduce_scatter(
    int lane, const void* send, void* recv, const PerRank& counts, const Arithmetic& reduction) {
  run(lane, [&] { flat_->reduce_scatter(lane, send, recv, counts, reduction); });
}

template <class Kind>
void Hierarchical<Kind>::all_to_all(
    int lane, const void* send, void* recv, const PerRank& send_bytes, const PerRank& recv_bytes) {
  run(lane, [&] { flat_->all_to_all(lane, send, recv, send_bytes, recv_bytes); });
}

template <class Kind>
void Hierarchical<Kind>::abort(const Status& status) noexcept {
  cancellation_.set(status);
  for (Kind* engine : parts()) {
    engine->abort(status);
  }
}

template <class Kind>
std::vector<Kind*> Hierarchical<Kind>::parts() const {
  std::vector<Kind*> engines;
  for (Kind* engine : {flat_.get(), near_.get(), inside_.get(), between_.get()}) {
    if (engine != nullptr) {
      engines.push_back(engine);
    }
  }
  return engines;
}

template <class Kind>
const Kind* Hierarchical<Kind>::outward() const {
  return layout_.hosts() == 1 ? flat_.get() : between_.get();
}

template class Hierarchical<Engine>;
template class Hierarchical<DeviceEngine>;

double HierarchicalEngine::send_busy_s(int lane) const {
  const Engine* engine = outward();
  return engine == nullptr ? 0 : engine->send_busy_s(lane);
}

LaneWait HierarchicalEngine::waits(int lane) const {
  return longest_of(parts(), [lane](const Engine& part) { return part.waits(lane); });
}

void check_hosts(const EngineContext& context) {
  if (context.host_of.size() != static_cast<std::size_t>(context.size)) {
    throw Error(Code::kInvalidArgument,
                "[hierarchical] the hosts of " + std::to_string(context.host_of.size()) +
                    " ranks are known (expected " + std::to_string(context.size) +
                    "); choose an engine that is not hierarchical");
  }
}

std::unique_ptr<Engine> create_hierarchical_engine(const EngineContext& context) {
  check_hosts(context);
  return std::make_unique<HierarchicalEngine>(
      std::make_unique<TcpEngine>(context), context.host_of, context.rank);
}

}  // namespace aiacc
