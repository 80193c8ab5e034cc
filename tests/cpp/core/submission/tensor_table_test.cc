#include "csrc/core/submission/tensor_table.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

const Status kGone(Code::kPeerLost, "[test] rank 3 is gone");

Handle submit(TensorTable& table, const std::string& name, OpKind kind = OpKind::kAllreduce) {
  auto operation = table.acquire();
  operation->request = make_request(name, kind, {4});
  std::uint64_t queued = 0;
  bool first = false;
  return table.submit(std::move(operation), queued, first);
}

std::vector<Operation*> drain(TensorTable& table) {
  std::vector<Operation*> out;
  table.drain(out);
  return out;
}

Code code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kOk;
}

TEST(TensorTable, CountsWhatIsQueuedAndInFlight) {
  TensorTable table;
  EXPECT_FALSE(table.has_queued());
  std::uint64_t queued = 0;
  bool first = false;
  const auto add = [&](const std::string& name) {
    auto operation = table.acquire();
    operation->request = make_request(name, {10});
    table.submit(std::move(operation), queued, first);
  };
  add("a");
  EXPECT_TRUE(first);
  EXPECT_EQ(queued, 40U);
  add("b");
  EXPECT_FALSE(first);
  EXPECT_EQ(queued, 80U);
  EXPECT_EQ(table.queued_bytes(), 80U);
  EXPECT_EQ(table.in_flight(), 2U);
  const auto drained = drain(table);
  ASSERT_EQ(drained.size(), 2U);
  EXPECT_EQ(drained[0]->request.name, "a");
  EXPECT_FALSE(table.has_queued());
  EXPECT_EQ(table.in_flight(), 2U);
  add("c");
  EXPECT_TRUE(first) << "the queue was empty again";
  table.complete(drained, {});
  EXPECT_EQ(table.in_flight(), 1U);
}

TEST(TensorTable, ANameIsInFlightOnce) {
  TensorTable table;
  const Handle handle = submit(table, "w");
  try {
    submit(table, "w");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("'w'"), std::string::npos);
  }
  EXPECT_EQ(table.in_flight(), 1U);
  table.complete(drain(table), {});
  EXPECT_NE(submit(table, "w"), handle) << "handles are never used again";
}

TEST(TensorTable, NamesThatAreNotGivenAreCountedPerKind) {
  TensorTable table;
  for (const char* expected :
       {"allreduce.noname.0.0", "allreduce.noname.0.1", "broadcast.noname.0.0"}) {
    submit(table, "", std::string(expected)[0] == 'a' ? OpKind::kAllreduce : OpKind::kBroadcast);
    const Operation* operation = drain(table)[0];
    EXPECT_EQ(operation->request.name, expected);
    EXPECT_FALSE(operation->request.cacheable);
  }
  submit(table, "named");
  EXPECT_TRUE(drain(table)[0]->request.cacheable);
}

Operation* submit_in(TensorTable& table, std::uint32_t process_set, OpKind kind) {
  auto operation = table.acquire();
  operation->request = make_request("", kind, {1});
  operation->request.process_set = process_set;
  std::uint64_t queued = 0;
  bool first = false;
  table.submit(std::move(operation), queued, first);
  return drain(table)[0];
}

TEST(TensorTable, EveryProcessSetAndGenerationCountsForItself) {
  TensorTable table;
  EXPECT_EQ(submit_in(table, 0, OpKind::kAlltoall)->request.name, "alltoall.noname.0.0");
  EXPECT_EQ(submit_in(table, 2, OpKind::kAlltoall)->request.name, "alltoall.noname.0.0");
  EXPECT_EQ(submit_in(table, 2, OpKind::kAlltoall)->request.name, "alltoall.noname.0.1");
  table.next_generation();
  EXPECT_EQ(submit_in(table, 2, OpKind::kAlltoall)->request.name, "alltoall.noname.1.0");
  EXPECT_EQ(submit_in(table, 0, OpKind::kJoin)->request.name, "join");
}

/// A rank that adds a set must not wait for one that removes one.
TEST(TensorTable, ChangesOfProcessSetsShareACount) {
  TensorTable table;
  EXPECT_EQ(submit_in(table, 0, OpKind::kAddProcessSet)->request.name, "process_set.noname.0.0");
  EXPECT_EQ(submit_in(table, 0, OpKind::kRemoveProcessSet)->request.name, "process_set.noname.0.1");
}

TEST(TensorTable, ANameIsInFlightOncePerProcessSet) {
  TensorTable table;
  const auto submit_named = [&](std::uint32_t process_set) {
    auto operation = table.acquire();
    operation->request = make_request("w");
    operation->request.process_set = process_set;
    std::uint64_t queued = 0;
    bool first = false;
    table.submit(std::move(operation), queued, first);
  };
  submit_named(0);
  submit_named(1);
  EXPECT_EQ(table.in_flight(), 2U);
  EXPECT_EQ(code_of([&] { submit_named(1); }), Code::kInvalidArgument);
  const auto pending = table.undispatched();
  ASSERT_EQ(pending.size(), 2U);
  EXPECT_EQ(pending[1].name, "w (process set 1)");
  EXPECT_EQ(pending[1].process_set, 1U);
  table.complete(drain(table), {});
  EXPECT_EQ(table.in_flight(), 0U);
  submit_named(1);
}

TEST(TensorTable, AnUnknownHandleIsAnError) {
  TensorTable table;
  EXPECT_EQ(code_of([&] { table.find(1); }), Code::kInvalidArgument);
  const Handle handle = submit(table, "w");
  table.complete(drain(table), {});
  table.release(handle);
  EXPECT_EQ(code_of([&] { table.find(handle); }), Code::kInvalidArgument);
  table.release(handle);  // forgetting twice is harmless
}

TEST(TensorTable, AHandleInFlightCannotBeForgotten) {
  TensorTable table;
  const Handle handle = submit(table, "w");
  EXPECT_EQ(code_of([&] { table.release(handle); }), Code::kInvalidArgument);
  const auto drained = drain(table);
  EXPECT_EQ(drained[0]->request.name, "w") << "the progress thread still works with it";
  table.complete(drained, {});
  table.release(handle);
}

TEST(TensorTable, ResultsArePublishedWithTheirStatus) {
  TensorTable table;
  const Handle good = submit(table, "good");
  const Handle bad = submit(table, "bad");
  const auto drained = drain(table);
  table.complete({drained[0]}, {});
  table.complete({drained[1]}, kGone);
  EXPECT_TRUE(table.wait(*table.find(good), Clock::time_point::max()));
  EXPECT_TRUE(table.find(good)->status.ok());
  EXPECT_EQ(table.find(bad)->status.message(), kGone.message());
}

TEST(TensorTable, WaitKeepsItsDeadline) {
  TensorTable table;
  const Handle handle = submit(table, "w");
  EXPECT_FALSE(table.wait(*table.find(handle), Clock::now()));
}

TEST(TensorTable, CloseFailsEverythingInFlightAndAllThatFollows) {
  TensorTable table;
  const Handle finished = submit(table, "finished");
  table.complete(drain(table), {});
  const Handle drained = submit(table, "drained");
  drain(table);
  const Handle queued = submit(table, "queued");
  EXPECT_TRUE(table.closed().ok());
  table.close(kGone);
  EXPECT_TRUE(table.find(finished)->status.ok());
  for (const Handle handle : {drained, queued}) {
    EXPECT_TRUE(table.find(handle)->done.load());
    EXPECT_EQ(table.find(handle)->status.code(), Code::kPeerLost);
  }
  EXPECT_TRUE(drain(table).empty());
  EXPECT_EQ(table.in_flight(), 0U);
  table.close({Code::kShutdown, "later"});
  EXPECT_EQ(table.closed().code(), Code::kPeerLost) << "the first cause stays";
  EXPECT_EQ(code_of([&] { submit(table, "x"); }), Code::kPeerLost);
}

/// Notes how operations have ended.
class Witness final : public Completion {
 public:
  using Told = std::function<void(const Operation&)>;
  Witness(bool told, Told on_done) : Completion(told), on_done_(std::move(on_done)) {}
  void* allocate(Operation&, std::size_t) noexcept override { return nullptr; }
  void done(Operation& operation) noexcept override { on_done_(operation); }

 private:
  const Told on_done_;
};

Handle submit(TensorTable& table, const std::string& name, bool told, Witness::Told on_done) {
  auto operation = table.acquire();
  operation->request = make_request(name, {4});
  operation->completion = std::make_unique<Witness>(told, std::move(on_done));
  std::uint64_t queued = 0;
  bool first = false;
  return table.submit(std::move(operation), queued, first);
}

TEST(TensorTable, WhoWantsItIsToldOnceAndHasNoHandle) {
  TensorTable table;
  std::vector<std::string> told;
  const auto note = [&](const Operation& operation) {
    EXPECT_TRUE(operation.done.load());
    told.push_back(operation.request.name + " " + operation.status.message());
  };
  const Handle good = submit(table, "good", true, note);
  const Handle waited = submit(table, "waited", false, note);
  const auto drained = drain(table);
  table.complete(drained, {});
  EXPECT_EQ(told, std::vector<std::string>{"good "});
  EXPECT_EQ(code_of([&] { table.find(good); }), Code::kInvalidArgument);
  EXPECT_TRUE(table.find(waited)->done.load());
  const auto recycled = table.acquire();
  EXPECT_EQ(recycled.get(), drained[0]);
  EXPECT_EQ(recycled->completion, nullptr);

  submit(table, "lost", true, note);
  table.close(kGone);
  table.close(kGone);
  EXPECT_EQ(told, (std::vector<std::string>{"good ", "lost " + kGone.message()}));
}

TEST(TensorTable, WhoIsToldMaySubmitTheSameName) {
  TensorTable table;
  Handle again = 0;
  submit(table, "w", true, [&](const Operation&) { again = submit(table, "w"); });
  table.complete(drain(table), {});
  EXPECT_FALSE(table.find(again)->done.load());
  table.close(kGone);
}

TEST(TensorTable, PendingNamesAreThoseThatWereNotDispatched) {
  TensorTable table;
  submit(table, "a");
  submit(table, "b");
  drain(table)[0]->dispatched.store(true);
  const auto pending = table.undispatched();
  ASSERT_EQ(pending.size(), 1U);
  EXPECT_EQ(pending[0].name, "b");
}

TEST(TensorTable, ARecycledOperationIsBlank) {
  TensorTable table;
  const Handle handle = submit(table, "w");
  const auto drained = drain(table);
  drained[0]->first_extents = {1};
  drained[0]->gathered = {1, 2};
  drained[0]->more.resize(2);
  drained[0]->request.more.resize(2);
  drained[0]->request.numbers = {1};
  drained[0]->value = 7;
  drained[0]->dispatched.store(true);
  table.complete(drained, kGone);
  table.release(handle);
  const auto recycled = table.acquire();
  EXPECT_EQ(recycled.get(), drained[0]);
  EXPECT_TRUE(recycled->request.name.empty());
  EXPECT_TRUE(recycled->request.shape.empty());
  EXPECT_TRUE(recycled->first_extents.empty());
  EXPECT_TRUE(recycled->gathered.empty());
  EXPECT_TRUE(recycled->more.empty());
  EXPECT_TRUE(recycled->request.more.empty());
  EXPECT_TRUE(recycled->request.numbers.empty());
  EXPECT_EQ(recycled->value, 0);
  EXPECT_FALSE(recycled->done.load());
  EXPECT_FALSE(recycled->dispatched.load());
  EXPECT_TRUE(recycled->status.ok());
}

TEST(TensorTable, ManyThreadsSubmitAndWaitWhileOneCompletes) {
  constexpr int kThreads = 4;
  constexpr int kEach = 500;
  TensorTable table;
  std::atomic<int> left{kThreads * kEach};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const Handle handle = submit(table, std::to_string(t) + "." + std::to_string(i % 3));
        EXPECT_TRUE(table.wait(*table.find(handle), Clock::time_point::max()));
        table.release(handle);
      }
    });
  }
  std::vector<Operation*> drained;
  while (left.load() > 0) {
    table.drain(drained);
    left.fetch_sub(static_cast<int>(drained.size()));
    table.complete(drained, {});
    if (drained.empty()) {
      std::this_thread::yield();
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(table.in_flight(), 0U);
}

}  // namespace
}  // namespace aiacc
