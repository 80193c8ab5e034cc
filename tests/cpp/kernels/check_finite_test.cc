// What is not finite, or becomes too large on its way: by the check of host memory, and by the
// bodies of the kernels that pack.

#include "csrc/kernels/check_finite.h"

#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/kernels/copy_check.h"
#include "tests/cpp/kernels/placed.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

/// Bits of a floating dtype without sign: numbers in the order of their magnitude.
struct Bits {
  std::uint64_t usual;
  std::uint64_t largest;
  std::uint64_t infinity;
  std::uint64_t nan;  ///< the least one, which signals
  std::uint64_t sign;
};
constexpr std::uint64_t kSubnormal = 1;

Bits bits_of(DataType dtype) {
  const int fraction_bits = dtype == DataType::kFloat16    ? 10
                            : dtype == DataType::kBFloat16 ? 7
                            : dtype == DataType::kFloat32  ? 23
                                                           : 52;
  const std::uint64_t sign = std::uint64_t{1} << (8 * size_of(dtype) - 1);
  const std::uint64_t infinity = sign - (std::uint64_t{1} << fraction_bits);
  return {infinity / 2, infinity - 1, infinity, infinity + 1, sign};
}

const std::vector<DataType>& floats() {
  static const std::vector<DataType> dtypes = {
      DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64};
  return dtypes;
}

/// Elements of a dtype at an address of any alignment.
class Array : public Placed {
 public:
  Array(DataType dtype, std::size_t count, std::size_t offset, std::uint64_t value)
      : Placed(count * size_of(dtype), offset), size_(size_of(dtype)) {
    for (std::size_t i = 0; i < count; ++i) {
      set(i, value);
    }
  }
  void set(std::size_t index, std::uint64_t value) { Placed::set(index, value, size_); }

 private:
  std::size_t size_;
};

using Case = std::tuple<const VectorLevel*, DataType>;

class LargestMagnitude : public testing::TestWithParam<Case> {};

TEST_P(LargestMagnitude, IsFoundAtEveryPlaceOfEveryAlignment) {
  const auto [level, dtype] = GetParam();
  const Bits bits = bits_of(dtype);
  for (const std::size_t count : {1, 2, 3, 15, 16, 17, 63, 65, 130}) {
    for (const std::size_t offset : {0, 1, 5}) {
      Array array(dtype, count, offset, kSubnormal | bits.sign);
      ASSERT_EQ(kSubnormal, level->largest_magnitude(array.data(), count, dtype));
      for (std::size_t i = 0; i < count; ++i) {
        for (const std::uint64_t value : {bits.usual, bits.largest, bits.infinity, bits.nan}) {
          for (const std::uint64_t sign : {std::uint64_t{0}, bits.sign}) {
            array.set(i, value | sign);
            ASSERT_EQ(value, level->largest_magnitude(array.data(), count, dtype))
                << i << " of " << count;
          }
        }
        array.set(i, 0);
      }
      ASSERT_EQ(0U, level->largest_magnitude(array.data(), count, dtype));
    }
  }
  ASSERT_EQ(0U, level->largest_magnitude(nullptr, 0, dtype)) << "of nothing";
}

INSTANTIATE_TEST_SUITE_P(All,
                         LargestMagnitude,
                         testing::Combine(every_level(), testing::ValuesIn(floats())),
                         NameOfCase());

/// "n", "i" or "o" for the worst that a checked copy reports.
std::string met_by_copy(Array& array, std::size_t count, const CopyJob& job) {
  const std::vector<unsigned char> in(array.data(), array.data() + count * size_of(job.dtype));
  std::vector<unsigned char> out(in.size());
  CopyReport report;
  CopyTwin{2}(job, {{in.data(), out.data(), count}}, &report);
  return report.nan != 0 ? "n" : report.infinite != 0 ? "i" : report.overflow != 0 ? "o" : "";
}

/// "n", "i", "o" for what is set in a report. Checked copies have to meet the same; what is coded
/// they do not know, and the check of host memory knows no 8-bit floats.
std::string met(Array& array,
                std::size_t count,
                DataType dtype,
                double factor = 1.0,
                WireFormat wire = WireFormat::kTensor) {
  const CopyJob job = {dtype, wire, CopyDirection::kPack, factor, true};
  if (is_float8(wire)) {
    return met_by_copy(array, count, job);
  }
  const CopyReport report = check_finite(array.data(), count, dtype, factor, wire);
  const std::string found = std::string(report.nan != 0 ? "n" : "") +
                            (report.infinite != 0 ? "i" : "") + (report.overflow != 0 ? "o" : "");
  if (!is_coded(wire)) {
    EXPECT_EQ(found, met_by_copy(array, count, job));
  }
  return found;
}

class CheckFinite : public testing::TestWithParam<DataType> {};

TEST_P(CheckFinite, TellsWhatTheWorstElementIs) {
  const DataType dtype = GetParam();
  const Bits bits = bits_of(dtype);
  Array array(dtype, 40, 1, bits.usual);
  EXPECT_EQ("", met(array, 0, dtype));
  EXPECT_EQ("", met(array, 40, dtype));
  array.set(7, kSubnormal);
  array.set(8, bits.largest | bits.sign);
  EXPECT_EQ("", met(array, 40, dtype));
  array.set(39, bits.infinity | bits.sign);
  EXPECT_EQ("i", met(array, 40, dtype));
  EXPECT_EQ("i", met(array, 40, dtype, 2.0));
  EXPECT_EQ("", met(array, 39, dtype)) << "beyond the end";
  array.set(0, bits.nan);
  EXPECT_EQ("n", met(array, 40, dtype));
}

TEST_P(CheckFinite, TellsWhatScalingMakesTooLarge) {
  const DataType dtype = GetParam();
  const Bits bits = bits_of(dtype);
  Array array(dtype, 9, 0, bits.usual);
  array.set(4, bits.largest | bits.sign);
  EXPECT_EQ("o", met(array, 9, dtype, 2.0));
  EXPECT_EQ("o", met(array, 9, dtype, -2.0));
  EXPECT_EQ("", met(array, 9, dtype, 0.5));
  EXPECT_EQ("", met(array, 9, dtype, 1.0 / 3));
  EXPECT_EQ("", met(array, 9, dtype, 0.0));
  EXPECT_EQ("", met(array, 4, dtype, 2.0));
  EXPECT_EQ("o", met(array, 1, dtype, std::numeric_limits<double>::infinity()));
}

INSTANTIATE_TEST_SUITE_P(Floats, CheckFinite, testing::ValuesIn(floats()), NameOfCase());

/// The largest float32 that is not too large for a format, and the next one.
TEST(CheckFiniteApi, TellsWhatNarrowingMakesTooLarge) {
  struct Limit {
    WireFormat wire;
    std::uint64_t bits;  ///< of the next one
  };
  for (const auto& [wire, bits] : {Limit{WireFormat::kFloat16, 0x477ff000},
                                   Limit{WireFormat::kBFloat16, 0x7f7f8000},
                                   Limit{WireFormat::kFloat8E4M3, 0x43e80001},
                                   Limit{WireFormat::kFloat8E5M2, 0x47700000}}) {
    for (const std::uint64_t sign : {std::uint64_t{0}, std::uint64_t{0x80000000}}) {
      Array array(DataType::kFloat32, 20, 0, 0x3f800000);
      array.set(13, (bits - 1) | sign);
      EXPECT_EQ("", met(array, 20, DataType::kFloat32, 1.0, wire)) << name_of(wire);
      EXPECT_EQ("o", met(array, 20, DataType::kFloat32, 2.0, wire)) << name_of(wire);
      array.set(13, bits | sign);
      EXPECT_EQ("", met(array, 20, DataType::kFloat32)) << name_of(wire);
      EXPECT_EQ("o", met(array, 20, DataType::kFloat32, 1.0, wire)) << name_of(wire);
      EXPECT_EQ("", met(array, 20, DataType::kFloat32, 0.5, wire)) << name_of(wire);
      array.set(2, 0x7f800000 | sign);
      EXPECT_EQ("i", met(array, 20, DataType::kFloat32, 1.0, wire)) << name_of(wire);
      array.set(2, 0x7fc00000 | sign);
      EXPECT_EQ("n", met(array, 20, DataType::kFloat32, 1.0, wire)) << name_of(wire);
    }
  }
}

TEST(CheckFiniteApi, CodesTakeEveryFiniteNumber) {
  for (const WireFormat wire : {WireFormat::kInt8Blocks, WireFormat::kLargest}) {
    Array array(DataType::kFloat32, 20, 0, 0x7f7fffff);
    EXPECT_EQ("", met(array, 20, DataType::kFloat32, 1.0, wire));
    EXPECT_EQ("o", met(array, 20, DataType::kFloat32, 2.0, wire));
  }
}

TEST(CheckFiniteApi, OnlyFloatsAreChecked) {
  const int value = 1;
  expect_error(
      status_of([&] { check_finite(&value, 1, DataType::kInt32); }), Code::kUnsupported, {"int32"});
}

}  // namespace
}  // namespace aiacc
