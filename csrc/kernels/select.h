#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>
namespace aiacc {
enum class SelectMode : std::uint8_t { kTracked, kExact, kReference };
std::size_t pairs_bytes(std::size_t k);
std::size_t selected_count(std::size_t count, double density);
struct ThresholdTrack {};
struct SelectScratch { std::vector<std::uint32_t> order; };
struct Selection { bool finite = true; };
Selection select_largest(void* wire, const float* in, float* residual, std::size_t count, std::size_t k, float factor, SelectMode, std::uint64_t seed, ThresholdTrack&, SelectScratch&);
void scatter_add(float* out, const void* wire, std::size_t k, std::size_t count, float factor);
}  // namespace aiacc
