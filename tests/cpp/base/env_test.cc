#include "csrc/base/env.h"

#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

using Variables = std::map<std::string, std::string>;

Config config_of(const Variables& variables) {
  return Config::from([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

/// The text of the error that these variables cause, which must not be empty.
std::string error_of(const Variables& variables) {
  try {
    config_of(variables);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  ADD_FAILURE() << "was accepted";
  return "";
}

TEST(Env, DefaultsWithoutVariables) {
  const Config config = config_of({});
  EXPECT_EQ(config.engine, "auto");
  EXPECT_EQ(config.lanes, 0);
  EXPECT_EQ(config.unit_bytes, 0U);
  EXPECT_EQ(config.rank, -1);
  EXPECT_EQ(config.cross_size, -1);
  EXPECT_EQ(config.addr, "");
  EXPECT_DOUBLE_EQ(config.connect_timeout_s, 30);
  EXPECT_DOUBLE_EQ(config.peer_timeout_s, 4);
  EXPECT_EQ(config.cache_capacity, 4096);
  EXPECT_EQ(config.linger_us, 500);
  EXPECT_EQ(config.spin_us, 50);
  EXPECT_EQ(config.log_level, "warning");
  EXPECT_FALSE(config.timeline_mark_cycles);
  EXPECT_DOUBLE_EQ(config.stall_warn_s, 60);
  EXPECT_DOUBLE_EQ(config.stall_fail_s, 0);
}

TEST(Env, OwnNameWinsOverHorovods) {
  EXPECT_EQ(config_of({{"HOROVOD_RANK", "3"}}).rank, 3);
  EXPECT_EQ(config_of({{"HOROVOD_RANK", "3"}, {"AIACC_RANK", "1"}}).rank, 1);
}

TEST(Env, AlgorithmsForGpus) {
  EXPECT_EQ(config_of({}).gpu_algorithm, "auto");
  EXPECT_EQ(config_of({{"AIACC_GPU_ALGORITHM", "Ring"}}).gpu_algorithm, "ring");
  const std::string text = error_of({{"AIACC_GPU_ALGORITHM", "star"}});
  EXPECT_NE(text.find("AIACC_GPU_ALGORITHM=\"star\" (expected one of auto, ring, tree)"),
            std::string::npos)
      << text;
}

TEST(Env, EmptyCountsAsUnset) {
  EXPECT_EQ(config_of({{"AIACC_LANES", ""}}).lanes, 0);
  EXPECT_EQ(config_of({{"AIACC_LANES", ""}, {"HOROVOD_NUM_NCCL_STREAMS", "5"}}).lanes, 5);
}

TEST(Env, SizesTakeSuffixes) {
  const auto bytes = [](const std::string& value) {
    return config_of({{"AIACC_UNIT_BYTES", value}}).unit_bytes;
  };
  EXPECT_EQ(bytes("4096"), 4096U);
  EXPECT_EQ(bytes("4096B"), 4096U);
  EXPECT_EQ(bytes("64K"), 65536U);
  EXPECT_EQ(bytes("64KiB"), 65536U);
  EXPECT_EQ(bytes("64KB"), 65536U);
  EXPECT_EQ(bytes("1MB"), 1048576U);
  EXPECT_EQ(bytes("3M"), 3145728U);
  EXPECT_EQ(bytes("3mib"), 3145728U);
  EXPECT_EQ(bytes("1GiB"), 1073741824U);
}

TEST(Env, ASizeOfZeroLeavesItToUsAndLessThanTheLeastIsRefused) {
  EXPECT_EQ(config_of({{"AIACC_UNIT_BYTES", "0"}}).unit_bytes, 0U);
  EXPECT_EQ(config_of({{"AIACC_UNIT_BYTES", "256"}}).unit_bytes, 256U);
  try {
    config_of({{"AIACC_UNIT_BYTES", "255"}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string::npos, std::string(error.what()).find("256 .. 1GiB, or 0"))
        << error.what();
  }
  EXPECT_THROW(config_of({{"AIACC_GPU_UNIT_BYTES", "0"}}), Error);
}

TEST(Env, BooleansAndChoicesIgnoreCase) {
  EXPECT_TRUE(config_of({{"HOROVOD_TIMELINE_MARK_CYCLES", "1"}}).timeline_mark_cycles);
  EXPECT_TRUE(config_of({{"AIACC_TIMELINE_MARK_CYCLES", "Yes"}}).timeline_mark_cycles);
  EXPECT_FALSE(config_of({{"AIACC_TIMELINE_MARK_CYCLES", "off"}}).timeline_mark_cycles);
  EXPECT_EQ(config_of({{"AIACC_ENGINE", "TCP"}}).engine, "tcp");
}

TEST(Env, HorovodsDynamicTimelineIsNotAFile) {
  EXPECT_EQ(config_of({{"HOROVOD_TIMELINE", "DYNAMIC"}}).timeline, "");
  EXPECT_EQ(config_of({{"HOROVOD_TIMELINE", "/tmp/t.json"}}).timeline, "/tmp/t.json");
  EXPECT_EQ(config_of({{"AIACC_TIMELINE", "DYNAMIC"}}).timeline, "DYNAMIC");
}

TEST(Env, HorovodsFusionThresholdIsNoUnit) {
  EXPECT_EQ(config_of({{"HOROVOD_FUSION_THRESHOLD", "0"}}).unit_bytes, 0U);
  EXPECT_EQ(config_of({{"HOROVOD_FUSION_THRESHOLD", "134217728"}}).unit_bytes, 0U);
}

TEST(Env, HorovodsSwitchForTheStallCheck) {
  const auto seconds = [](const Variables& variables) { return config_of(variables).stall_warn_s; };
  EXPECT_DOUBLE_EQ(seconds({{"HOROVOD_STALL_CHECK_DISABLE", "1"}}), 0);
  EXPECT_DOUBLE_EQ(seconds({{"HOROVOD_STALL_CHECK_DISABLE", "0"}}), 60);
  EXPECT_DOUBLE_EQ(seconds({{"HOROVOD_STALL_CHECK_DISABLE", ""}}), 60);
  EXPECT_DOUBLE_EQ(
      seconds({{"HOROVOD_STALL_CHECK_DISABLE", "1"}, {"HOROVOD_STALL_CHECK_TIME_SECONDS", "9"}}),
      0);
  EXPECT_DOUBLE_EQ(seconds({{"HOROVOD_STALL_CHECK_DISABLE", "1"}, {"AIACC_STALL_WARN_S", "7"}}), 7);
  const std::string text = error_of({{"HOROVOD_STALL_CHECK_DISABLE", "maybe"}});
  EXPECT_NE(text.find("HOROVOD_STALL_CHECK_DISABLE=\"maybe\""), std::string::npos) << text;
}

TEST(Env, ErrorNamesVariableValueAndExpectation) {
  const std::string text = error_of({{"AIACC_LANES", "many"}});
  EXPECT_NE(text.find("AIACC_LANES=\"many\""), std::string::npos) << text;
  EXPECT_NE(text.find("whole number, 0 .. 64"), std::string::npos) << text;

  const std::string choice = error_of({{"AIACC_ENGINE", "gloo"}});
  EXPECT_NE(choice.find("auto, local, shm, tcp, mpi, hierarchical, hierarchical-mpi"),
            std::string::npos)
      << choice;
}

TEST(Env, ErrorNamesTheAliasThatWasSet) {
  const std::string text = error_of({{"HOROVOD_CACHE_CAPACITY", "(None,)"}});
  EXPECT_NE(text.find("HOROVOD_CACHE_CAPACITY=\"(None,)\""), std::string::npos) << text;
}

TEST(Env, RejectsWhatDoesNotParse) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> bad = {
      {"AIACC_LANES", {"1.5", " 1", "1 ", "0x2", "-1", "65", "99999999999999999999"}},
      {"AIACC_RANK", {"-2", "65536", "one"}},
      {"AIACC_UNIT_BYTES", {"255", "-1", "M", "2 MiB", "2Mbit", "2T", "1025MiB", "1e6"}},
      {"AIACC_PEER_TIMEOUT_S", {"0", "nan", "inf", "-4", "4s", "1,5"}},
      {"AIACC_SPIN_US", {"51", "-1"}},
      {"AIACC_TIMELINE_MARK_CYCLES", {"2", "maybe"}},
      {"AIACC_LOG_LEVEL", {"loud", "warning "}},
  };
  for (const auto& [name, values] : bad) {
    for (const std::string& value : values) {
      EXPECT_NE(error_of({{name, value}}).find(name), std::string::npos) << name << "=" << value;
    }
  }
}

TEST(Env, TextsThatPythonCannotTakeAreRefusedInWordsThatItCan) {
  for (const char* good :
       {"plain", "\xC3\xA9", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(config_of({{"AIACC_TOKEN", good}}).token, good);
  }
  for (const char* bad : {"a\xFF",
                          "\x80",
                          "\xC3",
                          "\xC3z",
                          "\xC1\x81",
                          "\xE0\x9F\x80",
                          "\xED\xA0\x80",
                          "\xF0\x8F\x80\x80",
                          "\xF4\x90\x80\x80",
                          "\xF5\x80\x80\x80"}) {
    const std::string text = error_of({{"AIACC_TOKEN", bad}});
    EXPECT_NE(text.find("expected text in UTF-8"), std::string::npos) << text;
    EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char c) { return c > 0; })) << text;
  }
  EXPECT_NE(error_of({{"AIACC_TOKEN", "a\xFF"}}).find(R"(AIACC_TOKEN="a\xff")"), std::string::npos);
  EXPECT_NE(error_of({{"AIACC_LANES", "\xFF"}}).find(R"(AIACC_LANES="\xff")"), std::string::npos);
}

TEST(Env, TableAndValuesHaveTheSameOrder) {
  const auto rows = environment_table();
  const auto values = values_of(config_of({}));
  ASSERT_EQ(rows.size(), values.size());
  std::set<std::string> names;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::string upper = "AIACC_";
    for (const char c : values[i].first) {
      upper += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
    EXPECT_EQ(upper, rows[i].name);
    EXPECT_TRUE(names.insert(rows[i].name).second) << rows[i].name << " appears twice";
    EXPECT_FALSE(rows[i].meaning.empty()) << rows[i].name;
  }
}

TEST(Env, EveryDefaultParsesWhenGiven) {
  for (const VariableText& row : environment_table()) {
    EXPECT_EQ(values_of(config_of({{row.name, row.default_value}})), values_of(config_of({})))
        << row.name;
  }
}

TEST(Env, TypeTextShowsRange) {
  for (const VariableText& row : environment_table()) {
    if (row.name == "AIACC_UNIT_BYTES") {
      EXPECT_EQ(row.type, "bytes, suffixes K M G (also KB, KiB: 1024 bytes), 256 .. 1GiB, or 0");
    }
    if (row.name == "AIACC_PEER_TIMEOUT_S") {
      EXPECT_EQ(row.type, "number, 0.1 .. 3600");
    }
  }
}

}  // namespace
}  // namespace aiacc
