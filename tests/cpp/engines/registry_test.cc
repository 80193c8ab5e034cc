#include "csrc/engines/registry.h"

#include <string>

#include <gtest/gtest.h>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

TEST(RegistryTest, EveryEngineSaysWhatItIsOrWhyNot) {
  for (const EngineEntry& entry : engine_registry()) {
    EXPECT_FALSE(entry.viability().detail.empty()) << entry.name;
    EXPECT_EQ(&entry, &find_engine(entry.name));
  }
}

TEST(RegistryTest, CreatesByName) {
  for (const std::string name : {"local", "tcp", "hierarchical"}) {
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
              std::string(error.what()).find("local, tcp, hierarchical, mpi, nccl"))
        << error.what();
  }
}

TEST(RegistryTest, AnEngineThatCannotRunSaysWhy) {
  for (const EngineEntry& entry : engine_registry()) {
    const Viability viability = entry.viability();
    if (viability.viable) {
      continue;
    }
    try {
      create_engine(entry.name, EngineContext{});
      FAIL() << entry.name;
    } catch (const Error& error) {
      EXPECT_EQ(Code::kEngine, error.code());
      EXPECT_NE(std::string::npos, std::string(error.what()).find(viability.detail));
    }
  }
}

}  // namespace
}  // namespace aiacc
