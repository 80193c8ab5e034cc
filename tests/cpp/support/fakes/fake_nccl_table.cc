#include <cstring>

#include "tests/cpp/support/fakes/fake_nccl.h"

// The part of the fake that concerns communicators, memory and groups.

namespace aiacc {

void FakeNccl::fill_table() {
  api_.get_unique_id = [](NcclUniqueId* id) {
    const std::lock_guard lock(self().mutex_);
    *id = {};
    const int number = self().ids_++;
    std::memcpy(id->internal, &number, sizeof number);
    return kNcclSuccess;
  };
  api_.comm_init = [](NcclComm* comm, int ranks, NcclUniqueId id, int rank, NcclConfig* config) {
    return self().init(comm, ranks, id, rank, config);
  };
  api_.comm_async_error = [](NcclComm handle, NcclResult* error) {
    ++self().questions_;
    return with(handle, "comm_async_error", [error](Comm& comm) {
      const bool ready = comm.world->joined == comm.world->size && comm.polls == 0;
      comm.polls -= comm.polls > 0 ? 1 : 0;
      *error = comm.error != kNcclSuccess ? comm.error : ready ? kNcclSuccess : kNcclInProgress;
      return kNcclSuccess;
    });
  };
  api_.comm_finalize = [](NcclComm handle) {
    return with(handle, "comm_finalize", [](const Comm& comm) {
      return comm.pending > 0 ? kNcclInProgress : kNcclSuccess;
    });
  };
  const auto end = [](NcclComm handle, bool abort) {
    return with(handle, abort ? "comm_abort" : "comm_destroy", [abort](Comm& comm) {
      if (!abort && comm.pending > 0) {
        return self().complain(kNcclInvalidUsage, "comm_destroy before the work has ended");
      }
      if (!abort && !comm.registered.empty()) {
        return self().complain(kNcclInvalidUsage, "comm_destroy before comm_deregister");
      }
      self().registered_ -= static_cast<int>(comm.registered.size());
      comm.aborted = true;
      comm.destroyed = true;
      --self().alive_;
      self().changed_.notify_all();
      return kNcclSuccess;
    });
  };
  static const auto end_of = end;
  api_.comm_destroy = [](NcclComm comm) { return end_of(comm, false); };
  api_.comm_abort = [](NcclComm comm) { return end_of(comm, true); };
  api_.comm_register = [](NcclComm handle, void* buffer, std::size_t, void** registration) {
    return with(handle, "comm_register", [=](Comm& comm) {
      comm.registered.insert(buffer);
      ++self().registered_;
      *registration = buffer;
      return kNcclSuccess;
    });
  };
  api_.comm_deregister = [](NcclComm handle, void* registration) {
    return with(handle, "comm_deregister", [registration](Comm& comm) {
      if (comm.registered.erase(registration) == 0) {
        return self().complain(kNcclInvalidArgument, "comm_deregister of what is not registered");
      }
      --self().registered_;
      return kNcclSuccess;
    });
  };
  api_.allocate = [](void** memory, std::size_t bytes) {
    CudaAddress address = 0;
    const CudaResult result = self().cuda_.driver().allocate(&address, bytes);
    *memory = reinterpret_cast<void*>(address);
    return result == kCudaSuccess ? kNcclSuccess : 1;
  };
  api_.release = [](void* memory) {
    const auto address = reinterpret_cast<CudaAddress>(memory);
    return self().cuda_.driver().release(address) == kCudaSuccess ? kNcclSuccess : 1;
  };
  api_.error_string = [](NcclResult) { return "a fake's error"; };
  api_.last_error = [](NcclComm) { return ""; };
  api_.group_start = [] { return ++group().depth, kNcclSuccess; };
  api_.group_end = [] { return self().close_group(); };
}

}  // namespace aiacc
