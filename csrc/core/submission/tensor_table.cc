#include "csrc/core/submission/tensor_table.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "csrc/base/text.h"
#include "csrc/base/thread.h"

namespace aiacc {
namespace {

/// Recycled operations kept for reuse; more than this many in flight at once are allocated anew.
constexpr std::size_t kPoolSize = 4096;

/// The whole process has one counter: a handle from before a shutdown must not name an operation
/// after it.
std::atomic<Handle> next_handle{1};

void reset(Operation& operation) {
  operation.request.name.clear();
  operation.request.tensors.resize(1);
  operation.request.tensors.front().shape.clear();
  operation.request.numbers.clear();
  operation.buffers.resize(1);
  TensorBuffers& buffers = operation.buffers.front();
  buffers.first_extents.clear();
  buffers.residual = nullptr;
  buffers.gathered = {};
  buffers.gathered_on_gpu.reset();
  operation.devices.reset();
  operation.written.reset();
  operation.completed.clear();
  operation.value = 0;
  operation.completion.reset();
  operation.byte_weight = 1.0;
  operation.slices_left.store(0, std::memory_order_relaxed);
  operation.dispatched.store(false, std::memory_order_relaxed);
  operation.done.store(false, std::memory_order_relaxed);
  operation.status = {};
}

/// Inserts with the memory of a spare entry, if there is one. False if the key is there already.
template <typename Map>
bool insert(Map& map,
            std::vector<typename Map::node_type>& spare,
            typename Map::key_type key,
            typename Map::mapped_type value) {
  if (spare.empty()) {
    return map.emplace(key, std::move(value)).second;
  }
  auto node = std::move(spare.back());
  spare.pop_back();
  node.key() = key;
  node.mapped() = std::move(value);
  return map.insert(std::move(node)).inserted;
}

}  // namespace

void* make_result(TensorBuffers& buffers, std::size_t bytes, const Operation& operation) {
  try {
    buffers.gathered.resize(bytes);
  } catch (const std::exception&) {  // bad_alloc or length_error
    const Request& request = operation.request;
    throw Error(Code::kEngine,
                "[core] " + this_process() + " has no memory for the " + std::to_string(bytes) +
                    " bytes of " + operation_text(request) +
                    "; let every rank give less, or raise the limit of memory (ulimit -v, the "
                    "container's)");
  }
  return buffers.gathered.data();
}

std::shared_ptr<Operation> TensorTable::acquire() {
  {
    const std::lock_guard lock(mutex_);
    if (!pool_.empty()) {
      auto operation = std::move(pool_.back());
      pool_.pop_back();
      return operation;
    }
  }
  return std::make_shared<Operation>();
}

Handle TensorTable::submit(std::shared_ptr<Operation> operation, Queued& queued) {
  Operation& entry = *operation;
  Request& request = entry.request;
  const std::lock_guard lock(mutex_);
  entry.submitted = Clock::now();
  if (!closed_.ok()) {
    throw Error(closed_);
  }
  request.cacheable = !request.name.empty() && !changes_sets(request.kind);
  if (request.name.empty()) {
    request.name = automatic_name(entry);
  }
  if (!insert(in_flight_[request.process_set], spare_names_, request.name, &entry)) {
    throw Error(Code::kInvalidArgument,
                "[submit] tensor '" + label_of(request.process_set, request.name) +
                    "' is already in flight on this rank; synchronize it first, or give the two " +
                    "operations different names");
  }
  const Handle handle = next_handle.fetch_add(1, std::memory_order_relaxed);
  entry.handle = handle;
  insert(by_handle_, spare_handles_, handle, std::move(operation));
  in_flight_count_.fetch_add(1, std::memory_order_release);
  if (is_message(request.kind)) {
    entry.dispatched.store(true);
    return handle;
  }
  queued.first = queue_.empty();
  if (queued.first) {
    queued_since_.store(entry.submitted, std::memory_order_release);
  }
  queue_.push_back(&entry);
  queued.bytes = queued_bytes_.load(std::memory_order_relaxed) + entry.weighted_bytes();
  queued_bytes_.store(queued.bytes, std::memory_order_release);
  queued_count_.store(queue_.size(), std::memory_order_release);
  return handle;
}

std::string TensorTable::automatic_name(const Operation& operation) {
  const Request& request = operation.request;
  if (request.kind == OpKind::kJoin || request.kind == OpKind::kLeaveProcessSet) {
    return name_of(request.kind);  // one at a time
  }
  // One count for both, so that a rank that adds a set and one that removes one disagree and do not
  // wait for each other.
  const std::string series = changes_sets(request.kind) ? "process_set"
                             : operation.series.empty() ? name_of(request.kind)
                                                        : operation.series;
  // Messages, whose series are as many as there are tags, are counted together: their names are
  // this rank's own.
  const std::string& counted = is_message(request.kind) ? std::string("message") : series;
  return series + ".noname." + std::to_string(generation_) + "." +
         std::to_string(automatic_[{request.process_set, counted}]++);
}

void TensorTable::next_generation() {
  const std::lock_guard lock(mutex_);
  ++generation_;
  automatic_.clear();
}

void TensorTable::drain(std::vector<Operation*>& out) {
  out.clear();
  const std::lock_guard lock(mutex_);
  out.swap(queue_);
  queued_bytes_.store(0, std::memory_order_release);
  queued_count_.store(0, std::memory_order_release);
}

void TensorTable::complete(const std::vector<Operation*>& operations, const Status& status) {
  const Clock::time_point now = Clock::now();
  std::vector<std::shared_ptr<Operation>> told;
  {
    const std::lock_guard lock(mutex_);
    for (Operation* operation : operations) {
      auto node = in_flight_[operation->request.process_set].extract(operation->request.name);
      if (!node.empty() && spare_names_.size() < kPoolSize) {
        spare_names_.push_back(std::move(node));
      }
    }
    in_flight_count_.fetch_sub(operations.size(), std::memory_order_release);
    // After `done` the operation may be recycled at any moment by whoever waited for it.
    for (Operation* operation : operations) {
      operation->status = status;
      operation->finished = now;
      if (operation->completion != nullptr && operation->completion->told()) {
        told.push_back(by_handle_.at(operation->handle));
      }
      operation->done.store(true);
    }
  }
  if (sleepers_.load() > 0) {
    const std::lock_guard lock(done_mutex_);
    done_.notify_all();
  }
  // Without the lock: who is told may submit what comes next.
  for (std::shared_ptr<Operation>& operation : told) {
    const Handle handle = operation->handle;
    operation->completion->done(*operation);
    operation.reset();
    release(handle);
  }
}

std::shared_ptr<Operation> TensorTable::find(Handle handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_handle_.find(handle);
  if (found == by_handle_.end()) {
    throw Error(Code::kInvalidArgument,
                "[handle] " + std::to_string(handle) +
                    " is not an outstanding handle; every handle can be synchronized once");
  }
  return found->second;
}

void TensorTable::release(Handle handle) {
  const std::lock_guard lock(mutex_);
  const auto found = by_handle_.find(handle);
  if (found == by_handle_.end()) {
    return;
  }
  if (!found->second->done.load()) {
    // The loop thread and the lanes work with it, and its buffers are in use.
    throw Error(Code::kInvalidArgument,
                "[handle] " + std::to_string(handle) +
                    " is still in flight; synchronize it before forgetting it");
  }
  auto node = by_handle_.extract(found);
  std::shared_ptr<Operation> operation = std::move(node.mapped());
  if (operation.use_count() == 1 && pool_.size() < kPoolSize) {
    reset(*operation);
    pool_.push_back(std::move(operation));
  }
  if (spare_handles_.size() < kPoolSize) {
    spare_handles_.push_back(std::move(node));
  }
}

bool TensorTable::wait(const Operation& operation, Clock::time_point deadline) {
  if (operation.done.load()) {
    return true;
  }
  sleepers_.fetch_add(1);
  bool done = false;
  {
    std::unique_lock lock(done_mutex_);
    done = done_.wait_until(lock, deadline, [&] { return operation.done.load(); });
  }
  sleepers_.fetch_sub(1);
  return done;
}

void TensorTable::close(const Status& status) {
  std::vector<Operation*> lost;
  {
    const std::lock_guard lock(mutex_);
    if (closed_.ok()) {
      closed_ = status;
    }
    queue_.clear();
    queued_bytes_.store(0);
    queued_count_.store(0);
    for (const auto& [process_set, by_name] : in_flight_) {
      for (const auto& [name, operation] : by_name) {
        lost.push_back(operation);
      }
    }
  }
  complete(lost, status);
}

std::string TensorTable::labels(const std::vector<const Operation*>& operations) const {
  constexpr std::size_t kNamed = 3;
  constexpr std::size_t kMostBytes = 100;
  std::string text;
  std::size_t found = 0;
  const std::lock_guard lock(mutex_);
  for (const auto& [process_set, by_name] : in_flight_) {
    for (const auto& [name, operation] : by_name) {
      if (std::find(operations.begin(), operations.end(), operation) != operations.end() &&
          ++found <= kNamed) {
        text += (text.empty() ? "'" : ", '") +
                cut_text(label_of(process_set, operation->request.name), kMostBytes) + "'";
      }
    }
  }
  return found > kNamed ? text + " and " + std::to_string(found - kNamed) + " more" : text;
}

std::vector<PendingName> TensorTable::undispatched(const ProcessSetTable& sets,
                                                   Clock::time_point now) const {
  std::vector<PendingName> pending;
  const std::lock_guard lock(mutex_);
  for (const auto& [process_set, by_name] : in_flight_) {
    const std::vector<int>* members = sets.members(process_set);
    if (members == nullptr) {
      continue;  // It was removed: what waits in it fails.
    }
    const RankSet everyone = RankSet::of(*members);
    for (const auto& [name, operation] : by_name) {
      const Request& request = operation->request;
      const std::chrono::duration<double, std::milli> waited = now - operation->submitted;
      const auto waited_ms =
          static_cast<std::uint32_t>(std::ceil(std::clamp(waited.count(), 0.0, 4e9)));
      if (is_message(request.kind)) {
        pending.push_back({operation_text(request.kind, process_set, operation->series),
                           waited_ms,
                           request.root >= 0 ? RankSet(request.root) : RankSet::of(request.numbers),
                           true});
      } else if (!operation->dispatched.load() && request.kind != OpKind::kLeaveProcessSet) {
        const bool forms = request.kind == OpKind::kFormProcessSet;
        pending.push_back({label_of(process_set, request.name),
                           waited_ms,
                           forms ? RankSet::of(request.numbers) : everyone});
      }
    }
  }
  return pending;
}

}  // namespace aiacc
