#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "csrc/engines/nccl/nccl_api.h"
#include "tests/cpp/support/fakes/fake_cuda.h"

namespace aiacc {

/// NCCL without GPU: ranks are threads of one process, each with a device of its FakeCuda, and what
/// they issue meets on the streams. One at a time in a process.
///
/// Like NCCL it lets ranks wait for each other for ever if they issue different things on a
/// communicator, or the same in different orders if devices run few of them at a time; unlike it,
/// it counts misuse: different calls that meet, a communicator that two threads use at once, a
/// group of calls that is not closed. Sends and receives need a group, and all ranks take part in
/// it. Communicators do not block.
class FakeNccl {
 public:
  explicit FakeNccl(FakeCuda& cuda, int version = kNcclHeaderVersion);
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  const NcclApi& api() const { return api_; }

  /// How many operations a device runs at a time, in the order in which they were issued to it.
  void set_resident(int operations) { resident_ = operations; }
  /// Answers of `comm_async_error` that are kNcclInProgress, after everything that may take time.
  void set_polls(int polls) { polls_ = polls; }
  /// What `comm_async_error` says of all communicators from now on.
  void break_all_with(NcclResult error);

  /// Communicators that a device's rank issued to, in order, numbered by the creation of their ids.
  std::vector<int> issued(int device);
  /// Threads that have issued to a device.
  std::size_t issuing_threads(int device);
  /// Calls, and groups of them, of all ranks: as often NCCL makes a thread if communicators do not
  /// block.
  int launches() const { return launches_; }
  /// How often the state of a communicator was asked for.
  int questions() const { return questions_; }
  /// All-reduces that were told to prefer an algorithm.
  int preferred(const std::string& algorithm);
  int communicators() const { return alive_; }
  int registrations() const { return registered_; }
  int misuses() const { return misuses_; }
  std::string complaint();  ///< about the first misuse

 private:
  struct Call {
    std::string what;  ///< equal on all ranks that meet
    const void* send = nullptr;
    void* recv = nullptr;
    std::size_t count = 0;
    NcclDataType dtype = kNcclFloat32;
    NcclRedOp op = kNcclSum;
    int root = 0;
    struct Message {
      void* buffer;
      std::size_t bytes;
      int peer;
    };
    std::vector<Message> sends = {};
    std::vector<Message> receives = {};
  };
  struct Meeting {
    std::vector<std::optional<Call>> calls;
    int arrived = 0;
    int left = 0;
    bool done = false;
  };
  struct World;
  struct Comm {
    World* world = nullptr;
    int rank = 0;
    int device = 0;
    std::uint64_t next = 0;
    NcclResult error = kNcclSuccess;
    int polls = 0;
    bool aborted = false;
    bool destroyed = false;
    int pending = 0;
    std::set<void*> registered;
  };
  struct World {
    int number = 0;
    int size = 0;
    int joined = 0;
    std::vector<Comm*> members;
    std::map<std::uint64_t, Meeting> meetings;
  };
  struct Device {
    std::uint64_t issued = 0;
    std::set<std::uint64_t> unfinished;
    std::vector<int> worlds;
    std::set<std::thread::id> threads;
  };
  /// What a thread has issued since group_start.
  struct Group {
    int depth = 0;
    struct Entry {
      Comm* comm;
      CudaStream stream;
      Call call;
    };
    std::vector<Entry> entries;
  };

  static FakeNccl& self();
  static Group& group();
  void fill_table();
  void fill_collectives();
  Comm* find(NcclComm comm);
  /// What `use` makes, with the lock held, of a communicator; misuse of `call` if there is none.
  template <class Use>
  static NcclResult with(NcclComm handle, const char* call, Use use) {
    const std::lock_guard lock(self().mutex_);
    Comm* const found = self().find(handle);
    return found != nullptr
               ? use(*found)
               : self().complain(kNcclInvalidArgument, std::string(call) + " of no communicator");
  }
  NcclResult complain(NcclResult result, const std::string& what);
  NcclResult init(NcclComm* out, int ranks, const NcclUniqueId& id, int rank, NcclConfig* config);
  NcclResult issue(NcclComm comm, CudaStream stream, Call call);
  NcclResult issue_reduction(NcclComm comm, CudaStream stream, const std::string& kind, Call call);
  NcclResult close_group();
  NcclResult launch(Comm& comm, CudaStream stream, Call call);
  void meet(Comm& comm, std::uint64_t number, std::uint64_t ticket, const Call& call);
  void perform(World& world, Meeting& meeting);
  static void reduce_all(const Meeting& meeting, std::size_t offset, std::size_t count, void* out);
  static void exchange(const Meeting& meeting);

  FakeCuda& cuda_;
  NcclApi api_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, std::unique_ptr<World>> worlds_;
  std::vector<std::unique_ptr<Comm>> comms_;
  std::map<int, Device> devices_;
  std::map<std::string, int> preferred_;
  int ids_ = 0;
  std::atomic<int> resident_{1 << 20};
  std::atomic<int> polls_{0};
  bool ending_ = false;
  std::string complaint_;
  std::atomic<int> alive_{0};
  std::atomic<int> registered_{0};
  std::atomic<int> misuses_{0};
  std::atomic<int> questions_{0};
  std::atomic<int> launches_{0};
};

}  // namespace aiacc
