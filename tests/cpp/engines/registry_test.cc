#include "csrc/engines/registry.h"

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "csrc/engines/local/local_engine.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

TEST(RegistryTest, EveryEngineSaysWhatItIsOrWhyNot) {
  for (const EngineEntry<Engine>& entry : engine_registry()) {
    EXPECT_FALSE(entry.viability().detail.empty()) << entry.name;
    EXPECT_EQ(&entry, &find_engine(entry.name));
  }
  for (const EngineEntry<DeviceEngine>& entry : device_engine_registry()) {
    EXPECT_FALSE(entry.viability().detail.empty()) << entry.name;
  }
}

TEST(RegistryTest, CreatesByName) {
  for (const std::string name : {"local", "shm", "tcp", "hierarchical"}) {
    EXPECT_EQ(name, create_engine(name, EngineContext{})->name());
  }
}

TEST(RegistryTest, UnknownNameListsTheKnown) {
  expect_error(status_of([] { find_engine("gloo"); }),
               Code::kInvalidArgument,
               {"local, shm, tcp, hierarchical, mpi, hierarchical-mpi)"});
  expect_error(status_of([] { create_device_engine("tcp", EngineContext{}, 1); }),
               Code::kInvalidArgument,
               {"nccl, hierarchical, hierarchical-tcp or "});
}

/// Of both kinds: `create(name)` makes the engine of an entry.
template <class Entries, class Create>
void expect_reasons(const Entries& entries, Create create) {
  for (const auto& entry : entries) {
    const Viability viability = entry.viability();
    if (!viability.viable) {
      expect_error(status_of([&] { create(entry.name); }), Code::kEngine, {viability.detail});
    }
  }
}

TEST(RegistryTest, AnEngineThatCannotRunSaysWhy) {
  expect_reasons(engine_registry(),
                 [](const std::string& name) { create_engine(name, EngineContext{}); });
  expect_reasons(device_engine_registry(),
                 [](const std::string& name) { create_device_engine(name, EngineContext{}, 1); });
}

TEST(LocalEngineTest, RefusesMoreThanOneRank) {
  EngineContext context;
  context.size = 2;
  EXPECT_THROW(LocalEngine{context}, Error);
}

TEST(LocalEngineTest, StaysAbortedAloneAmongItsSplits) {
  LocalEngine engine{EngineContext()};
  const std::unique_ptr<Engine> part = engine.split({0}, 3);
  part->abort(Status(Code::kPeerLost, "first"));
  part->abort(Status(Code::kInternal, "second"));
  float value = 1;
  const Status status = status_of([&] { part->broadcast(0, &value, sizeof value, 0); });
  EXPECT_EQ(Code::kPeerLost, status.code());
  EXPECT_EQ("first", status.message());
  engine.broadcast(0, &value, sizeof value, 0);
}

}  // namespace
}  // namespace aiacc
