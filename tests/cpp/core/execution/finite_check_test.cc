#include "csrc/core/execution/finite_check.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/log.h"
#include "csrc/core/coordinator.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/submitter.h"
#include "tests/cpp/support/text.h"

namespace aiacc {
namespace {

TEST(FiniteProblem, NamesTensorRankAndWhat) {
  CheckedUnit unit;
  EXPECT_EQ("", finite_problem({}, {"w", 0, 0, 1}, unit, 3));
  expect_parts(finite_problem({1, 1, 0, 0}, {"w", 2, 0, 1}, unit, 0),
               {"'w (process set 2)': rank 0 gave NaN and infinity ("});
  unit.kind = OpKind::kReducescatter;
  unit.dtype = DataType::kFloat16;
  expect_parts(finite_problem({0, 0, 1, 0}, {"g", 0, 1, 4}, unit, 0),
               {"reducescatter 'g', tensor 1 of 4: rank 0 gave numbers too large for float16"});
}

TEST(FiniteModeFrom, NamesAndOtherWords) {
  EXPECT_EQ(FiniteMode::kOff, finite_mode_from("off"));
  EXPECT_EQ(FiniteMode::kWarn, finite_mode_from("warn"));
  EXPECT_EQ(FiniteMode::kRaise, finite_mode_from("raise"));
  EXPECT_EQ(Code::kInvalidArgument, status_of([] { finite_mode_from("on"); }).code());
}

enum class Layout { kAlone, kPacked, kScattered };

/// What rank 1 gives.
struct Trouble {
  const char* name;
  DataType dtype;
  WireFormat wire;
  double prescale;
  std::uint64_t bits;  ///< of one element; the others are 1
  std::string text;
};

const std::string kGave = "rank 1 gave ";
const Trouble kNan = {
    "Nan", DataType::kFloat32, WireFormat::kTensor, 1, 0xffc00000, kGave + "NaN (float32;"};
const Trouble kInfinity = {
    "Infinity", DataType::kBFloat16, WireFormat::kTensor, 1, 0xff80, kGave + "infinity (bfloat16;"};
const std::string kTooLarge = kGave + "numbers too large for float16 (";
const Trouble kScaled = {
    "Scaled", DataType::kFloat16, WireFormat::kTensor, 2, 0x7800, kTooLarge + "float16;"};
const std::string kOnItsWay = kTooLarge + "float32 on its way as float16;";
const Trouble kNarrowed = {  // 1e6
    "Narrowed",
    DataType::kFloat32,
    WireFormat::kFloat16,
    1,
    0x49742400,
    kOnItsWay};

struct Setting {
  Place place;
  Layout layout;
  Trouble trouble;
};

std::string name_of_setting(const testing::TestParamInfo<Setting>& test) {
  static const char* const places[] = {"Host", "Staged", "Nccl"};
  static const char* const layouts[] = {"Alone", "Packed", "Scattered"};
  return std::string(places[static_cast<int>(test.param.place)]) +
         layouts[static_cast<int>(test.param.layout)] + test.param.trouble.name;
}

/// Two ranks of which rank 1 gives something that is not finite in 'b', whose last element it is.
class FiniteCheckTest : public testing::TestWithParam<Setting> {
 protected:
  static constexpr int kSize = 2;

  /// Tensors of one step and where they lie.
  struct Step {
    std::vector<Request> requests;
    std::vector<std::vector<std::byte>> memory;
    std::vector<std::vector<std::byte>> outputs;
  };

  Step make_step(bool bad) const {
    const Setting& setting = GetParam();
    Step step;
    for (const char* name : {"a", "b", "c"}) {
      const bool packed = setting.layout == Layout::kPacked;
      if (!packed && *name != 'b') {
        continue;
      }
      Request request = make_request(name, {packed ? 6 : 5000});
      request.tensors[0].dtype = setting.trouble.dtype;
      request.wire = setting.trouble.wire;
      request.prescale = setting.trouble.prescale;
      request.kind =
          setting.layout == Layout::kScattered ? OpKind::kReducescatter : OpKind::kAllreduce;
      const std::size_t size = size_of(request.tensors[0].dtype);
      std::vector<std::byte> data(request.tensors[0].bytes());
      const std::uint64_t one = request.tensors[0].dtype == DataType::kFloat16    ? 0x3c00
                                : request.tensors[0].dtype == DataType::kBFloat16 ? 0x3f80
                                                                                  : 0x3f800000;
      for (std::size_t i = 0; i < request.tensors[0].elements(); ++i) {
        const bool last = i + 1 == request.tensors[0].elements();
        std::memcpy(data.data() + i * size,
                    bad && last && *name == 'b' ? &setting.trouble.bits : &one,
                    size);
      }
      step.requests.push_back(std::move(request));
      step.outputs.emplace_back(data.size());
      step.memory.push_back(std::move(data));
    }
    return step;
  }

  /// Submits a step and waits for it; what the wait has thrown. Reduce-scatter writes its part to
  /// the beginning of its output.
  Status run(RankParts& parts, Submitter& submitter, Step& step) {
    return status_of([&] {
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < step.requests.size(); ++i) {
        const bool scatters = step.requests[i].kind == OpKind::kReducescatter;
        std::vector<std::byte>& out = scatters ? step.outputs[i] : step.memory[i];
        handles.push_back(submitter.submit(step.requests[i], step.memory[i].data(), out.data()));
      }
      parts.coordinator->flush();
      for (const Handle handle : handles) {
        submitter.finish(handle);
      }
    });
  }

  template <class Body>
  void with_ranks(FiniteMode mode, Body body) {
    CoordinatorWorld world;
    world.options.check_finite = mode;
    world.options.peer_timeout_s = 0.5;  // how often it looks follows from that
    with_submitters(gpus_, GetParam().place, world, 2, body);
  }

  NcclWorld gpus_{kSize};
};

TEST_P(FiniteCheckTest, RaisesOnEveryRankWithoutAnotherCall) {
  std::atomic<int> failed{0};
  with_ranks(FiniteMode::kRaise, [&](int rank, RankParts& parts, Submitter& gpu) {
    Step good = make_step(false);
    EXPECT_TRUE(run(parts, gpu, good).ok());
    Step bad = make_step(rank == 1);
    Status status = run(parts, gpu, bad);
    if (GetParam().place == Place::kNccl) {  // it was queued; the GPU finds out
      yield_until([&] { return gpus_.nccl.communicators() == 0; });  // until they are aborted
    } else {
      EXPECT_EQ(Code::kNotFinite, status.code());
    }
    await_all(failed, kSize);
    status = fatal_status(*parts.coordinator, "later");
    expect_error(
        status, Code::kNotFinite, {"'b': " + std::string("rank 1 gave"), GetParam().trouble.text});
  });
}

TEST_P(FiniteCheckTest, WarnsOfATensorOnceAndGoesOn) {
  testing::internal::CaptureStderr();
  with_ranks(FiniteMode::kWarn, [&](int rank, RankParts& parts, Submitter& gpu) {
    configure_log(LogLevel::kWarning, -1);
    for (int i = 0; i < 5; ++i) {
      Step step = make_step(rank == 1);
      EXPECT_TRUE(run(parts, gpu, step).ok());
    }
  });
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(1U, occurrences(log, "[finite]")) << log;
  expect_parts(log, {"'b': ", GetParam().trouble.text});
}

/// The next unit in the lane must not take the place of one that is held back: rank 0 would get the
/// sum of its 'b' and the 'c' of rank 1.
TEST(FiniteCheckOnHosts, NothingFollowsWhatIsHeldBack) {
  std::atomic<int> queued{0};
  CoordinatorWorld world;
  world.options.check_finite = FiniteMode::kRaise;
  world.options.parameters = {0, 4096, 1};
  world.before = [&](int, int, std::size_t) {  // so 'a' waits until all are in the lane
    yield_until([&] { return queued.load() >= world.size; });
  };
  with_coordinators(world, [&](int rank, RankParts& parts) {
    std::vector<std::vector<float>> memory;
    std::vector<Handle> handles;
    memory.reserve(4);
    for (const char* name : {"a", "b", "c", "d"}) {
      auto& data = memory.emplace_back(1024, *name == 'b' && rank == 1 ? NAN : 1.0F);
      handles.push_back(submit(*parts.coordinator, make_request(name), data));
    }
    yield_until([&] { return parts.coordinator->stats().units >= handles.size(); });
    ++queued;
    finish(*parts.coordinator, handles.front());
    for (std::size_t i = 1; i < handles.size(); ++i) {
      const Status status = status_of([&] { parts.coordinator->wait(handles[i]); });
      EXPECT_EQ(Code::kNotFinite, status.code());
    }
  });
}

/// More tensors in a unit, and more units on their way, than there is memory for at the start.
TEST(FiniteCheckOnGpus, ManyTensorsAndManyUnits) {
  testing::internal::CaptureStderr();
  NcclWorld gpus(1);
  CoordinatorWorld world;
  world.options.check_finite = FiniteMode::kWarn;
  with_gpus(gpus, world, 2, [&](int, RankParts&, Submitter& gpu) {
    configure_log(LogLevel::kWarning, -1);
    std::vector<float> small(300, 1.0F);
    std::vector<float> large(1024 * 100, 1.0F);
    small[299] = NAN;
    large.back() = -INFINITY;
    gpus.cuda.hold();
    std::vector<Handle> handles = {
        gpu.submit(make_request("large", {1024 * 100}), large.data(), large.data())};
    for (std::size_t i = 0; i < small.size(); ++i) {
      handles.push_back(
          gpu.submit(make_request("small" + std::to_string(i), {1}), &small[i], &small[i]));
    }
    for (const Handle handle : handles) {
      gpu.wait(handle);
    }
    gpus.cuda.release();
    gpu.settle();
  });
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(2U, occurrences(log, "[finite]")) << log;
  expect_parts(log, {"'large': rank 0 gave infinity", "'small299': rank 0 gave NaN"});
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const Place place : {Place::kHost, Place::kStaged, Place::kNccl}) {
    for (const Layout layout : {Layout::kAlone, Layout::kPacked, Layout::kScattered}) {
      for (const Trouble& trouble : {kNan, kInfinity, kScaled}) {
        all.push_back({place, layout, trouble});
      }
    }
  }
  for (const Place place : {Place::kHost, Place::kStaged, Place::kNccl}) {
    all.push_back({place, Layout::kAlone, kNarrowed});
    all.push_back({place, Layout::kPacked, kNarrowed});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, FiniteCheckTest, testing::ValuesIn(settings()), name_of_setting);

}  // namespace
}  // namespace aiacc
