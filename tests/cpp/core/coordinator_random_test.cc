#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "csrc/engines/hierarchical/hierarchical_device_engine.h"
#include "csrc/engines/hierarchical/hierarchical_engine.h"
#include "csrc/engines/shm/shm_engine.h"
#include "csrc/engines/tcp/tcp_engine.h"
#include "tests/cpp/core/random_program.h"
#include "tests/cpp/core/submitted_step.h"
#include "tests/cpp/support/submitter.h"

namespace aiacc {
namespace {

/// Where one thread of a rank submits: in host memory, and on one GPU or two.
struct Hands {
  Hands(FakeCuda& cuda, RankParts& parts, int first_gpu, int gpus) : host(cuda, parts, -1) {
    if (gpus > 0) {
      first.emplace(cuda, parts, first_gpu);
    }
    if (gpus > 1) {
      second.emplace(cuda, parts, first_gpu + 1);
    }
  }
  Submitter& on_gpu(std::size_t which) { return which % 2 == 0 || !second ? *first : *second; }

  Submitter host;
  std::optional<Submitter> first;
  std::optional<Submitter> second;
};

/// What one rank does of a program.
class RankRun {
 public:
  RankRun(const Program& program,
          int rank,
          RankParts& parts,
          FakeCuda& cuda,
          int gpus,
          std::uint32_t seed)
      : program_(program),
        rank_(rank),
        parts_(parts),
        coordinator_(*parts.coordinator),
        cuda_(cuda),
        gpus_(gpus),
        random_(seed * 100 + static_cast<std::uint32_t>(rank)),
        proposal_(parameters()) {}

  /// All iterations; the error with which the job ended before.
  Status run(int leaves_in = -1) {
    for (int i = 0; i < program_.iterations && fatal().ok(); ++i) {
      iteration_ = static_cast<std::size_t>(i);
      leaves_ = i == leaves_in;
      note(status_of([&] { iterate(); }));
    }
    return fatal();
  }

 private:
  using List = std::vector<std::pair<const Step*, std::unique_ptr<SubmittedStep>>>;

  Parameters parameters() const {
    Parameters parameters;
    parameters.unit_bytes = coordinator_.stats().unit_bytes;
    parameters.gpu_unit_bytes = parameters.unit_bytes;
    return parameters;
  }

  void iterate() {
    Hands hands = make_hands();
    add_sets();
    List lonely;
    List late;
    std::vector<const Step*> mine;
    for (const Step& step : program_.steps) {
      const std::vector<int>& members = program_.members_of(step);
      if (step.lonely && members.front() == rank_) {
        submit(step, hands, lonely);
      } else if (!step.lonely && index_in(members, rank_) >= 0) {
        mine.push_back(&step);
      }
    }
    note(status_of([&] { submit_all(std::move(mine), hands, late); }));
    if (leaves_) {
      coordinator_.shutdown();
    }
    note(status_of([&] { remove_sets(false); }));
    finish(late, hands, random_);
    note(status_of([&] { remove_sets(true); }));
    finish(lonely, hands, random_);
    if (fatal().ok()) {
      join_at_last(hands);
    }
    if (fatal().ok()) {
      barrier(coordinator_, "all have left");
      EXPECT_EQ(std::vector<std::uint32_t>{0}, coordinator_.communicators().ids());
    }
  }

  /// In one of several ways; leaves what is not awaited yet in `late`.
  void submit_all(std::vector<const Step*> mine, Hands& hands, List& late) {
    const auto way = random_() % 4;
    if (way == 0) {  // one after the other, in an order that is that of all who do so
      for (const Step* step : mine) {
        List one;
        submit(*step, hands, one);
        finish(one, hands, random_);
      }
    } else if (way == 1) {  // the sets are removed before their operations are awaited
      std::shuffle(mine.begin(), mine.end(), random_);
      for (const Step* step : mine) {
        submit(*step, hands, late);
      }
    } else {
      run_threads(mine, 1 + random_() % 3);
    }
  }

  Hands make_hands() { return {cuda_, parts_, rank_ * gpus_, gpus_}; }

  void add_sets() {
    ids_ = {0};
    for (std::size_t i = 1; i < program_.sets.size(); ++i) {
      const SetOfRanks& set = program_.sets[i];
      const bool member = index_in(set.ranks, rank_) >= 0;
      std::vector<int> ranks = set.ranks;
      std::shuffle(ranks.begin(), ranks.end(), random_);
      ids_.push_back(!set.formed ? coordinator_.add_process_set(ranks)
                     : member    ? coordinator_.form_process_set(std::to_string(i), ranks)
                                 : 0);
    }
  }
  /// What all have added goes though its operations are under way; what was formed goes later.
  void remove_sets(bool formed) {
    for (std::size_t i = 1; i < program_.sets.size(); ++i) {
      if (program_.sets[i].formed != formed) {
        continue;
      }
      if (!formed) {
        EXPECT_TRUE(coordinator_.remove_process_set(ids_[i]));
        EXPECT_FALSE(coordinator_.remove_process_set(ids_[i])) << "twice";
      } else if (ids_[i] != 0) {
        coordinator_.leave_process_set(ids_[i]);
      }
    }
  }

  /// In the middle of a job the last tensor moves to another GPU, on one rank alone.
  Submitter& hand_for(const Step& step, Hands& hands) const {
    const auto index = static_cast<std::size_t>(&step - program_.steps.data());
    const bool moved = index + 1 == program_.steps.size() && rank_ == 0 && iteration_ > 0;
    return step.on_gpu ? hands.on_gpu(index + (moved ? 1 : 0)) : hands.host;
  }
  void submit(const Step& step, Hands& hands, List& list) {
    list.emplace_back(
        &step,
        std::make_unique<SubmittedStep>(
            program_, step, rank_, ids_[step.set], coordinator_, hand_for(step, hands)));
  }
  void finish(List& list, Hands& hands, std::mt19937& random) {
    std::shuffle(list.begin(), list.end(), random);
    for (const auto& [step, submitted] : list) {
      note(submitted->finish(hand_for(*step, hands), random));
    }
  }

  /// Each thread submits all of its share before it waits; nobody else waits for the thread.
  void run_threads(const std::vector<const Step*>& steps, std::size_t number) {
    std::vector<std::vector<const Step*>> shares(number);
    for (const Step* step : steps) {
      shares[random_() % number].push_back(step);
    }
    std::vector<std::thread> threads;
    for (const auto& share : shares) {
      threads.emplace_back([&, seed = static_cast<std::uint32_t>(random_())] {
        note(status_of([&] { run_share(share, seed); }));
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  void run_share(std::vector<const Step*> share, std::uint32_t seed) {
    std::mt19937 random(seed);
    Hands hands = make_hands();
    List submitted;
    std::shuffle(share.begin(), share.end(), random);
    for (const Step* step : share) {
      if (!note(status_of([&] { submit(*step, hands, submitted); })).ok()) {
        break;
      }
      if (random() % 8 == 0) {
        coordinator_.flush();
      } else if (random() % 8 == 0) {
        Parameters other = proposal_;
        other.unit_bytes = 256 + random() % 5000;
        coordinator_.propose(other);
      }
    }
    finish(submitted, hands, random);
  }

  /// Steps that a rank does before it joins: not all do as many.
  std::size_t steps_of(int rank) const {
    return (static_cast<std::size_t>(rank) * 3 + iteration_ + program_.steps.size()) % 4;
  }

  /// What the others do when this rank has joined it answers with zeros.
  void join_at_last(Hands& hands) {
    const std::size_t mine = steps_of(rank_);
    std::size_t most = 0;
    for (int rank = 0; rank < program_.size; ++rank) {
      most = std::max(most, steps_of(rank));
    }
    std::int64_t last = -1;
    for (std::size_t step = 0; step < mine && fatal().ok(); ++step) {
      float given = 0;
      int taking_part = 0;
      for (int rank = 0; rank < program_.size; ++rank) {
        given += steps_of(rank) > step ? static_cast<float>(rank + 1) : 0.0F;
        taking_part += steps_of(rank) > step ? 1 : 0;
      }
      check_unsupported(taking_part < program_.size);
      last = std::max(last, join_or_step(hands, given, step + 1 == mine && rank_ % 2 == 1));
    }
    if (!fatal().ok()) {
      return;
    }
    last = last < 0 ? join(coordinator_) : last;
    EXPECT_EQ(most, steps_of(static_cast<int>(last)));
    EXPECT_EQ(static_cast<float>(program_.size) * static_cast<float>(last),
              sum(coordinator_, "", static_cast<float>(last)))
        << "automatic names fit again, and all know the same last rank";
  }

  /// A step whose sums are those of `given`; -1, or the last rank if it joins in the middle.
  std::int64_t join_or_step(Hands& hands, float given, bool joins) {
    static constexpr std::pair<const char*, std::size_t> kForms[] = {
        {"", 5000}, {"average", 1}, {"narrow", 5000}, {"gpu", 3}, {"large on gpu", 9000}};
    std::vector<std::vector<float>> values;
    std::vector<std::pair<Submitter*, Handle>> handles;
    std::int64_t last = -1;
    note(status_of([&] {
      for (const auto& [form, count] : kForms) {
        const std::string name = form;
        Request request = make_request(name);
        request.op = name == "average" ? ReduceOp::kAverage : ReduceOp::kSum;
        if (name == "narrow") {
          request.wire = iteration_ % 2 == 0 ? WireFormat::kFloat16 : WireFormat::kBFloat16;
        }
        const bool on_gpu = gpus_ > 0 && name.find("gpu") != std::string::npos;
        Submitter& submitter = on_gpu ? hands.on_gpu(iteration_ + count) : hands.host;
        values.emplace_back(count, static_cast<float>(rank_ + 1));
        handles.emplace_back(&submitter, submitter.submit(request, values.back()));
      }
      last = joins ? join(coordinator_) : -1;  // its share is under way: that is not zero
    }));
    for (std::size_t i = 0; i < handles.size(); ++i) {
      const auto [submitter, handle] = handles[i];
      if (note(status_of([&, to = submitter, of = handle] { to->finish(of); })).ok()) {
        const std::string name = kForms[i].first;
        const float parts = name == "average" ? static_cast<float>(program_.size) : 1;
        EXPECT_EQ(std::vector<float>(values[i].size(), given / parts), values[i]) << name;
      }
    }
    return last;
  }

  void check_unsupported(bool somebody_has_joined) {
    for (const OpKind kind : {OpKind::kAllgather, OpKind::kBroadcast, OpKind::kBarrier}) {
      Request request = make_request("", kind, {1});
      if (kind == OpKind::kBarrier) {
        request.tensors[0].shape.clear();
      }
      float value = 1;
      void* output = kind == OpKind::kBroadcast ? &value : nullptr;
      const Status status = status_of([&] {
        aiacc::finish(coordinator_, aiacc::submit(coordinator_, request, &value, output));
      });
      if (status.code() == Code::kMismatch) {
        EXPECT_TRUE(somebody_has_joined) << status.message();
        expect_error(status, Code::kMismatch, {"has joined and cannot take part"});
      } else if (!note(status).ok()) {
        throw Error(status);
      } else {
        EXPECT_FALSE(somebody_has_joined) << name_of(kind);
      }
    }
  }

  Status fatal() {
    const std::lock_guard lock(mutex_);
    return fatal_;
  }
  /// Remembers the first error.
  Status note(const Status& status) {
    const std::lock_guard lock(mutex_);
    fatal_ = fatal_.ok() ? status : fatal_;
    return status;
  }

  const Program& program_;
  const int rank_;
  RankParts& parts_;
  Coordinator& coordinator_;
  FakeCuda& cuda_;
  const int gpus_;
  std::mt19937 random_;
  const Parameters proposal_;
  bool leaves_ = false;  ///< in the middle of this iteration
  std::size_t iteration_ = 0;
  std::vector<std::uint32_t> ids_;  ///< of the program's sets; 0 of those without this rank
  std::mutex mutex_;
  Status fatal_;
};

/// Where a program runs.
struct Bed {
  const char* name;
  int size;
  Transport transport = Transport::kFake;
  Place place = Place::kHost;
  int gpus_each = 0;
  std::vector<int> hosts = {};  ///< of the ranks: sockets between them, shared memory inside
  bool one_order = false;  ///< a GPU runs one operation at a time, so no two sets may meet there
};

CoordinatorWorld world_of(const Bed& bed, NcclWorld& gpus, std::uint32_t seed) {
  std::mt19937 random(seed);
  static constexpr std::uint64_t kUnits[] = {256, 1000, 4096, 1 << 20};
  static constexpr std::size_t kCapacities[] = {0, 2, 4096};
  CoordinatorWorld world(bed.size, bed.transport);
  world.lanes = 1 + static_cast<int>(random() % 4);
  world.options.parameters.lanes = 1 + random() % static_cast<std::uint32_t>(world.lanes);
  world.options.parameters.unit_bytes = kUnits[random() % std::size(kUnits)];
  world.options.cache_capacity = kCapacities[random() % std::size(kCapacities)];
  if (random() % 3 == 0) {
    world.options.linger = std::chrono::hours(1);
  }
  if (bed.hosts.empty()) {
    return world;
  }
  if (bed.place == Place::kNccl) {
    // The planner's lanes are those of the engine for host memory, which may be more.
    world.gpu = [&bed, &gpus](int rank) {
      EngineContext context = gpus.context(rank, 3);
      context.host_of = bed.hosts;
      HostEngineFactory between;
      if (bed.transport != Transport::kFake) {
        between = [](const EngineContext& job) { return std::make_unique<TcpEngine>(job); };
      }
      return create_hierarchical_device_engine(gpus.engine(rank, 2), context, between);
    };
  } else {
    world.make_engine = [&bed](int, EngineContext* context, const std::shared_ptr<FakeHub>&) {
      context->host_of = bed.hosts;
      return bed.hosts.back() == 0 ? std::make_unique<ShmEngine>(*context)
                                   : create_hierarchical_engine(*context);
    };
  }
  return world;
}

struct Fault {
  const char* name;
  Status status;  ///< with which the job ends
  int programs;
};

class CoordinatorFaultTest : public testing::TestWithParam<Fault> {};

/// Programs during which an engine fails at some operation, or a rank leaves. What was done until
/// then is right, everything else fails with the same error on every rank.
TEST_P(CoordinatorFaultTest, TheJobEndsAlikeOnAllRanks) {
  const Status& fault = GetParam().status;
  for (int i = 0; i < GetParam().programs; ++i) {
    const auto seed = static_cast<std::uint32_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Bed bed{"", 3};
    Program program(bed.size, {}, seed);
    program.iterations = 100;
    program.fails = true;
    NcclWorld gpus(bed.size);
    CoordinatorWorld world = world_of(bed, gpus, seed);
    std::atomic<int> left{i};
    const bool of_engine = fault.code() != Code::kShutdown;
    if (of_engine) {
      world.before = [&](int rank, int, std::size_t) {
        if (rank == 1 && left.fetch_sub(1) <= 0) {
          throw Error(fault);
        }
      };
    }
    with_gpus(gpus, bed.place, world, 1, [&](int rank, RankParts& parts) {
      RankRun run(program, rank, parts, gpus.cuda, 0, seed);
      const Status status = run.run(rank == 1 && !of_engine ? i % 4 : -1);
      expect_error(status, fault.code(), {fault.message()});
      EXPECT_EQ(status.message(),
                status_of([&] { sum(*parts.coordinator, "later", 1); }).message());
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Faults,
    CoordinatorFaultTest,
    testing::Values(Fault{"Engine", {Code::kEngine, "[test] the network card is on fire"}, 20},
                    Fault{"LostPeer", {Code::kPeerLost, "[test] rank 2 closed the connection"}, 4},
                    Fault{"Shutdown", {Code::kShutdown, "[core] rank 1 has shut down"}, 20}),
    [](const auto& test) { return std::string(test.param.name); });

class CoordinatorRandomTest : public testing::TestWithParam<Bed> {};

#ifdef __SANITIZE_THREAD__  // where each access is slow
constexpr int kRanksInAll = 8;
#else
constexpr int kRanksInAll = 24;
#endif

TEST_P(CoordinatorRandomTest, EveryProgramEndsWithTheRightResults) {
  const Bed& bed = GetParam();
  for (int i = 0; i < kRanksInAll / bed.size; ++i) {
    const auto seed = static_cast<std::uint32_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Abilities abilities;
    abilities.gpus = bed.place != Place::kHost;
    abilities.wires_on_gpus = bed.place == Place::kNccl && bed.hosts.empty();
    abilities.several_sets = !bed.one_order;
    abilities.hosts = bed.place == Place::kHost ? bed.hosts : std::vector<int>();
    const Program program(bed.size, abilities, seed);
    NcclWorld gpus(bed.size, kNcclHeaderVersion, std::max(bed.gpus_each, 1));
    if (bed.one_order) {
      gpus.nccl.set_resident(1);
    }
    CoordinatorWorld world = world_of(bed, gpus, seed);
    world.options.patience = std::chrono::hours(1);  // who leaves out a round that it is in hangs
    with_gpus(gpus, bed.place, world, 2, [&](int rank, RankParts& parts) {
      RankRun run(program, rank, parts, gpus.cuda, bed.gpus_each, seed);
      const Status status = run.run();
      EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.message();
    });
    for (int gpu = 0; bed.one_order && gpu < bed.size * bed.gpus_each; ++gpu) {
      EXPECT_GE(1U, gpus.nccl.issuing_threads(gpu));
      EXPECT_TRUE(bed.gpus_each > 1 || gpus.nccl.issued(0) == gpus.nccl.issued(gpu));
    }
    if (HasFailure()) {
      return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Beds,
    CoordinatorRandomTest,
    testing::Values(Bed{"Fake1", 1},
                    Bed{"Fake2", 2},
                    Bed{"Fake4", 4},
                    Bed{"Fake7", 7},
                    Bed{"Host2", 2, Transport::kHost},
                    Bed{"Tcp4", 4, Transport::kTcp},
                    Bed{"Hosts7", 7, Transport::kHosts},
                    Bed{"SharedMemory3", 3, Transport::kHost, Place::kHost, 0, {0, 0, 0}},
                    Bed{"Hosts4", 4, Transport::kHosts, Place::kHost, 0, {0, 0, 1, 1}},
                    Bed{"Staged2", 2, Transport::kFake, Place::kStaged, 1},
                    Bed{"Staged3", 3, Transport::kTcp, Place::kStaged, 1},
                    Bed{"StagedTwoGpus2", 2, Transport::kFake, Place::kStaged, 2},
                    Bed{"Nccl1", 1, Transport::kFake, Place::kNccl, 1},
                    Bed{"Nccl2", 2, Transport::kFake, Place::kNccl, 1},
                    Bed{"Nccl4", 4, Transport::kFake, Place::kNccl, 1},
                    Bed{"NcclOneOrder3", 3, Transport::kFake, Place::kNccl, 1, {}, true},
                    Bed{"NcclTwoGpus2", 2, Transport::kFake, Place::kNccl, 2},
                    Bed{"NcclTwoGpus3", 3, Transport::kFake, Place::kNccl, 2, {}, true},
                    Bed{"NcclHosts4", 4, Transport::kFake, Place::kNccl, 1, {0, 0, 1, 1}},
                    Bed{"NcclHostsTcp3", 3, Transport::kTcp, Place::kNccl, 1, {0, 0, 1}}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace aiacc
