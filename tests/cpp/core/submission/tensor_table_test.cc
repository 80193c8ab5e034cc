#include "csrc/core/submission/tensor_table.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

const Status kGone(Code::kPeerLost, "[test] rank 3 is gone");

Handle submit(TensorTable& table,
              const Request& request,
              std::unique_ptr<Completion> completion = nullptr) {
  auto operation = table.acquire();
  operation->request = request;
  operation->completion = std::move(completion);
  TensorTable::Queued queued;
  return table.submit(std::move(operation), queued);
}

Handle submit(TensorTable& table, const std::string& name, std::uint32_t process_set = 0) {
  Request request = make_request(name);
  request.process_set = process_set;
  return submit(table, request);
}

std::vector<Operation*> drain(TensorTable& table) {
  std::vector<Operation*> out;
  table.drain(out);
  return out;
}

Code code_of(const std::function<void()>& call) { return status_of(call).code(); }

TEST(TensorTable, CountsWhatIsQueuedAndInFlight) {
  TensorTable table;
  EXPECT_FALSE(table.has_queued());
  const auto add = [&](const std::string& name) {
    auto operation = table.acquire();
    operation->request = make_request(name, {10});
    TensorTable::Queued queued;
    table.submit(std::move(operation), queued);
    return std::pair(queued.bytes, queued.first);
  };
  EXPECT_EQ(add("a"), std::pair(std::uint64_t{40}, true));
  EXPECT_EQ(add("b"), std::pair(std::uint64_t{80}, false));
  EXPECT_EQ(table.queued_bytes(), 80U);
  EXPECT_EQ(table.in_flight(), 2U);
  const auto drained = drain(table);
  ASSERT_EQ(drained.size(), 2U);
  EXPECT_EQ(drained[0]->request.name, "a");
  EXPECT_FALSE(table.has_queued());
  EXPECT_EQ(table.in_flight(), 2U);
  EXPECT_EQ(add("c"), std::pair(std::uint64_t{40}, true)) << "the queue was empty again";
  table.complete(drained, {});
  EXPECT_EQ(table.in_flight(), 1U);
}

TEST(TensorTable, ANameIsInFlightOncePerProcessSet) {
  TensorTable table;
  const Handle handle = submit(table, "w");
  submit(table, "w", 1);
  expect_error(
      status_of([&] { submit(table, "w"); }), Code::kInvalidArgument, {"'w' is already in flight"});
  EXPECT_EQ(code_of([&] { submit(table, "w", 1); }), Code::kInvalidArgument);
  EXPECT_EQ(table.in_flight(), 2U);
  ProcessSetTable sets(4);
  EXPECT_EQ(table.undispatched(sets, Clock::now()).size(), 1U) << "the other fails";
  sets.add({1, 3});
  const auto later = Clock::now() + std::chrono::seconds(5);
  const auto pending = table.undispatched(sets, later);
  ASSERT_EQ(pending.size(), 2U);
  EXPECT_EQ(pending[0].awaited, RankSet(0, 3));
  EXPECT_EQ(pending[1].label, "w (process set 1)");
  EXPECT_EQ(pending[1].awaited.ranks(), (std::vector<int>{1, 3}));
  EXPECT_GE(pending[1].waited_ms, 5000U);
  const auto drained = drain(table);
  drained[0]->dispatched.store(true);
  EXPECT_EQ(table.undispatched(sets, later).size(), 1U);
  table.complete(drained, {});
  EXPECT_EQ(table.in_flight(), 0U);
  EXPECT_NE(submit(table, "w"), handle) << "handles are never used again";
  submit(table, "w", 1);
}

TEST(TensorTable, WhatWaitsSaysForWhom) {
  const std::vector<std::pair<OpKind, int>> rows = {
      {OpKind::kFormProcessSet, 0}, {OpKind::kSend, 3}, {OpKind::kReceive, -1}};
  for (const auto& [kind, root] : rows) {
    TensorTable table;
    Request request = make_request("x", kind, {1});
    request.root = root;
    request.numbers = {2, 1};
    submit(table, request);
    const auto pending = table.undispatched(ProcessSetTable(4), Clock::now());
    ASSERT_EQ(pending.size(), 1U);
    EXPECT_EQ(pending[0].awaited, kind == OpKind::kSend ? RankSet(3) : RankSet(1, 2));
    EXPECT_EQ(pending[0].is_message, kind != OpKind::kFormProcessSet);
  }
}

/// Counted for each kind, process set and generation; changes of process sets share a count, since
/// a rank that adds a set must not wait for one that removes one, and so do messages, whose tags
/// may be many.
TEST(TensorTable, NamesThatAreNotGivenAreCounted) {
  TensorTable table;
  const auto name_of = [&](OpKind kind, std::uint32_t process_set, const std::string& name = "") {
    Request request = make_request(name, kind, {1});
    request.process_set = process_set;
    const auto operation = table.find(submit(table, request));
    EXPECT_EQ(operation->request.cacheable, !name.empty());
    return operation->request.name;
  };
  EXPECT_EQ(name_of(OpKind::kAllreduce, 0), "allreduce.noname.0.0");
  EXPECT_EQ(name_of(OpKind::kAllreduce, 0, "named"), "named");
  EXPECT_EQ(name_of(OpKind::kAllreduce, 0), "allreduce.noname.0.1");
  EXPECT_EQ(name_of(OpKind::kBroadcast, 0), "broadcast.noname.0.0");
  EXPECT_EQ(name_of(OpKind::kAlltoall, 0), "alltoall.noname.0.0");
  EXPECT_EQ(name_of(OpKind::kAlltoall, 2), "alltoall.noname.0.0");
  EXPECT_EQ(name_of(OpKind::kAlltoall, 2), "alltoall.noname.0.1");
  EXPECT_EQ(name_of(OpKind::kAddProcessSet, 0), "process_set.noname.0.0");
  EXPECT_EQ(name_of(OpKind::kRemoveProcessSet, 0), "process_set.noname.0.1");
  EXPECT_EQ(name_of(OpKind::kSend, 0), "send.noname.0.0");
  EXPECT_EQ(name_of(OpKind::kReceive, 0), "receive.noname.0.1");
  table.next_generation();
  EXPECT_EQ(name_of(OpKind::kAlltoall, 2), "alltoall.noname.1.0");
  EXPECT_EQ(name_of(OpKind::kJoin, 0), "join");
}

TEST(TensorTable, AHandleInFlightCannotBeForgottenAndOneThatIsUnknownIsAnError) {
  TensorTable table;
  EXPECT_EQ(code_of([&] { table.find(1); }), Code::kInvalidArgument);
  const Handle handle = submit(table, "w");
  EXPECT_EQ(code_of([&] { table.release(handle); }), Code::kInvalidArgument);
  const auto drained = drain(table);
  EXPECT_EQ(drained[0]->request.name, "w") << "the loop thread still works with it";
  table.complete(drained, {});
  table.release(handle);
  EXPECT_EQ(code_of([&] { table.find(handle); }), Code::kInvalidArgument);
  table.release(handle);  // forgetting twice is harmless
}

TEST(TensorTable, ResultsArePublishedWithTheirStatusAndWaitKeepsItsDeadline) {
  TensorTable table;
  const Handle good = submit(table, "good");
  const Handle bad = submit(table, "bad");
  const auto drained = drain(table);
  EXPECT_FALSE(table.wait(*table.find(good), Clock::now()));
  table.complete({drained[0]}, {});
  table.complete({drained[1]}, kGone);
  EXPECT_TRUE(table.wait(*table.find(good), Clock::time_point::max()));
  EXPECT_TRUE(table.find(good)->status.ok());
  EXPECT_EQ(table.find(bad)->status.message(), kGone.message());
}

TEST(TensorTable, CloseFailsEverythingInFlightAndAllThatFollows) {
  TensorTable table;
  const Handle finished = submit(table, "finished");
  table.complete(drain(table), {});
  const Handle drained = submit(table, "drained");
  drain(table);
  const Handle queued = submit(table, "queued");
  table.close(kGone);
  EXPECT_TRUE(table.find(finished)->status.ok());
  for (const Handle handle : {drained, queued}) {
    EXPECT_TRUE(table.find(handle)->done.load());
    EXPECT_EQ(table.find(handle)->status.code(), Code::kPeerLost);
  }
  EXPECT_TRUE(drain(table).empty());
  EXPECT_EQ(table.in_flight(), 0U);
  table.close({Code::kShutdown, "later"});
  EXPECT_EQ(code_of([&] { submit(table, "x"); }), Code::kPeerLost) << "the first cause stays";
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
  return submit(table, make_request(name), std::make_unique<Witness>(told, std::move(on_done)));
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

TEST(TensorTable, ARecycledOperationIsBlank) {
  TensorTable table;
  const Handle handle = submit(table, "w");
  const auto drained = drain(table);
  drained[0]->buffers[0].first_extents = {1};
  drained[0]->buffers[0].gathered = {1, 2};
  drained[0]->buffers.resize(3);
  drained[0]->request.tensors.resize(3);
  drained[0]->request.numbers = {1};
  drained[0]->value = 7;
  drained[0]->dispatched.store(true);
  table.complete(drained, kGone);
  table.release(handle);
  const auto recycled = table.acquire();
  EXPECT_EQ(recycled.get(), drained[0]);
  EXPECT_TRUE(recycled->request.name.empty());
  EXPECT_TRUE(recycled->request.tensors[0].shape.empty());
  EXPECT_TRUE(recycled->buffers[0].first_extents.empty());
  EXPECT_TRUE(recycled->buffers[0].gathered.empty());
  EXPECT_EQ(recycled->buffers.size(), 1U);
  EXPECT_EQ(recycled->request.tensors.size(), 1U);
  EXPECT_TRUE(recycled->request.numbers.empty());
  EXPECT_EQ(recycled->value, 0);
  EXPECT_FALSE(recycled->done.load());
  EXPECT_FALSE(recycled->dispatched.load());
  EXPECT_TRUE(recycled->status.ok());
}

}  // namespace
}  // namespace aiacc
