#include "csrc/engines/registry.h"

#include <string>

#include <gtest/gtest.h>

#include "csrc/base/error.h"

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
  try {
    find_engine("gloo");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(Code::kInvalidArgument, error.code());
    EXPECT_NE(std::string::npos,
              std::string(error.what())
                  .find("local, shm, tcp, hierarchical, mpi, "
                        "hierarchical-mpi)"))
        << error.what();
  }
}

/// Of both kinds: `create(name)` makes the engine of an entry.
template <class Entries, class Create>
void expect_reasons(const Entries& entries, Create create) {
  for (const auto& entry : entries) {
    const Viability viability = entry.viability();
    if (viability.viable) {
      continue;
    }
    try {
      create(entry.name);
      FAIL() << entry.name;
    } catch (const Error& error) {
      EXPECT_EQ(Code::kEngine, error.code());
      EXPECT_NE(std::string::npos, std::string(error.what()).find(viability.detail));
    }
  }
}

TEST(RegistryTest, AnEngineThatCannotRunSaysWhy) {
  expect_reasons(engine_registry(),
                 [](const std::string& name) { create_engine(name, EngineContext{}); });
  expect_reasons(device_engine_registry(),
                 [](const std::string& name) { create_device_engine(name, EngineContext{}, 1); });
}

TEST(RegistryTest, UnknownNameOfAnEngineForGpusListsTheKnown) {
  try {
    create_device_engine("tcp", EngineContext{}, 1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(Code::kInvalidArgument, error.code());
    EXPECT_NE(std::string::npos,
              std::string(error.what()).find("nccl, hierarchical, hierarchical-tcp or "))
        << error.what();
  }
}

}  // namespace
}  // namespace aiacc
